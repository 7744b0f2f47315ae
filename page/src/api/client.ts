// Calls of xylem-web. Errors have the server's words.

export class Problem extends Error {
  constructor(
    readonly status: number,
    detail: string,
  ) {
    super(detail);
  }
}

let onUnauthorised: () => void = () => undefined;

export function whenUnauthorised(run: () => void): void {
  onUnauthorised = run;
}

interface CallOptions {
  body?: unknown;
  headers?: Record<string, string>;
  signal?: AbortSignal;
  /** How often to ask a server again that has too much to do. */
  patience?: number;
}

/** As long as a server that has too much to do may ask to wait; log-ins are refused for longer. */
const waitMostS = 2;

export async function send(method: string, path: string, options: CallOptions = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: 'application/json', ...options.headers };
  if (method !== 'GET') headers['Xylem-Request'] = '1';
  const init: RequestInit = { method, headers, credentials: 'same-origin', cache: 'no-store' };
  if (options.body !== undefined) {
    headers['Content-Type'] = 'application/json';
    init.body = JSON.stringify(options.body);
  }
  if (options.signal) init.signal = options.signal;
  let response = await ask(path, init);
  for (let tries = options.patience ?? 4; response.status === 429 && tries > 0; tries -= 1) {
    const seconds = Number(response.headers.get('Retry-After') ?? 1);
    if (!(seconds <= waitMostS)) break;
    await new Promise((done) => setTimeout(done, seconds * 1000));
    response = await ask(path, init);
  }
  if (response.ok) return response;
  const problem = new Problem(response.status, await detailOf(response));
  if (response.status === 401 && path !== '/v1/session') onUnauthorised();
  throw problem;
}

async function ask(path: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(path, init);
  } catch (error) {
    if (init.signal?.aborted) throw error;
    throw new Problem(0, 'xylem-web does not answer');
  }
}

async function detailOf(response: Response): Promise<string> {
  const text = await response.text().catch(() => '');
  try {
    const parsed = JSON.parse(text) as { detail?: unknown; title?: unknown };
    if (typeof parsed.detail === 'string' && parsed.detail !== '') return parsed.detail;
    if (typeof parsed.title === 'string') return parsed.title;
  } catch {
    // Not JSON: some proxy's words.
  }
  return `${response.status} ${response.statusText}`.trim();
}

export async function get<T>(path: string, signal?: AbortSignal): Promise<T> {
  const response = await send('GET', path, signal ? { signal } : {});
  return (await response.json()) as T;
}

/** A request of the local protocol; the part of its reply with that name. */
export async function request<T>(op: string, body: object, reply: string, signal?: AbortSignal): Promise<T> {
  const response = await send('POST', `/v1/requests/${op}`, signal ? { body, signal } : { body });
  const answer = (await response.json()) as { ok: unknown };
  if (typeof answer.ok === 'object' && answer.ok !== null && reply in answer.ok) {
    return (answer.ok as Record<string, T>)[reply] as T;
  }
  if (answer.ok === reply) return undefined as T;
  throw new Problem(0, `an unexpected reply to ${op}`);
}

export function wordsOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error);
}
