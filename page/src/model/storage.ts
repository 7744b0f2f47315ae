// SRs and VDIs for readers.
import { collator } from './filter';
import type { Sr, Vdi } from './types';

/** The disk that uses a VDI: `xylem/UUID/VDEV`. */
export function ownerOf(owner: string): { uuid: string; vdev: string } | null {
  const found = /^xylem\/([0-9a-f-]{36})\/(.+)$/.exec(owner);
  return found?.[1] !== undefined && found[2] !== undefined ? { uuid: found[1], vdev: found[2] } : null;
}

export function vdisMatching(vdis: readonly Vdi[], words: readonly string[]): Vdi[] {
  const found = vdis.filter((vdi) => {
    const text = `${vdi.sr}:${vdi.name}`.toLowerCase();
    return words.every((word) => text.includes(word));
  });
  return found.sort((a, b) => collator.compare(a.sr, b.sr) || collator.compare(a.name, b.name));
}

export function configWords(sr: Sr | undefined): string | null {
  const words = Object.entries(sr?.config ?? {}).map(([key, value]) => `${key}=${value}`);
  return words.length === 0 ? null : words.join(' ');
}
