// Networks, and the interfaces of VMs on them, for readers.
import { collator } from './filter';
import type { Device, Network, Traffic, Vm } from './types';

/** What a network is, in a word. */
export function networkState(network: Network): string {
  if (!network.exists) return 'not there';
  return network.up ? 'up' : 'down';
}

const kinds: Record<string, string> = {
  bridge: 'bridge of Linux',
  openvswitch: 'bridge of Open vSwitch',
  routed: 'routes from an interface of the host',
  nat: "behind the host's address",
};

export function kindWords(network: Network): string {
  return kinds[network.kind] ?? network.kind;
}

/** Bytes in a second, as the guest sees them. */
export interface Rate {
  received: number;
  sent: number;
}

type Counts = Map<string, { received: number; sent: number }>;

function place(domid: number, devid: number): string {
  return `${domid}/${devid}`;
}

/** Rates from the counters of two moments. Counters begin anew with their interface. */
export class Rates {
  private before: Counts = new Map();
  private beforeMs = 0;
  private now = new Map<string, Rate>();

  take(traffic: Traffic, nowMs: number): void {
    const counts: Counts = new Map();
    for (const it of traffic.vifs) counts.set(place(it.domid, it.devid), { received: it.received_bytes, sent: it.sent_bytes });
    const at = nowMs - traffic.age_ns / 1e6;
    const seconds = (at - this.beforeMs) / 1000;
    // The same counters again say nothing new.
    if (this.beforeMs !== 0 && seconds < 0.5) return;
    const rates = new Map<string, Rate>();
    for (const [key, { received, sent }] of counts) {
      const before = this.before.get(key);
      if (this.beforeMs === 0 || before === undefined || received < before.received || sent < before.sent) continue;
      rates.set(key, { received: (received - before.received) / seconds, sent: (sent - before.sent) / seconds });
    }
    this.before = counts;
    this.beforeMs = at;
    this.now = rates;
  }

  of(domid: number | null | undefined, devid: number): Rate | undefined {
    return domid === null || domid === undefined ? undefined : this.now.get(place(domid, devid));
  }
}

export interface InterfaceLine {
  device: Device;
  vm: Vm | undefined;
  rate: Rate | undefined;
}

/** The interfaces of VMs, of one network or of all, in the order of their VMs' names. */
export function interfaceLines(
  devices: Iterable<Device>,
  vms: ReadonlyMap<string, Vm>,
  rates: Rates,
  network: string | undefined,
  words: readonly string[],
): InterfaceLine[] {
  const lines: InterfaceLine[] = [];
  for (const device of devices) {
    if (device.kind !== 'vif' || (network !== undefined && device.network !== network)) continue;
    const vm = vms.get(device.vm);
    const text = `${vm?.name ?? device.vm} ${device.network ?? ''} ${device.config}`.toLowerCase();
    if (!words.every((word) => text.includes(word))) continue;
    lines.push({ device, vm, rate: rates.of(vm?.domid, device.devid) });
  }
  const name = (line: InterfaceLine): string => line.vm?.name ?? line.device.vm;
  return lines.sort((a, b) => collator.compare(name(a), name(b)) || a.device.devid - b.device.devid);
}

/** What all interfaces on each network pass. */
export function ratesByNetwork(devices: Iterable<Device>, vms: ReadonlyMap<string, Vm>, rates: Rates): Map<string, Rate> {
  const sums = new Map<string, Rate>();
  for (const device of devices) {
    if (device.kind !== 'vif' || device.network === undefined) continue;
    const rate = rates.of(vms.get(device.vm)?.domid, device.devid);
    if (rate === undefined) continue;
    const sum = sums.get(device.network) ?? { received: 0, sent: 0 };
    sums.set(device.network, { received: sum.received + rate.received, sent: sum.sent + rate.sent });
  }
  return sums;
}
