import { For, Show } from 'solid-js';
import { request } from '../api/client';
import { poll } from '../api/polled';
import { limitLines } from '../model/host';
import type { Limits } from '../model/types';
import { Loading, Problem } from '../ui/notice';

export function LimitsView() {
  const limits = poll((signal) => request<Limits>('limits', {}, 'limits', signal), 1000);
  return (
    <div class="view">
      <h1>Limits</h1>
      <p class="muted">
        A step that does work needs a permit; one that waits for a guest or a backend does not. Teardowns, attaches and reads of kernels are counted
        apart from the rest, so a destroy never waits for a start.
      </p>
      <Show when={limits.error()}>{(words) => <Problem>{words()}</Problem>}</Show>
      <Show when={limits.value()} fallback={limits.error() ? null : <Loading what="limits" />}>
        {(now) => (
          <>
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
                    {(line) => (
                      <tr>
                        <td>{line.label}</td>
                        <td class="num">{now()[line.key] ?? 'none'}</td>
                        <td class="wrap">{line.effect}</td>
                      </tr>
                    )}
                  </For>
                </tbody>
              </table>
            </div>
            <p class="muted">
              <code>xy limits --vm 20 --sr 8</code> on the host changes them. What a step waited for is in its operation.
            </p>
          </>
        )}
      </Show>
    </div>
  );
}
