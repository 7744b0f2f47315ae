// The view that the address names.
import { createSignal } from 'solid-js';
import { formatRoute, parseRoute, type Route } from './model/route';

const [route, setRoute] = createSignal<Route>(parseRoute(location.hash), { equals: false });
export { route };

addEventListener('hashchange', () => setRoute(parseRoute(location.hash)));

export function go(...path: string[]): void {
  location.hash = formatRoute(path);
}

/** Without a step in the browser's history. */
export function replace(path: readonly string[], params: Record<string, string>): void {
  const hash = formatRoute(path, params);
  if (hash === location.hash) return;
  history.replaceState(null, '', hash);
  setRoute(parseRoute(hash));
}

export function link(...path: string[]): string {
  return formatRoute(path);
}
