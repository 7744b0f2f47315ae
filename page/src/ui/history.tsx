import { For, Show, createEffect, createMemo, onCleanup } from 'solid-js';
import uPlot from 'uplot';
import 'uplot/dist/uPlot.min.css';
import { get } from '../api/client';
import { poll } from '../api/polled';
import { amount, graphsOf, type Graph } from '../model/series';
import type { History } from '../model/types';
import { Empty, Loading, Problem } from './notice';
import { isDark } from './theme';

const spanS = 900;
const stepS = 5;
const lines = ['--step-domain', '--step-storage', '--step-store', '--step-memory', '--step-device'];

/** Steps of an axis of bytes. */
const binary = Array.from({ length: 50 }, (_, power) => 2 ** power);

/** What the server has kept of the host or a VM, the last quarter of an hour. */
export function HistoryGraphs(props: { of: string }) {
  const history = poll((signal) => {
    const from = Math.floor(Date.now() / 1000) - spanS;
    return get<History>(`/v1/history?of=${encodeURIComponent(props.of)}&from=${from}&step=${stepS}`, signal);
  }, stepS * 1000);
  const graphs = createMemo(() => {
    const known = history.value();
    return known ? graphsOf(known).map((it) => JSON.stringify(it)) : [];
  });
  return (
    <section class="section" aria-label="Last 15 minutes">
      <Show when={history.error()}>{(text) => <Problem>{text()}</Problem>}</Show>
      <Show when={history.value()} fallback={<Show when={!history.error()}>{<Loading what="the last 15 minutes" />}</Show>}>
        {(known) => (
          <div class="graphs">
            <For each={graphs()} fallback={<Empty>Nothing has been kept yet.</Empty>}>
              {(graph) => <OneGraph graph={JSON.parse(graph) as Graph} history={known()} />}
            </For>
          </div>
        )}
      </Show>
    </section>
  );
}

function OneGraph(props: { graph: Graph; history: History }) {
  let place: HTMLDivElement | undefined;
  const data = createMemo<uPlot.AlignedData>(() => {
    const all = props.graph.series.map((it) => props.history.series[it.name] ?? []);
    const length = Math.max(0, ...all.map((it) => it.length));
    const times = Array.from({ length }, (_, index) => props.history.from + index * props.history.step);
    return [times, ...all];
  });
  createEffect(() => {
    const target = place;
    if (!target) return;
    isDark();
    const style = getComputedStyle(document.documentElement);
    const colour = (name: string): string => style.getPropertyValue(name).trim();
    const unit = props.graph.unit;
    const isBinary = unit === 'bytes' || unit === 'rate';
    const axis = { stroke: colour('--muted'), grid: { stroke: colour('--line'), width: 1 }, ticks: { show: false } };
    const plot = new uPlot(
      {
        width: Math.max(200, target.clientWidth),
        height: 150,
        cursor: { sync: { key: 'history' } },
        legend: { live: false },
        scales: { y: { range: (_, low, high) => [Math.min(0, low), high > 0 ? high * 1.1 : 1] } },
        axes: [
          { ...axis, size: 28, values: [[60, '{HH}:{mm}', null, null, null, null, null, null, 1]] },
          { ...axis, size: 72, ...(isBinary ? { incrs: binary } : {}), values: (_, values) => values.map((it) => amount(unit, it)) },
        ],
        series: [
          {},
          ...props.graph.series.map((it, index) => ({
            label: it.label,
            stroke: colour(lines[index % lines.length] ?? '--accent'),
            width: 1.5,
            points: { show: false },
          })),
        ],
      },
      [[]],
      target,
    );
    createEffect(() => plot.setData(data()));
    const observer = new ResizeObserver(() => plot.setSize({ width: Math.max(200, target.clientWidth), height: 150 }));
    observer.observe(target);
    onCleanup(() => {
      observer.disconnect();
      plot.destroy();
    });
  });
  const last = (name: string): string => amount(props.graph.unit, props.history.series[name]?.findLast((it) => it !== null));
  return (
    <figure class="card graph">
      <figcaption>
        <h2>{props.graph.title}</h2>
        <span class="num muted">{props.graph.series.map((it) => `${it.label} ${last(it.name)}`).join(', ')}</span>
      </figcaption>
      <div ref={place} />
    </figure>
  );
}
