import { For, Show, createMemo } from 'solid-js';
import { model } from '../../api/live';
import { duration, when } from '../../model/format';
import { operationsOf } from '../../model/store';
import { link } from '../../router';
import { nowMs } from '../../ui/media';
import { Empty } from '../../ui/notice';

export function VmOperations(props: { uuid: string }) {
  const all = createMemo(() => operationsOf(model('operation'), props.uuid).slice(0, 30));
  return (
    <section aria-labelledby="operations-title">
      <h2 id="operations-title">Operations</h2>
      <Show when={all().length > 0} fallback={<Empty>None that xylemd remembers.</Empty>}>
        <ul class="rows">
          <For each={all()}>
            {(it) => (
              <li>
                <a href={link('operations', String(it.id))}>{it.what}</a>
                <span class="grow muted">{it.ended_ns === null ? it.waits_for?.join(', ') : when(it.started_unix_ms, nowMs())}</span>
                <span class="num muted">
                  {it.done}/{it.steps}
                </span>
                <span class="num">
                  {duration(it.ended_ns === null ? Math.max(0, nowMs() - it.started_unix_ms) * 1e6 : it.ended_ns - it.started_ns)}
                </span>
                <Show when={it.failure}>
                  <span class="words">{it.failure}</span>
                </Show>
              </li>
            )}
          </For>
        </ul>
      </Show>
    </section>
  );
}
