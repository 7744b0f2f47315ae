import { For, Show, createEffect, createMemo, createSignal, onCleanup } from 'solid-js';
import { wordsOf } from '../../api/client';
import { readTrace, seen, traces, unixMsOf } from '../../api/operations';
import { count, duration, plainNumber, when } from '../../model/format';
import { kindOf } from '../../model/kinds';
import { waits } from '../../model/timeline';
import type { Step, Trace } from '../../model/types';
import { link } from '../../router';
import { nowMs } from '../../ui/media';
import { Empty, Loading, Problem } from '../../ui/notice';

const againMs = 700;

/** One operation, its steps as a table. */
export function Steps(props: { id: number; onFit?: () => void }) {
  const [error, setError] = createSignal<string | null>(null);
  const trace = createMemo(() => traces().get(props.id));
  const uuid = (): string => trace()?.uuid ?? seen().get(props.id)?.uuid ?? '';
  createEffect(() => {
    const id = props.id;
    let timer: ReturnType<typeof setTimeout> | undefined;
    let isOver = false;
    const read = async (): Promise<void> => {
      try {
        const now = await readTrace(id);
        setError(null);
        if (now.operation.ended_ns !== null) return;
      } catch (thrown) {
        if (!isOver) setError(wordsOf(thrown));
        return;
      }
      if (!isOver) timer = setTimeout(() => void read(), againMs);
    };
    setError(null);
    if (traces().get(id)?.operation.ended_ns == null) void read();
    onCleanup(() => {
      isOver = true;
      clearTimeout(timer);
    });
  });
  return (
    <section class="section" aria-labelledby="steps-title">
      <Show when={trace()} fallback={<Show when={error()} fallback={<Loading what="the steps" />}>{(text) => <Problem>{text()}</Problem>}</Show>}>
        {(it) => (
          <>
            <div class="title-line">
              <h2 id="steps-title">
                {it().operation.what}{' '}
                <Show when={uuid()} fallback={it().operation.vm}>
                  <a href={link('vm', uuid())}>{it().operation.vm}</a>
                </Show>
              </h2>
              <span class="muted num">operation {it().operation.id}</span>
              <span class="grow" />
              <Show when={props.onFit}>
                <button type="button" class="button small" onClick={() => props.onFit?.()}>
                  Show in the timeline
                </button>
              </Show>
            </div>
            <Show when={it().operation.failure}>{(text) => <Problem>{text()}</Problem>}</Show>
            <Summary trace={it()} />
            <Show when={it().steps.length > 0} fallback={<Empty>No step has begun.</Empty>}>
              <Table trace={it()} />
            </Show>
          </>
        )}
      </Show>
    </section>
  );
}

function Summary(props: { trace: Trace }) {
  const operation = () => props.trace.operation;
  const cost = () => props.trace.cost;
  const waited = createMemo(() => waits(props.trace));
  return (
    <p class="muted num">
      <Show when={operation().ended_ns} fallback={`In progress, ${operation().done} of ${operation().steps} steps have ended`}>
        {(end) => `${plainNumber(operation().steps)} steps in ${duration(end() - operation().started_ns)}`}
      </Show>
      , begun {when(unixMsOf(operation().started_ns), nowMs())}.
      <For each={waited().slice(0, 3)}>{(it) => ` Waited ${duration(it.ns)} for ${it.on}.`}</For>
      <Show when={cost()}>
        {(it) =>
          ` ${count(Object.values(it().hypercalls).reduce((sum, n) => sum + n, 0), 'hypercall')}, ${count(it().store_messages, 'message')} to the store.`
        }
      </Show>
    </p>
  );
}

function Table(props: { trace: Trace }) {
  const range = createMemo(() => {
    const start = props.trace.operation.started_ns;
    const end = props.trace.operation.ended_ns ?? props.trace.now_ns;
    return { start, length: Math.max(1, end - start) };
  });
  const share = (ns: number): number => Math.min(100, Math.max(0, (100 * (ns - range().start)) / range().length));
  const endOf = (step: Step): number => step.ended_ns ?? props.trace.operation.ended_ns ?? props.trace.now_ns;
  const rows = createMemo(() => [...props.trace.steps].sort((a, b) => a.started_ns - b.started_ns));
  return (
    <div class="scroll" tabindex="0" role="region" aria-label="Steps">
      <table class="steps">
        <thead>
          <tr>
            <th>Step</th>
            <th class="num wide-only">Begun</th>
            <th class="num wide-only">Waited</th>
            <th class="num">Took</th>
            <th class="when">
              <span class="hidden">When</span>
            </th>
          </tr>
        </thead>
        <tbody>
          <For each={rows()}>
            {(step) => (
              <tr>
                <td class="wrap">
                  {step.name}
                  <Show when={step.failed}>
                    <span class="bad"> failed</span>
                  </Show>
                  <Show when={step.waited_for && step.started_ns > step.ready_ns}>
                    <span class="muted"> waited {duration(step.started_ns - step.ready_ns)} for {step.waited_for}</span>
                  </Show>
                </td>
                <td class="num wide-only">{duration(step.started_ns - range().start)}</td>
                <td class="num wide-only">{step.started_ns > step.ready_ns ? duration(step.started_ns - step.ready_ns) : ''}</td>
                <td class="num">{step.ended_ns === null ? 'under way' : duration(step.ended_ns - step.started_ns)}</td>
                <td class="when" aria-hidden="true">
                  <span class="step-bar">
                    <span
                      class="waits"
                      style={{ left: `${share(step.ready_ns)}%`, width: `${share(step.started_ns) - share(step.ready_ns)}%` }}
                    />
                    <span
                      class="runs"
                      classList={{ failed: step.failed }}
                      data-kind={kindOf(step.stage)}
                      style={{ left: `${share(step.started_ns)}%`, width: `${share(endOf(step)) - share(step.started_ns)}%` }}
                    />
                  </span>
                </td>
              </tr>
            )}
          </For>
        </tbody>
      </table>
    </div>
  );
}
