// Options of the browser tests.
import { parseArgs } from 'node:util';

export interface Options {
  url: string;
  chromium: string;
  shots: string | null;
  clicks: number;
  seed: number;
  views: string[];
  /** Whether any certificate will do. */
  insecure: boolean;
  /** Each size in one theme, and each theme at one size. */
  quick: boolean;
}

export function readOptions(): Options {
  const { values } = parseArgs({
    args: process.argv.slice(2).filter((it) => it !== '--'),
    allowPositionals: true,
    options: {
      url: { type: 'string' },
      chromium: { type: 'string', default: '/usr/bin/chromium' },
      shots: { type: 'string' },
      clicks: { type: 'string', default: '0' },
      seed: { type: 'string', default: '1' },
      view: { type: 'string', multiple: true, default: [] },
      insecure: { type: 'boolean', default: false },
      quick: { type: 'boolean', default: false },
    },
  });
  if (values.url === undefined) throw new Error('--url ADDRESS of xylem-web, with its #token=... if it has one');
  return {
    url: values.url,
    chromium: values.chromium,
    shots: values.shots ?? null,
    clicks: Number(values.clicks),
    seed: Number(values.seed),
    views: values.view,
    insecure: values.insecure,
    quick: values.quick,
  };
}

/** The same numbers for the same seed. */
export function random(seed: number): () => number {
  let state = seed >>> 0 || 1;
  return () => {
    state ^= state << 13;
    state >>>= 0;
    state ^= state >>> 17;
    state ^= state << 5;
    state >>>= 0;
    return state / 4294967296;
  };
}
