// Which lines of a list are selected, by key.

export function toggled(chosen: ReadonlySet<string>, key: string): Set<string> {
  const next = new Set(chosen);
  if (!next.delete(key)) next.add(key);
  return next;
}

/** All from one line to another, in addition. */
export function extended(chosen: ReadonlySet<string>, keys: readonly string[], from: string | null, to: string): Set<string> {
  const a = from === null ? -1 : keys.indexOf(from);
  const b = keys.indexOf(to);
  const next = new Set(chosen);
  if (b < 0) return next;
  const start = a < 0 ? b : Math.min(a, b);
  const end = Math.max(a, b);
  for (const key of keys.slice(start, end + 1)) next.add(key);
  return next;
}

/** `all`, `some` or `none` of these lines. */
export function coverage(chosen: ReadonlySet<string>, keys: readonly string[]): 'all' | 'some' | 'none' {
  let n = 0;
  for (const key of keys) if (chosen.has(key)) n += 1;
  return n === 0 ? 'none' : n === keys.length ? 'all' : 'some';
}

/** Where a key leads from line `at` of `total`; `null` if it is no such key. */
export function moved(key: string, at: number, total: number, page: number): number | null {
  const last = total - 1;
  switch (key) {
    case 'ArrowDown':
    case 'j':
      return Math.min(last, at + 1);
    case 'ArrowUp':
    case 'k':
      return Math.max(0, at - 1);
    case 'PageDown':
      return Math.min(last, Math.max(0, at) + page);
    case 'PageUp':
      return Math.max(0, at - page);
    case 'Home':
      return 0;
    case 'End':
      return last;
    default:
      return null;
  }
}
