// Operations for the timeline: those that were seen, their steps, and xylemd's clock.
import { createMemo, createRoot, createSignal } from 'solid-js';
import { remember, withUuids } from '../model/operations';
import type { Operation, OperationRow, Trace } from '../model/types';
import { get, request } from './client';
import { operations, vms } from './live';

const [older, setOlder] = createSignal<readonly Operation[]>([]);
const [traces, setTraces] = createSignal<ReadonlyMap<number, Trace>>(new Map());
const [isClockKnown, setClockKnown] = createSignal(false);
export { traces, isClockKnown };

/** Nanoseconds since the start of xylemd, less those of the browser's clock. */
let offset = 0;
let startUnixMs = 0;
const [generation, setGeneration] = createSignal(0);

export function nowNs(): number {
  return performance.now() * 1e6 + offset;
}

/** Unix time of a moment of xylemd's clock, by this browser's clock. */
export function unixMsOf(ns: number): number {
  return startUnixMs + ns / 1e6;
}

function setClock(now: number): void {
  const next = now - performance.now() * 1e6;
  // Another xylemd counts from its own start.
  if (isClockKnown() && next < offset - 5e9) {
    setTraces(new Map());
    setOlder([]);
    setGeneration((n) => n + 1);
  }
  // What took longest to arrive says least: the later clock of two holds, so that the picture does not jump.
  const isOther = !isClockKnown() || Math.abs(next - offset) > 1e9;
  if (!isOther && next <= offset) return;
  offset = next;
  startUnixMs = Date.now() - now / 1e6;
  setClockKnown(true);
}

/** The clock, and operations that ended before the page was opened. */
export async function readOperations(): Promise<void> {
  const { now_ns, rows } = await request<{ now_ns: number; rows: OperationRow[] }>('operations', {}, 'operations');
  setClock(now_ns);
  const names = new Map(vms().map((vm) => [vm.name, vm.uuid]));
  setOlder(withUuids(rows, now_ns, Date.now(), (name) => names.get(name)).filter((it) => it.ended_ns !== null));
}

export const seen = createRoot(() => {
  const state = createMemo<{ generation: number; all: Map<number, Operation> }>(
    (before) => {
      const known = before.generation === generation() ? before.all : new Map<number, Operation>();
      const all = remember(known, [...older(), ...operations()]);
      return { generation: generation(), all };
    },
    { generation: 0, all: new Map() },
  );
  return () => state().all;
});

const asking = new Set<number>();
const askedAt = new Map<number, number>();
const askingMost = 3;
const againMs = 600;
const keptMost = 1500;

/** Reads an operation's steps, unless all are known. */
export function wantTrace(operation: Operation): void {
  const known = traces().get(operation.id);
  if (known !== undefined && known.operation.ended_ns !== null) return;
  if (asking.size >= askingMost || asking.has(operation.id)) return;
  if (performance.now() - (askedAt.get(operation.id) ?? -againMs) < againMs) return;
  asking.add(operation.id);
  void readTrace(operation.id)
    .catch(() => undefined)
    .finally(() => {
      asking.delete(operation.id);
      askedAt.set(operation.id, performance.now());
    });
}

export async function readTrace(id: number): Promise<Trace> {
  const trace = await get<Trace>(`/v1/operations/${id}`);
  setClock(trace.now_ns);
  setTraces((known) => {
    const next = new Map(known);
    next.delete(id);
    next.set(id, trace);
    for (const old of next.keys()) {
      if (next.size <= keptMost) break;
      next.delete(old);
    }
    return next;
  });
  return trace;
}
