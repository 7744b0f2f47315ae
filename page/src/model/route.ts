// Addresses of views: `#/vms?q=web`. The fragments `#token=...` and `#log-in=...` are of log-ins, not of views.

export interface Route {
  path: string[];
  params: Record<string, string>;
}

export function parseRoute(hash: string): Route {
  if (tokenOf(hash) !== null || failedLogInOf(hash) !== null) return { path: [], params: {} };
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

/** Why a log-in at the provider of OpenID Connect has failed: the server's code, never the provider's words. */
export function failedLogInOf(hash: string): string | null {
  return hash.startsWith('#log-in=') ? decode(hash.slice('#log-in='.length)) : null;
}

const logInWords = new Map([
  ['busy', 'Too many log-ins are in progress. Wait a moment, then try again.'],
  ['none', 'This host has no provider of OpenID Connect any more.'],
  ['provider', 'The provider of OpenID Connect does not answer as it should. Try again later, or log in otherwise.'],
  ['refused', 'The provider of OpenID Connect has logged nobody in.'],
  ['stale', 'The log-in took too long, was ended before, or began in another browser. Log in again.'],
  ['unknown', 'You are known to the provider of OpenID Connect, but not to this host. Its administrator can let you in.'],
]);

/** What a person is told of it. An address can say anything, so that only what is known is said. */
export function logInWordsOf(code: string): string {
  return logInWords.get(code) ?? 'The log-in with OpenID Connect has failed.';
}

function decode(text: string): string {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
}
