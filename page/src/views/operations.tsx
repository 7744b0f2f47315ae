import { For, Show, createMemo, createSignal, onCleanup, onMount } from 'solid-js';
import { isClockKnown, nowNs, readOperations, seen, traces } from '../api/operations';
import { wordsOf } from '../api/client';
import { duration } from '../model/format';
import { stepKinds } from '../model/kinds';
import { waiting } from '../model/timeline';
import type { Operation } from '../model/types';
import { go, route } from '../router';
import { Loading, Problem } from '../ui/notice';
import { Timeline } from '../ui/timeline';
import { OperationTable } from './operations/table';
import { Steps } from './operations/steps';

const clockMs = 15000;

export function OperationsView() {
  const [isFollowing, setFollowing] = createSignal(true);
  const [span, setSpan] = createSignal(60e9);
  const [hideEnded, setHideEnded] = createSignal(false);
  const [hover, setHover] = createSignal('');
  const [error, setError] = createSignal<string | null>(null);
  const all = createMemo(() => [...seen().values()]);
  const chosen = createMemo(() => {
    const id = Number.parseInt(route().path[1] ?? '', 10);
    return Number.isFinite(id) ? id : null;
  });
  const running = createMemo(() => all().filter((it) => it.ended_ns === null).length);
  let fit: ((operation: Operation) => void) | undefined;

  onMount(() => {
    const read = (): void => void readOperations().then(() => setError(null), (thrown) => setError(wordsOf(thrown)));
    read();
    const timer = setInterval(read, clockMs);
    onCleanup(() => clearInterval(timer));
  });
  const describe = (id: number, index: number): string => {
    const operation = seen().get(id);
    if (!operation) return '';
    if (index === waiting) return `${operation.vm}, ${operation.what}: waits for a permit: ${operation.waits_for?.join(', ') ?? ''}`;
    const step = traces().get(id)?.steps[index];
    const name = `${operation.vm}, ${operation.what}`;
    if (!step) {
      const took = (operation.ended_ns ?? nowNs()) - operation.started_ns;
      return `${name}: ${duration(took)}${operation.failure === null ? '' : `, failed: ${operation.failure}`}`;
    }
    const took = step.ended_ns === null ? 'under way' : duration(step.ended_ns - step.started_ns);
    const waited = step.started_ns - step.ready_ns;
    return `${name}: ${step.name}, ${took}${waited > 0 && step.waited_for ? `, waited ${duration(waited)} for ${step.waited_for}` : ''}`;
  };
  const fitChosen = (): void => {
    const operation = seen().get(chosen() ?? -1);
    if (operation) fit?.(operation);
  };
  return (
    <div class="view">
      <div class="title-line">
        <h1>Operations</h1>
        <span class="muted num">{running()} in progress</span>
      </div>
      <Show when={error()}>{(text) => <Problem>{text()}</Problem>}</Show>
      <div class="panel-bar">
        <button type="button" class="button small" aria-pressed={isFollowing()} onClick={() => setFollowing(!isFollowing())}>
          {isFollowing() ? 'Pause' : 'Follow'}
        </button>
        <button type="button" class="button small" aria-pressed={hideEnded()} onClick={() => setHideEnded(!hideEnded())}>
          Hide ended
        </button>
        <span class="zoom" role="group" aria-label="Time shown">
          <For each={[1e9, 10e9, 60e9, 600e9]}>
            {(ns) => (
              <button
                type="button"
                class="button small"
                aria-pressed={isFollowing() && span() === ns}
                onClick={() => {
                  setSpan(ns);
                  setFollowing(true);
                }}
              >
                {ns < 60e9 ? `${ns / 1e9} s` : `${ns / 60e9} min`}
              </button>
            )}
          </For>
        </span>
        <ul class="legend" aria-label="Colours">
          <For each={stepKinds}>
            {(it) => (
              <li>
                <span class="swatch" data-kind={it.kind} aria-hidden="true" />
                {it.label}
              </li>
            )}
          </For>
          <li>
            <span class="swatch" data-kind="permit" aria-hidden="true" />
            waits for a permit
          </li>
        </ul>
      </div>
      <Show when={isClockKnown()} fallback={error() ? null : <Loading what="operations" />}>
        <div class="timeline-frame">
          <Timeline
            ref={(run) => (fit = run)}
            operations={all()}
            hideEnded={hideEnded()}
            isFollowing={isFollowing()}
            span={span()}
            chosen={chosen()}
            onFollow={setFollowing}
            onSpan={setSpan}
            onChoose={(id) => go('operations', String(id))}
            onHideEnded={() => setHideEnded(!hideEnded())}
            onHover={setHover}
            describe={describe}
          />
          <p class="timeline-words num">{hover() || 'Drag or Shift+wheel scrolls, Ctrl+wheel zooms, a click shows the steps.'}</p>
        </div>
      </Show>
      <div class="columns steps-first">
        <OperationTable operations={all()} hideEnded={hideEnded()} chosen={chosen()} />
        <Show when={chosen() !== null} fallback={<p class="empty">Choose an operation to see its steps.</p>}>
          <Steps id={chosen() ?? 0} onFit={fitChosen} />
        </Show>
      </div>
    </div>
  );
}
