// Where the operations' bars are. Pure: times and widths in, places out.
import { kindOf, type StepKind } from './kinds';
import type { Operation, Trace } from './types';

export interface View {
  /** Nanoseconds since the start of xylemd, at the left edge. */
  from: number;
  to: number;
  /** Of the canvas, in pixels. */
  width: number;
}

export interface Bar {
  operation: number;
  /** Or `whole`: its steps are not known or too short to be drawn; or `waiting`: none of them is under way. */
  step: number;
  /** Waiting for a permit, or under way. */
  phase: 'waits' | 'runs';
  kind: StepKind | 'operation';
  x: number;
  width: number;
  track: number;
  failed: boolean;
  isOpen: boolean;
  name: string;
}

export const whole = -1;
export const waiting = -2;

export interface Lane {
  name: string;
  top: number;
  height: number;
  bars: Bar[];
  /** Of operations, in order of time: for the keyboard. */
  operations: number[];
  isOpen: boolean;
}

export interface Layout {
  lanes: Lane[];
  height: number;
  /** Height of a bar. */
  track: number;
}

export const geometry = { track: 9, trackLarge: 20, gap: 2, padding: 5, tracksMax: 8, barMin: 3, stepsFrom: 14 };

export interface Options {
  hideEnded: boolean;
  now: number;
  /** Of the canvas: with room for it, bars are large enough for names. */
  height: number;
}

interface Span {
  operation: number;
  step: number;
  kind: Bar['kind'];
  ready: number;
  start: number;
  end: number;
  failed: boolean;
  isOpen: boolean;
  name: string;
}

export function layout(
  operations: Iterable<Operation>,
  traces: ReadonlyMap<number, Trace>,
  view: View,
  options: Options,
): Layout {
  const byVm = new Map<string, Operation[]>();
  for (const operation of operations) {
    if (options.hideEnded && operation.ended_ns !== null) continue;
    const end = operation.ended_ns ?? Math.max(options.now, operation.started_ns);
    if (end < view.from || operation.started_ns > view.to) continue;
    // By name: a VM that is made anew has another UUID.
    const key = operation.vm;
    const list = byVm.get(key);
    if (list) list.push(operation);
    else byVm.set(key, [operation]);
  }
  const lanes: Lane[] = [];
  for (const [name, list] of byVm) {
    list.sort((a, b) => a.started_ns - b.started_ns);
    const bars = laneBars(list, traces, view, options.now);
    const isOpen = list.some((it) => it.ended_ns === null);
    lanes.push({ name, top: 0, height: 0, bars, operations: list.map((it) => it.id), isOpen });
  }
  // What is in progress first, then the newest; a lane keeps its place while nothing begins or ends in it.
  const newest = (lane: Lane): number => lane.operations[lane.operations.length - 1] ?? 0;
  lanes.sort((a, b) => Number(b.isOpen) - Number(a.isOpen) || newest(b) - newest(a));
  const large = stack(lanes, geometry.trackLarge);
  if (large <= options.height) return { lanes, height: large, track: geometry.trackLarge };
  return { lanes, height: stack(lanes, geometry.track), track: geometry.track };
}

/** Puts lanes below each other; their height. */
function stack(lanes: readonly Lane[], track: number): number {
  let top = 0;
  for (const lane of lanes) {
    const tracks = lane.bars.reduce((most, bar) => Math.max(most, bar.track + 1), 1);
    lane.top = top;
    lane.height = Math.max(20, tracks * (track + geometry.gap) - geometry.gap + 2 * geometry.padding);
    top += lane.height;
  }
  return top;
}

function laneBars(operations: readonly Operation[], traces: ReadonlyMap<number, Trace>, view: View, now: number): Bar[] {
  const scale = view.width / (view.to - view.from);
  const spans: Span[] = [];
  for (const operation of operations) spans.push(...spansOf(operation, traces.get(operation.id), scale, now));
  spans.sort((a, b) => a.ready - b.ready || a.step - b.step);
  const ends: number[] = [];
  const bars: Bar[] = [];
  for (const span of spans) {
    // Steps that are too short to be seen overlap on one track, rather than taking one each.
    const track = place(ends, span.ready, span.end);
    const rest = { operation: span.operation, step: span.step, kind: span.kind, name: span.name, track };
    if (span.start > span.ready) {
      const x = (span.ready - view.from) * scale;
      const width = (span.start - span.ready) * scale;
      if (width >= 0.5) bars.push({ ...rest, phase: 'waits', x, width, failed: false, isOpen: false });
    }
    if (span.step === waiting) continue;
    const x = (span.start - view.from) * scale;
    const width = Math.max(geometry.barMin, (span.end - span.start) * scale);
    if (x + width >= 0 && x <= view.width) {
      bars.push({ ...rest, phase: 'runs', x, width, failed: span.failed, isOpen: span.isOpen });
    }
  }
  return bars;
}

/** The first track that is free at `from`; the last one takes what is too much. */
function place(ends: number[], from: number, to: number): number {
  let track = ends.findIndex((end) => end <= from);
  if (track < 0) track = Math.min(ends.length, geometry.tracksMax - 1);
  ends[track] = Math.max(ends[track] ?? 0, to);
  return track;
}

