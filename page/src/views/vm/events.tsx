import { For, Show, createMemo } from 'solid-js';
import { followLog } from '../../api/log';
import { when } from '../../model/format';
import { nowMs } from '../../ui/media';
import { Empty, Problem } from '../../ui/notice';
import { State } from '../../ui/state';

export function VmEvents(props: { uuid: string }) {
  const log = followLog();
  const all = createMemo(() => log.changes().filter((it) => it.uuid === props.uuid).slice(0, 30));
  return (
    <section aria-labelledby="events-title">
      <h2 id="events-title">Events</h2>
      <Show when={log.error()}>{(text) => <Problem>{text()}</Problem>}</Show>
      <Show when={all().length > 0} fallback={<Empty>None that xylemd remembers.</Empty>}>
        <ul class="rows">
          <For each={all()}>
            {(it) => (
              <li>
                <State state={it.after} />
                <span class="grow muted">
                  was {it.before}
                  {it.reason === '' ? '' : `: ${it.reason}`}
                </span>
                <span class="num muted">{when(it.unix_ms, nowMs())}</span>
              </li>
            )}
          </For>
        </ul>
      </Show>
    </section>
  );
}
