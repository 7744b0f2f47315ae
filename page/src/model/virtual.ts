// Which lines of a long list are in view.

export interface Window {
  first: number;
  /** Behind the last one. */
  end: number;
}

export function windowOf(scrollTop: number, height: number, rowHeight: number, rows: number, spare = 8): Window {
  const first = Math.max(0, Math.min(Math.floor(scrollTop / rowHeight) - spare, rows));
  const end = Math.min(rows, Math.ceil((scrollTop + height) / rowHeight) + spare);
  return { first, end: Math.max(first, end) };
}

/** Where to scroll to so that a line is in view. */
export function scrollFor(index: number, scrollTop: number, height: number, rowHeight: number): number {
  const top = index * rowHeight;
  if (top < scrollTop) return top;
  if (top + rowHeight > scrollTop + height) return top + rowHeight - height;
  return scrollTop;
}
