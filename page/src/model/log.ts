// State changes, the latest first, as many as are kept.
import type { StateChange } from './types';

/** As many as xylemd keeps. */
export const keptMost = 4096;

/** The changes of one answer before the known ones; each revision once. */
export function merged(known: readonly StateChange[], more: readonly StateChange[]): readonly StateChange[] {
  const latest = known[0]?.revision ?? -1;
  const fresh = more.filter((it) => it.revision > latest).sort((a, b) => b.revision - a.revision);
  return fresh.length === 0 ? known : [...fresh, ...known].slice(0, keptMost);
}

export function matchesLog(change: StateChange, words: readonly string[]): boolean {
  const text = `${change.vm} ${change.uuid} ${change.before} ${change.after} ${change.reason}`.toLowerCase();
  return words.every((word) => text.includes(word));
}
