import { For, Show, createMemo, createSignal } from 'solid-js';
import { followLog } from '../api/log';
import { wordsOf } from '../model/filter';
import { plainNumber, when } from '../model/format';
import { matchesLog } from '../model/log';
import { link } from '../router';
import { nowMs } from '../ui/media';
import { Empty, Loading, Problem } from '../ui/notice';
import { State } from '../ui/state';

const pageSize = 200;

export function LogView() {
  const log = followLog();
  const [text, setText] = createSignal('');
  const [shown, setShown] = createSignal(pageSize);
  const found = createMemo(() => {
    const words = wordsOf(text());
    return log.changes().filter((it) => matchesLog(it, words));
  });
  return (
    <div class="view">
      <div class="title-line">
        <h1>Log</h1>
        <span class="muted num" role="status">
          {plainNumber(found().length)} changes of VMs' states
        </span>
      </div>
      <label class="filter">
        <span class="hidden">Filter by name, UUID, state or reason</span>
        <input
          type="search"
          placeholder="Filter: name, UUID, state, reason"
          value={text()}
          spellcheck={false}
          onInput={(event) => {
            setText(event.currentTarget.value);
            setShown(pageSize);
          }}
        />
      </label>
      <Show when={log.error()}>{(words) => <Problem>{words()}</Problem>}</Show>
      <Show when={log.isKnown()} fallback={<Loading what="the log" />}>
        <Show when={found().length > 0} fallback={<Empty>None that xylemd remembers.</Empty>}>
          <div class="scroll" tabindex="0" role="region" aria-label="Log">
            <table>
              <thead>
                <tr>
                  <th>Time</th>
                  <th>VM</th>
                  <th>State</th>
                  <th>Before</th>
                  <th class="num">Domid</th>
                  <th>Reason</th>
                </tr>
              </thead>
              <tbody>
                <For each={found().slice(0, shown())}>
                  {(it) => (
                    <tr>
                      <td class="num time">{when(it.unix_ms, nowMs())}</td>
                      <td>
                        <a href={link('vm', it.uuid)}>{it.vm}</a>
                      </td>
                      <td>
                        <State state={it.after} />
                      </td>
                      <td class="muted">{it.before}</td>
                      <td class="num">{it.domid ?? ''}</td>
                      <td class="wrap">{it.reason}</td>
                    </tr>
                  )}
                </For>
              </tbody>
            </table>
          </div>
          <Show when={found().length > shown()}>
            <button type="button" class="button" onClick={() => setShown(shown() + pageSize)}>
              Show {Math.min(pageSize, found().length - shown())} more
            </button>
          </Show>
        </Show>
      </Show>
    </div>
  );
}
