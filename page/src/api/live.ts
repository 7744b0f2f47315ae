// The live model, as signals: what /v1/events tells, a moment at a time.
import { createMemo, createRoot, createSignal } from 'solid-js';
import { Mirror, type Model } from '../model/store';
import type { Change, ClassName, Host, Operation, Sr, Vm } from '../model/types';
import { get } from './client';

export type Link = 'connecting' | 'online' | 'offline' | 'lost';

const mirror = new Mirror();
const [link, setLink] = createSignal<Link>('connecting');
const [detail, setDetail] = createSignal('');
const [isCurrent, setCurrent] = createSignal(false);
export { link, detail as linkDetail, isCurrent };

const versions = {
  vm: createSignal(0),
  device: createSignal(0),
  domain: createSignal(0),
  operation: createSignal(0),
  sr: createSignal(0),
  vdi: createSignal(0),
  network: createSignal(0),
  host: createSignal(0),
} satisfies Record<ClassName, unknown>;

const classes = Object.keys(versions) as ClassName[];

function touch(names: Iterable<ClassName>): void {
  for (const name of names) versions[name][1]((n) => n + 1);
}

/** The model; who reads it hears of changes of these classes. */
export function model(...names: ClassName[]): Model {
  for (const name of names) versions[name][0]();
  return mirror.shown();
}

const lists = createRoot(() => ({
  vms: createMemo<Vm[]>(() => [...model('vm').vm.values()]),
  operations: createMemo<Operation[]>(() => [...model('operation').operation.values()]),
  srs: createMemo<Sr[]>(() => [...model('sr').sr.values()]),
  // There is one, once xylemd has looked at it.
  host: createMemo<Host | undefined>(() => model('host').host.get('host')),
}));
export const { vms, operations, srs, host } = lists;

/** Collected for a moment: a thousand changes are drawn once. */
const collectMs = 80;
const retryMs = 2000;
let pending: Change[] = [];
let timer: ReturnType<typeof setTimeout> | undefined;
let source: EventSource | undefined;
let retry: ReturnType<typeof setTimeout> | undefined;

function flush(): void {
  clearTimeout(timer);
  timer = undefined;
  const changes = pending;
  pending = [];
  if (changes.length > 0) touch(mirror.change(changes));
}

function parse<T>(event: Event): T {
  return JSON.parse((event as MessageEvent<string>).data) as T;
}

export function connect(): void {
  disconnect();
  const since = mirror.cursor === null ? '' : `?since=${encodeURIComponent(mirror.cursor)}`;
  const opened = new EventSource(`/v1/events${since}`);
  source = opened;
  opened.addEventListener('open', () => {
    if (link() !== 'offline') setLink('online');
  });
  opened.addEventListener('reset', () => {
    flush();
    mirror.reset();
  });
  opened.addEventListener('change', (event) => {
    pending.push(parse<Change>(event));
    timer ??= setTimeout(flush, collectMs);
  });
  opened.addEventListener('current', (event) => {
    const { cursor } = parse<{ cursor: string }>(event);
    flush();
    if (mirror.current(cursor)) touch(classes);
    setCurrent(true);
  });
  opened.addEventListener('offline', (event) => {
    setDetail(parse<{ detail?: string }>(event).detail ?? '');
    setLink('offline');
  });
  opened.addEventListener('online', () => setLink('online'));
  opened.addEventListener('error', () => {
    setLink('lost');
    if (opened.readyState !== EventSource.CLOSED) return;
    clearTimeout(retry);
    // Whether the session is still there decides between trying again and logging in.
    retry = setTimeout(() => void get('/v1/session').then(connect, () => source === opened && connect()), retryMs);
  });
}

export function disconnect(): void {
  clearTimeout(retry);
  source?.close();
  source = undefined;
}
