// Graphs of /v1/history: which series go together, and in what unit.
import { bytes } from './format';
import type { History } from './types';

export interface Graph {
  title: string;
  unit: 'cpu' | 'bytes' | 'rate' | 'number';
  series: { name: string; label: string }[];
}

const groups: readonly { title: string; unit: Graph['unit']; match: RegExp }[] = [
  { title: 'CPU', unit: 'cpu', match: /^v?cpu/ },
  { title: 'Memory', unit: 'bytes', match: /mem/ },
  { title: 'Disks', unit: 'rate', match: /^disk|^vbd/ },
  { title: 'Network', unit: 'rate', match: /^net|^vif/ },
];

export function graphsOf(history: History): Graph[] {
  const names = Object.keys(history.series);
  const used = new Set<string>();
  const graphs: Graph[] = [];
  for (const group of groups) {
    const series = names.filter((name) => !used.has(name) && group.match.test(name));
    for (const name of series) used.add(name);
    if (series.length > 0) graphs.push({ title: group.title, unit: group.unit, series: series.map(named) });
  }
  for (const name of names) {
    if (!used.has(name)) graphs.push({ title: named(name).label, unit: 'number', series: [named(name)] });
  }
  return graphs;
}

const ways: Readonly<Record<string, string>> = { read: 'read', write: 'written', rx: 'received', tx: 'sent' };

/** Of a device: what is moved, and on which. */
function named(name: string): { name: string; label: string } {
  const device = /^(vbd|vif)_(.+)_(read|write|rx|tx)$/.exec(name);
  if (device === null) return { name, label: name.replaceAll('_', ' ') };
  const [, kind, of, way] = device;
  return { name, label: `${kind === 'vif' ? 'vif ' : ''}${of ?? ''} ${ways[way ?? ''] ?? ''}` };
}

export function amount(unit: Graph['unit'], value: number | null | undefined): string {
  if (value === null || value === undefined) return '–';
  if (unit === 'bytes') return bytes(value);
  if (unit === 'rate') return `${bytes(value)}/s`;
  return value >= 100 ? value.toFixed(0) : value.toFixed(2);
}
