// Addresses of views: `#/vms?q=web`. The fragment `#token=...` is a log-in, not a view.

export interface Route {
  path: string[];
  params: Record<string, string>;
}

export function parseRoute(hash: string): Route {
  if (tokenOf(hash) !== null) return { path: [], params: {} };
  const text = hash.replace(/^#\/?/, '');
  const [path = '', query = ''] = text.split('?', 2);
  const params: Record<string, string> = {};
  for (const [key, value] of new URLSearchParams(query)) params[key] = value;
  return { path: path.split('/').filter(Boolean).map(decode), params };
}

export function formatRoute(path: readonly string[], params: Record<string, string> = {}): string {
  const query = new URLSearchParams(params).toString();
  return `#/${path.map(encodeURIComponent).join('/')}${query === '' ? '' : `?${query}`}`;
}

export function tokenOf(hash: string): string | null {
  return hash.startsWith('#token=') ? decode(hash.slice('#token='.length)) : null;
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
