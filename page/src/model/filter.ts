// Which VMs are listed, and in what order.
import type { Vm } from './types';

export type SortKey = 'name' | 'state' | 'domid' | 'memory' | 'vcpus' | 'kind';

export interface Query {
  text: string;
  states: string[];
  sort: SortKey;
  descending: boolean;
}

export const everything: Query = { text: '', states: [], sort: 'name', descending: false };

const sortKeys: readonly string[] = ['name', 'state', 'domid', 'memory', 'vcpus', 'kind'];

/** Each word must be in name, UUID, state, kind or domid. */
export function matches(vm: Vm, words: readonly string[], states: readonly string[]): boolean {
  if (states.length > 0 && !states.includes(vm.state)) return false;
  if (words.length === 0) return true;
  const name = vm.name.toLowerCase();
  return words.every(
    (word) =>
      name.includes(word) ||
      vm.uuid.startsWith(word) ||
      vm.state.startsWith(word) ||
      vm.config?.kind === word ||
      String(vm.domid ?? '') === word,
  );
}

/** Numbers in names count as numbers: web-9 is before web-10. */
export const collator = new Intl.Collator('en', { numeric: true });

/** What needs a look comes first. */
const stateOrder = ['stuck', 'preserved', 'starting', 'stopping', 'paused', 'suspended', 'running', 'down'];

function rank(state: string): number {
  const at = stateOrder.indexOf(state);
  return at < 0 ? stateOrder.length : at;
}

const compareBy: Record<SortKey, (a: Vm, b: Vm) => number> = {
  name: (a, b) => collator.compare(a.name, b.name),
  state: (a, b) => rank(a.state) - rank(b.state),
  domid: (a, b) => (a.domid ?? 1e9) - (b.domid ?? 1e9),
  memory: (a, b) => (a.config?.memory_mib ?? 0) - (b.config?.memory_mib ?? 0),
  vcpus: (a, b) => (a.config?.vcpus ?? 0) - (b.config?.vcpus ?? 0),
  kind: (a, b) => (a.config?.kind ?? '').localeCompare(b.config?.kind ?? ''),
};

export function wordsOf(text: string): string[] {
  return text.toLowerCase().split(/\s+/).filter(Boolean);
}

export function select(vms: Iterable<Vm>, query: Query): Vm[] {
  const words = wordsOf(query.text);
  const found: Vm[] = [];
  for (const vm of vms) if (matches(vm, words, query.states)) found.push(vm);
  const compare = compareBy[query.sort];
  const sign = query.descending ? -1 : 1;
  // Equal ones keep one order, so that lines do not change places.
  return found.sort((a, b) => sign * compare(a, b) || collator.compare(a.name, b.name) || (a.uuid < b.uuid ? -1 : 1));
}

export function toParams(query: Query): Record<string, string> {
  const params: Record<string, string> = {};
  if (query.text !== '') params.q = query.text;
  if (query.states.length > 0) params.state = query.states.join(',');
  if (query.sort !== 'name' || query.descending) params.sort = (query.descending ? '-' : '') + query.sort;
  return params;
}

export function fromParams(params: Record<string, string>): Query {
  const raw = params.sort ?? 'name';
  const sort = raw.replace(/^-/, '');
  return {
    text: params.q ?? '',
    states: (params.state ?? '').split(',').filter(Boolean),
    sort: sortKeys.includes(sort) ? (sort as SortKey) : 'name',
    descending: raw.startsWith('-'),
  };
}

export function countStates(vms: Iterable<Vm>): Map<string, number> {
  const counts = new Map<string, number>();
  for (const vm of vms) counts.set(vm.state, (counts.get(vm.state) ?? 0) + 1);
  return new Map([...counts].sort((a, b) => rank(a[0]) - rank(b[0])));
}