function spansOf(operation: Operation, trace: Trace | undefined, scale: number, now: number): Span[] {
  const end = operation.ended_ns ?? Math.max(now, operation.started_ns);
  const isWide = (end - operation.started_ns) * scale >= geometry.stepsFrom;
  if (trace === undefined || trace.steps.length === 0 || !isWide) {
    return [
      {
        operation: operation.id,
        step: whole,
        kind: 'operation',
        ready: operation.started_ns,
        start: operation.started_ns,
        end,
        failed: operation.failure !== null,
        isOpen: operation.ended_ns === null,
        name: operation.what,
      },
    ];
  }
  const spans = trace.steps.map((step, index): Span => {
    const isOpen = step.ended_ns === null && operation.ended_ns === null;
    return {
      operation: operation.id,
      step: index,
      kind: kindOf(step.stage),
      ready: Math.min(step.ready_ns, step.started_ns),
      start: step.started_ns,
      end: step.ended_ns ?? (isOpen ? Math.max(now, step.started_ns) : end),
      failed: step.failed,
      isOpen,
      name: step.name,
    };
  });
  if (operation.ended_ns === null && !spans.some((it) => it.isOpen)) spans.push(waitOf(operation, spans, now));
  return spans;
}

/** Steps are told once they begin: while none is under way, the next ones wait for permits. */
function waitOf(operation: Operation, spans: readonly Span[], now: number): Span {
  const since = Math.max(...spans.map((it) => it.end));
  const name = operation.waits_for?.join(', ') ?? '';
  const id = operation.id;
  return { operation: id, step: waiting, kind: 'operation', ready: since, start: now, end: now, failed: false, isOpen: true, name };
}

/** The bar at a place of the canvas. */
export function barAt(from: Layout, x: number, y: number): Bar | null {
  const lane = laneAt(from, y);
  if (!lane) return null;
  const track = Math.floor((y - lane.top - geometry.padding) / (from.track + geometry.gap));
  let best: Bar | null = null;
  let distance = 4;
  for (const bar of lane.bars) {
    if (bar.track !== track) continue;
    const away = x < bar.x ? bar.x - x : x > bar.x + bar.width ? x - bar.x - bar.width : 0;
    if (away < distance || (away === 0 && distance === 0)) {
      best = bar;
      distance = away;
    }
  }
  return best;
}

export function laneAt(from: Layout, y: number): Lane | null {
  let low = 0;
  let high = from.lanes.length - 1;
  while (low <= high) {
    const middle = (low + high) >> 1;
    const lane = from.lanes[middle];
    if (!lane) return null;
    if (y < lane.top) high = middle - 1;
    else if (y >= lane.top + lane.height) low = middle + 1;
    else return lane;
  }
  return null;
}

export function zoomed(view: View, factor: number, around: number): View {
  const span = Math.min(3600e9, Math.max(1e5, (view.to - view.from) * factor));
  const share = (around - view.from) / (view.to - view.from);
  const from = around - share * span;
  return { ...view, from, to: from + span };
}

export function panned(view: View, byNs: number): View {
  return { ...view, from: view.from + byNs, to: view.to + byNs };
}

/** Parts of minutes and hours, in nanoseconds. */
const clockSteps = [15e9, 30e9, 60e9, 120e9, 300e9, 600e9, 1800e9, 3600e9];

/** Round times for the axis, some six of them. `zero` is the time of day of 0, in nanoseconds. */
export function ticks(view: View, zero = 0, atMost = 6): { at: number; step: number }[] {
  const rough = (view.to - view.from) / atMost;
  const power = 10 ** Math.floor(Math.log10(rough));
  const decimal = ([1, 2, 5, 10].find((n) => n * power >= rough) ?? 10) * power;
  const step = decimal <= 10e9 ? decimal : (clockSteps.find((n) => n >= rough) ?? 3600e9);
  const shift = zero % step;
  const found: { at: number; step: number }[] = [];
  for (let at = Math.ceil((view.from + shift) / step) * step - shift; at <= view.to; at += step) found.push({ at, step });
  return found;
}

/** The operation that the keyboard goes to from `id`. */
export function neighbour(from: Layout, id: number | null, direction: 'up' | 'down' | 'left' | 'right'): number | null {
  const lanes = from.lanes;
  if (lanes.length === 0) return null;
  const at = lanes.findIndex((lane) => id !== null && lane.operations.includes(id));
  const lane = lanes[at];
  if (!lane || id === null) return lanes[0]?.operations.at(-1) ?? null;
  if (direction === 'left' || direction === 'right') {
    const next = lane.operations[lane.operations.indexOf(id) + (direction === 'left' ? -1 : 1)];
    return next ?? id;
  }
  const other = lanes[at + (direction === 'up' ? -1 : 1)];
  return other?.operations.at(-1) ?? id;
}

/** What of an operation's time was spent waiting for permits, and on what. */
export function waits(trace: Trace): { on: string; ns: number }[] {
  const sums = new Map<string, number>();
  for (const step of trace.steps) {
    const waited = step.started_ns - step.ready_ns;
    if (waited > 0 && step.waited_for) sums.set(step.waited_for, (sums.get(step.waited_for) ?? 0) + waited);
  }
  return [...sums].map(([on, ns]) => ({ on, ns })).sort((a, b) => b.ns - a.ns);
}
