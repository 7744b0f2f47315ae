// The xenstore, by way of xylemd.
import type { Below, StoreNode } from '../model/tree';
import { request, send } from './client';

/** Children that are read at a time. */
const childrenMost = 1000;

interface Part {
  nodes: StoreNode[];
  next: string | null;
}

/** A node and its children. */
export async function read(path: string, signal: AbortSignal): Promise<{ node: StoreNode | undefined; below: Below }> {
  const part = await request<Part>('store', { do: 'tree', path, depth: 1, limit: childrenMost }, 'store-tree', signal);
  const [node, ...nodes] = part.nodes;
  return { node, below: { nodes, hasMore: part.next !== null } };
}

export interface Quota {
  name: string;
  used: number | null;
  used_max: number | null;
  limit: number | null;
}

export async function quota(domid: number, signal: AbortSignal): Promise<Quota[]> {
  return await request<Quota[]>('store', { do: 'quota', domid }, 'store-quota', signal);
}

/** Tells the paths that change at a node and below, until the signal ends it. */
export async function watch(path: string, tell: (paths: string[]) => void, signal: AbortSignal): Promise<void> {
  const headers = { Accept: 'application/x-ndjson' };
  const response = await send('POST', '/v1/requests/store', { body: { do: 'watch', paths: [path] }, headers, signal });
  const reader = response.body?.pipeThrough(new TextDecoderStream()).getReader();
  let rest = '';
  for (;;) {
    const piece = await reader?.read();
    if (!piece || piece.done) return;
    const lines = (rest + piece.value).split('\n');
    rest = lines.pop() ?? '';
    for (const line of lines) {
      const answer = JSON.parse(line) as { changed?: string[]; error?: string };
      if (answer.error !== undefined) throw new Error(answer.error);
      if (answer.changed) tell(answer.changed);
    }
  }
}
