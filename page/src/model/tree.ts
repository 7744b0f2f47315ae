// The xenstore as a tree of which some nodes are open.

export interface StoreNode {
  path: string;
  /** With escapes as `xenstore-ls` has them. */
  value: string;
  /** As `n0`, `r3`; the first names the owner. */
  permissions: string[];
  children: number;
}

/** What is known below one node. */
export interface Below {
  nodes: readonly StoreNode[];
  /** There are more than are shown. */
  hasMore: boolean;
}

export interface Row {
  node: StoreNode;
  name: string;
  depth: number;
  isOpen: boolean;
}

export function nameOf(path: string): string {
  return path === '/' ? '/' : path.slice(path.lastIndexOf('/') + 1);
}

export function parentOf(path: string): string {
  const at = path.lastIndexOf('/');
  return at <= 0 ? '/' : path.slice(0, at);
}

/** An absolute path without a slash at its end, or null for what is none. */
export function asPath(text: string): string | null {
  const path = text.trim().replace(/(.)\/$/, '$1');
  return /^\/(?:[\w@-]+(?:\/[\w@-]+)*)?$/.test(path) ? path : null;
}

/** The rows below a node, as far as nodes are open. */
export function rowsOf(top: string, known: ReadonlyMap<string, Below>): Row[] {
  const rows: Row[] = [];
  const add = (path: string, depth: number): void => {
    for (const node of known.get(path)?.nodes ?? []) {
      const isOpen = known.has(node.path);
      rows.push({ node, name: nameOf(node.path), depth, isOpen });
      if (isOpen) add(node.path, depth + 1);
    }
  };
  add(top, 0);
  return rows;
}

/** Open nodes whose children a change may have changed. */
export function touched(changed: readonly string[], known: ReadonlyMap<string, Below>): Set<string> {
  const open = new Set<string>();
  for (const path of changed) {
    for (const place of [path, parentOf(path)]) if (known.has(place)) open.add(place);
  }
  return open;
}

/** Paths that came, or whose value or permissions are others. */
export function changesOf(before: readonly StoreNode[], after: readonly StoreNode[]): string[] {
  const old = new Map(before.map((node) => [node.path, node]));
  const isSame = (node: StoreNode): boolean => {
    const was = old.get(node.path);
    return was !== undefined && was.value === node.value && was.children === node.children && was.permissions.join() === node.permissions.join();
  };
  return after.filter((node) => !isSame(node)).map((node) => node.path);
}

const rights: Record<string, string> = { n: 'nothing', r: 'read', w: 'write', b: 'read and write' };

export interface Access {
  owner: string;
  /** What all other domains may; empty for nothing. */
  others: string;
  /** What some domains may, in words. */
  some: string[];
}

export function accessOf(permissions: readonly string[]): Access {
  const [first = 'n?', ...more] = permissions;
  const others = rights[first.charAt(0)] ?? first;
  return {
    owner: first.slice(1),
    others: others === 'nothing' ? '' : others,
    some: more.map((it) => `${it.slice(1)} may ${rights[it.charAt(0)] ?? it}`),
  };
}

/** The domain that a path is about, if it is one's. */
export function domidOf(path: string): number | null {
  const found = /^\/local\/domain\/(\d+)(?:\/|$)/.exec(path);
  return found ? Number(found[1]) : null;
}
