// A VM's configuration in xl's syntax: read for the form, and changed in place, so that comments, order and keys that the
// form does not know stay as they are.

export type Value = string | number | Value[];

export interface Entry {
  key: string;
  value: Value;
  /** Of the whole statement. */
  start: number;
  end: number;
}

export interface Config {
  entries: Entry[];
  /** Numbers of lines that cannot be read. */
  unread: number[];
}

export function parse(text: string): Config {
  const reader = new Reader(text);
  const entries: Entry[] = [];
  const unread: number[] = [];
  while (reader.toStatement()) {
    const start = reader.at;
    const entry = reader.statement();
    if (entry) entries.push({ ...entry, start, end: reader.at });
    else {
      unread.push(text.slice(0, start).split('\n').length);
      reader.at = start;
      reader.toNextLine();
    }
  }
  return { entries, unread };
}

class Reader {
  at = 0;
  constructor(private readonly text: string) {}

  private match(pattern: RegExp): string | null {
    pattern.lastIndex = this.at;
    const found = pattern.exec(this.text);
    if (!found) return null;
    this.at = pattern.lastIndex;
    return found[0];
  }

  /** Whether there is another statement. */
  toStatement(): boolean {
    this.match(/(?:[\s;]|#[^\n]*)*/y);
    return this.at < this.text.length;
  }

  toNextLine(): void {
    this.match(/[^\n]*\n?/y);
  }

  statement(): { key: string; value: Value } | null {
    const key = this.match(/[A-Za-z_][\w-]*/y);
    if (key === null || this.match(/[ \t]*\+?=[ \t]*/y) === null) return null;
    const value = this.value();
    if (value === null || this.match(/(?=[ \t]*(?:[\n;#\r]|$))/y) === null) return null;
    return { key, value };
  }

  private blank(): void {
    this.match(/(?:\s|#[^\n]*)*/y);
  }

  private value(): Value | null {
    const quoted = this.match(/"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*'/y);
    if (quoted !== null) return unquoted(quoted);
    const number = this.match(/-?(?:0[xX][0-9a-fA-F]+|\d+)(?![\w.])/y);
    if (number !== null) return Number(number);
    if (this.match(/\[/y) === null) return null;
    const list: Value[] = [];
    for (;;) {
      this.blank();
      if (this.match(/\]/y) !== null) return list;
      const item = this.value();
      if (item === null) return null;
      list.push(item);
      this.blank();
      if (this.match(/,/y) === null) {
        return this.match(/\]/y) === null ? null : list;
      }
    }
  }
}

function unquoted(text: string): string {
  return text.slice(1, -1).replace(/\\(.)/g, (_, c: string) => (c === 'n' ? '\n' : c === 't' ? '\t' : c));
}

export function quoted(text: string): string {
  const mark = text.includes('"') && !text.includes("'") ? "'" : '"';
  const escaped = text.replace(/[\\\n\t"']/g, (c) => {
    if (c === '\n') return '\\n';
    if (c === '\t') return '\\t';
    return c === '\\' || c === mark ? `\\${c}` : c;
  });
  return mark + escaped + mark;
}

export function written(value: Value): string {
  if (typeof value === 'number') return String(value);
  if (typeof value === 'string') return quoted(value);
  if (value.length === 0) return '[]';
  if (value.length === 1) return `[ ${written(value[0] ?? '')} ]`;
  return `[\n${value.map((it) => `    ${written(it)}`).join(',\n')}\n]`;
}

/** The last one holds. */
export function find(config: Config, key: string): Value | undefined {
  return config.entries.findLast((it) => it.key === key)?.value;
}

/** The text with another value of a key; without a value the key is removed. */
export function withValue(text: string, key: string, value: Value | null): string {
  const all = parse(text).entries.filter((it) => it.key === key);
  const last = all.at(-1);
  if (value !== null) {
    if (!last) return `${text}${text === '' || text.endsWith('\n') ? '' : '\n'}${key} = ${written(value)}\n`;
    return `${text.slice(0, last.start)}${key} = ${written(value)}${text.slice(last.end)}`;
  }
  let rest = text;
  for (const entry of all.reverse()) {
    const isWholeLine = /(^|\n)[ \t]*$/.test(rest.slice(0, entry.start));
    const after = /^[ \t]*\r?\n/.exec(rest.slice(entry.end))?.[0].length ?? 0;
    rest = rest.slice(0, entry.start) + rest.slice(entry.end + (isWholeLine ? after : 0));
  }
  return rest;
}

export function asText(value: Value | undefined): string {
  return value === undefined || Array.isArray(value) ? '' : String(value);
}

export function asList(value: Value | undefined): string[] {
  if (value === undefined) return [];
  return Array.isArray(value) ? value.map(asText) : [asText(value)];
}

/** What a field's text means: numbers are written without quotes, nothing removes the key. */
export function fieldValue(text: string, isNumber: boolean): Value | null {
  if (text.trim() === '') return null;
  return isNumber && /^\d+$/.test(text.trim()) ? Number(text.trim()) : text;
}

/** The line that a fault names: `FILE:LINE: ...`. */
export function lineOf(fault: string): number | null {
  const found = /^[^:\s]*:(\d+):/.exec(fault);
  return found ? Number(found[1]) : null;
}

export const template = `name = "new"
type = "pvh"
vcpus = 1
memory = 512
kernel = "/boot/vmlinuz"
vif = [ "bridge=xenbr0" ]
`;
