// The views, and who can have them.
import type { Session } from './types';

export interface Place {
  path: string;
  label: string;
  /** It tells of the host as a whole, which a client that is limited to VMs with a tag is refused. */
  isOfHost: boolean;
}

const places: readonly Place[] = [
  { path: '', label: 'Host', isOfHost: true },
  { path: 'vms', label: 'VMs', isOfHost: false },
  { path: 'operations', label: 'Operations', isOfHost: false },
  { path: 'storage', label: 'Storage', isOfHost: true },
  { path: 'networks', label: 'Networks', isOfHost: true },
  { path: 'store', label: 'Store', isOfHost: true },
  { path: 'limits', label: 'Limits', isOfHost: true },
  { path: 'log', label: 'Log', isOfHost: true },
];

/** The tags that a client is limited to; none of one that is not. */
export function limits(session: Session | null | undefined): readonly string[] {
  return session?.tags ?? [];
}

export function placesFor(session: Session | null | undefined): readonly Place[] {
  return limits(session).length > 0 ? places.filter((place) => !place.isOfHost) : places;
}

/** Views by their first word that a limited client is told about instead: those of the host, and of making VMs. */
export function isOfHost(first: string): boolean {
  return first === 'create' || first === 'edit' || (places.find((place) => place.path === first)?.isOfHost ?? false);
}

export function labelOf(first: string): string {
  return places.find((place) => place.path === first)?.label ?? 'Xylem';
}

/** `the tag a`, or `one of the tags a, b`. */
export function tagWords(tags: readonly string[]): string {
  return tags.length === 1 ? `the tag ${tags[0]}` : `one of the tags ${tags.join(', ')}`;
}
