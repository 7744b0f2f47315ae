// What this server can do, as far as not every one can.
import { createSignal } from 'solid-js';
import { get } from './client';

const [paths, setPaths] = createSignal<ReadonlySet<string>>(new Set());

export async function findFeatures(): Promise<void> {
  try {
    const api = await get<{ paths?: Record<string, unknown> }>('/v1/openapi.json');
    // Names of parameters do not matter.
    setPaths(new Set(Object.keys(api.paths ?? {}).map((path) => path.replace(/\{\w+\}/g, '{}'))));
  } catch {
    setPaths(new Set<string>());
  }
}

export function has(path: string): boolean {
  return paths().has(path);
}

export const hasConsole = (): boolean => has('/v1/vms/{}/console');
export const hasScreen = (): boolean => has('/v1/vms/{}/screen');
export const hasHistory = (): boolean => has('/v1/history');
