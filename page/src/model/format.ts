// Numbers and times for readers.

const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];

export function bytes(n: number | null | undefined): string {
  if (n === null || n === undefined) return '–';
  let unit = 0;
  let value = n;
  while (value >= 1024 && unit < units.length - 1) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 || Number.isInteger(value) ? Math.round(value) : value.toFixed(1)} ${units[unit]}`;
}

export function mib(n: number | null | undefined): string {
  return n === null || n === undefined ? '–' : bytes(n * 1024 * 1024);
}

/** A length of time, with some three digits. */
export function duration(ns: number): string {
  if (ns < 0) return '0';
  if (ns < 999.5) return `${Math.round(ns)} ns`;
  if (ns < 999.5e3) return `${three(ns / 1e3)} µs`;
  if (ns < 999.5e6) return `${three(ns / 1e6)} ms`;
  if (ns < 60e9) return `${three(ns / 1e9)} s`;
  const seconds = Math.floor(ns / 1e9);
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ${Math.floor((seconds % 3600) / 60)} min`;
  return `${Math.floor(seconds / 86400)} d ${Math.floor((seconds % 86400) / 3600)} h`;
}

function three(value: number): string {
  return value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2);
}

const time = new Intl.DateTimeFormat('en-GB', { hour: '2-digit', minute: '2-digit', second: '2-digit' });
const day = new Intl.DateTimeFormat('en-CA', { year: 'numeric', month: '2-digit', day: '2-digit' });

/** The time of day; with the date if that is not today. */
export function when(unixMs: number, nowMs: number): string {
  const at = new Date(unixMs);
  const clock = time.format(at);
  return at.toDateString() === new Date(nowMs).toDateString() ? clock : `${day.format(at)} ${clock}`;
}

export function count(n: number, one: string, many = `${one}s`): string {
  return `${n.toLocaleString('en')} ${n === 1 ? one : many}`;
}

export function plainNumber(n: number): string {
  return n.toLocaleString('en');
}

export function percent(part: number, whole: number): number {
  return whole <= 0 ? 0 : Math.min(100, Math.max(0, (100 * part) / whole));
}
