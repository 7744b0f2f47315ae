import { For, Show, createMemo, createSignal } from 'solid-js';
import { request, wordsOf } from '../api/client';
import { poll } from '../api/polled';
import { may } from '../api/session';
import { limitLines, type LimitLine } from '../model/host';
import type { Limits } from '../model/types';
import { Loading, Problem } from '../ui/notice';

type Typed = Partial<Record<keyof Limits, string>>;

export function LimitsView() {
  const limits = poll((signal) => request<Limits>('limits', {}, 'limits', signal), 1000);
  const [typed, setTyped] = createSignal<Typed>({});
  const [error, setError] = createSignal<string | null>(null);
  const changes = createMemo(() => {
    const now = limits.value();
    const found: Partial<Record<keyof Limits, number>> = {};
    for (const { key } of limitLines) {
      const text = typed()[key]?.trim() ?? '';
      if (/^\d+$/.test(text) && now && Number(text) !== now[key]) found[key] = Number(text);
    }
    return found;
  });
  const hasChanges = () => Object.keys(changes()).length > 0;
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    setError(null);
    try {
      await request<Limits>('limits', changes(), 'limits');
      setTyped({});
    } catch (thrown) {
      setError(wordsOf(thrown));
    }
    limits.again();
  };
  return (
    <div class="view">
      <h1>Limits</h1>
      <p class="muted">
        A step that does work needs a permit; one that waits for a guest or a backend does not. Teardowns, attaches and reads of kernels are counted
        apart from the rest, so a destroy never waits for a start. What a step waited for is in its operation.
      </p>
      <Show when={limits.error()}>{(words) => <Problem>{words()}</Problem>}</Show>
      <Show when={limits.value()} fallback={limits.error() ? null : <Loading what="limits" />}>
        {(now) => (
          <form class="section" onSubmit={(event) => void submit(event)}>
            <dl class="card facts narrow">
              <dt>Steps with a permit, under way</dt>
              <dd class="num">{now().under_way}</dd>
              <dt>Steps that wait for a permit</dt>
              <dd class="num">{now().waiting}</dd>
            </dl>
            <div class="scroll" tabindex="0" role="region" aria-label="Limits">
              <table>
                <thead>
                  <tr>
                    <th>Limit</th>
                    <th class="num">At most</th>
                    <th>Of what</th>
                  </tr>
                </thead>
                <tbody>
                  <For each={limitLines}>
                    {(line) => <Line line={line} now={now()} typed={typed()} onTyped={setTyped} />}
                  </For>
                </tbody>
              </table>
            </div>
            <Show when={error()}>{(words) => <Problem>{words()}</Problem>}</Show>
            <Show when={may('admin')}>
              <div class="panel-bar">
                <button type="submit" class="button primary" disabled={!hasChanges()}>
                  Change
                </button>
                <span class="muted">It holds for the next steps, until xylemd is restarted; permits that were given are kept.</span>
              </div>
            </Show>
          </form>
        )}
      </Show>
    </div>
  );
}

function Line(props: { line: LimitLine; now: Limits; typed: Typed; onTyped: (typed: Typed) => void }) {
  const value = () => props.now[props.line.key];
  return (
    <tr>
      <td>{props.line.label}</td>
      <td class="num">
        <Show when={may('admin')} fallback={value() ?? 'none'}>
          <input
            class="short num"
            inputmode="numeric"
            aria-label={`Limit ${props.line.label}`}
            placeholder="none"
            value={props.typed[props.line.key] ?? value() ?? ''}
            onInput={(event) => props.onTyped({ ...props.typed, [props.line.key]: event.currentTarget.value })}
          />
        </Show>
      </td>
      <td class="wrap">{props.line.effect}</td>
    </tr>
  );
}
