// Operations that were seen, more than the server remembers.
import type { Operation, OperationRow } from './types';

export const seenMost = 2000;

/** Also keeps those that the server has forgotten; of these only ended ones. */
export function remember(seen: Map<number, Operation>, now: Iterable<Operation>): Map<number, Operation> {
  const next = new Map<number, Operation>();
  const present = new Map<number, Operation>();
  for (const operation of now) present.set(operation.id, operation);
  for (const [id, operation] of seen) if (present.has(id) || operation.ended_ns !== null) next.set(id, operation);
  for (const [id, operation] of present) next.set(id, operation);
  if (next.size <= seenMost) return next;
  return new Map([...next].sort((a, b) => a[0] - b[0]).slice(next.size - seenMost));
}

/** Rows of `operations` have no UUID: that of the VM with the name. */
export function withUuids(
  rows: readonly OperationRow[],
  nowNs: number,
  nowUnixMs: number,
  uuidOf: (name: string) => string | undefined,
): Operation[] {
  return rows.map((row) => ({
    ...row,
    uuid: uuidOf(row.vm) ?? '',
    started_unix_ms: nowUnixMs - (nowNs - row.started_ns) / 1e6,
  }));
}

/** In progress first, then the latest. */
export function latestFirst(operations: Iterable<Operation>, words: readonly string[], hideEnded: boolean): Operation[] {
  const found: Operation[] = [];
  for (const operation of operations) {
    if (hideEnded && operation.ended_ns !== null) continue;
    const text = `${operation.id} ${operation.what} ${operation.vm} ${operation.failure === null ? '' : 'failed'}`.toLowerCase();
    if (words.every((word) => text.includes(word))) found.push(operation);
  }
  return found.sort((a, b) => Number(a.ended_ns !== null) - Number(b.ended_ns !== null) || b.id - a.id);
}
