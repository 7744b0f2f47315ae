// What the first view says of the host.
import type { Domain, DomainRow, Host, Limits, Operation } from './types';

export interface MemoryUse {
  totalKib: number;
  freeKib: number;
  domain0Kib: number;
  managedKib: number;
  foreignKib: number;
}

export function memoryUse(host: Host, domains: readonly DomainRow[]): MemoryUse {
  let domain0Kib = 0;
  let managedKib = 0;
  let foreignKib = 0;
  for (const row of domains) {
    if (row.domid === 0) domain0Kib += row.mem_kib;
    else if (row.managed) managedKib += row.mem_kib;
    else foreignKib += row.mem_kib;
  }
  return { totalKib: host.memory_mib * 1024, freeKib: host.memory_free_mib * 1024, domain0Kib, managedKib, foreignKib };
}

export function foreignDomains(domains: Iterable<Domain>): Domain[] {
  return [...domains].filter((domain) => domain.domid !== 0).sort((a, b) => a.domid - b.domid);
}

export function inProgress(operations: Iterable<Operation>): Operation[] {
  return [...operations].filter((it) => it.ended_ns === null).sort((a, b) => a.started_ns - b.started_ns);
}

/** The latest first. */
export function endedLately(operations: Iterable<Operation>, most: number): Operation[] {
  const ended = [...operations].filter((it) => it.ended_ns !== null);
  return ended.sort((a, b) => (b.ended_ns ?? 0) - (a.ended_ns ?? 0)).slice(0, most);
}

export function failedLately(operations: Iterable<Operation>, most: number): Operation[] {
  return endedLately([...operations].filter((it) => it.failure !== null), most);
}

export interface LimitLine {
  key: keyof Limits;
  label: string;
  effect: string;
}

/** In the order of `xy limits`. */
export const limitLines: readonly LimitLine[] = [
  { key: 'host', label: 'host', effect: 'steps that do work at a time, on the whole host' },
  { key: 'vm', label: 'vm', effect: 'of these, for one VM' },
  { key: 'sr', label: 'sr', effect: 'for one storage: an SR, or the folder or volume group of a disk' },
  { key: 'backend', label: 'backend', effect: 'that create or remove devices of one backend, such as domain 0' },
  { key: 'storage', label: 'storage', effect: 'attaches and detaches of disks, on the whole host' },
  { key: 'domain', label: 'domain', effect: 'domains being created or destroyed' },
  { key: 'scan', label: 'scan', effect: 'scans of SRs' },
  { key: 'change', label: 'change', effect: 'changes of SRs and VDIs; of one SR always one at a time' },
  { key: 'memory', label: 'memory', effect: 'saves and restores, which copy memory' },
  { key: 'send', label: 'send', effect: 'domains that are sent to other hosts' },
  { key: 'receive', label: 'receive', effect: 'domains that come from other hosts' },
];
