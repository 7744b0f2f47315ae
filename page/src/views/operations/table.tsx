import { For, Show, createMemo, createSignal } from 'solid-js';
import { unixMsOf } from '../../api/operations';
import { wordsOf } from '../../model/filter';
import { duration, plainNumber, when } from '../../model/format';
import { latestFirst } from '../../model/operations';
import type { Operation } from '../../model/types';
import { link } from '../../router';
import { nowMs } from '../../ui/media';
import { Empty } from '../../ui/notice';

const shownMost = 60;

/** The timeline's operations as a table. */
export function OperationTable(props: { operations: readonly Operation[]; hideEnded: boolean; chosen: number | null }) {
  const [text, setText] = createSignal('');
  const found = createMemo(() => latestFirst(props.operations, wordsOf(text()), props.hideEnded));
  return (
    <section class="section" aria-labelledby="table-title">
      <div class="title-line">
        <h2 id="table-title">Latest</h2>
        <span class="grow" />
        <label class="filter">
          <span class="hidden">Filter by VM, operation or number</span>
          <input
            type="search"
            placeholder="Filter: VM, operation, failed"
            value={text()}
            spellcheck={false}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
      </div>
      <Show when={found().length > 0} fallback={<Empty>None.</Empty>}>
        <div class="scroll tall" tabindex="0" role="region" aria-labelledby="table-title">
          <table>
            <thead>
              <tr>
                <th>Operation</th>
                <th>VM</th>
                <th class="num">Begun</th>
                <th class="num">Steps</th>
                <th class="num">Took</th>
              </tr>
            </thead>
            <tbody>
              <For each={found().slice(0, shownMost)}>
                {(it) => (
                  <tr classList={{ current: it.id === props.chosen }}>
                    <td>
                      <a href={link('operations', String(it.id))} aria-current={it.id === props.chosen ? 'true' : undefined}>
                        {it.what}
                      </a>
                      <Show when={it.failure}>
                        <span class="bad"> failed</span>
                      </Show>
                    </td>
                    <td class="wrap">{it.vm}</td>
                    <td class="num">{when(unixMsOf(it.started_ns), nowMs())}</td>
                    <td class="num">
                      {it.done}/{it.steps}
                    </td>
                    <td class="num">
                      {it.ended_ns === null
                        ? duration(Math.max(0, nowMs() - unixMsOf(it.started_ns)) * 1e6)
                        : duration(it.ended_ns - it.started_ns)}
                    </td>
                  </tr>
                )}
              </For>
            </tbody>
          </table>
        </div>
        <Show when={found().length > shownMost}>
          <p class="muted">and {plainNumber(found().length - shownMost)} more</p>
        </Show>
      </Show>
    </section>
  );
}
