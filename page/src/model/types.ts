// The JSON of xylem-web, as far as the page reads it.

export type VmState = 'starting' | 'running' | 'paused' | 'stopping' | 'preserved' | 'stuck' | 'down' | (string & {});

export interface VmSizes {
  kind: string;
  memory_mib: number;
  memory_max_mib: number;
  vcpus: number;
  vcpus_max: number;
}

export interface Vm {
  uuid: string;
  name: string;
  state: VmState;
  reason?: string;
  domid: number | null;
  defined: boolean;
  autostart: number | null;
  config: VmSizes | null;
  operations?: number[];
}

export interface Device {
  vm: string;
  kind: string;
  devid: number;
  name?: string;
  config: string;
  state: string;
  /** Of an interface, if its network is one of this host. */
  network?: string;
  operation?: number;
  frontend_state?: number;
  backend_state?: number;
}

export interface Domain {
  domid: number;
  name: string | null;
  uuid: string;
}

/** A line of `xy operations`; times are nanoseconds since the start of xylemd. */
export interface OperationRow {
  id: number;
  what: string;
  vm: string;
  started_ns: number;
  ended_ns: number | null;
  failure: string | null;
  steps: number;
  done: number;
}

export interface Operation extends OperationRow {
  uuid: string;
  started_unix_ms: number;
  waits_for?: string[];
}

export interface Step {
  name: string;
  stage: string;
  ready_ns: number;
  started_ns: number;
  ended_ns: number | null;
  waited_for: string | null;
  failed: boolean;
}

export interface Trace {
  now_ns: number;
  uuid: string;
  operation: OperationRow;
  steps: Step[];
  cost?: Cost;
}

export interface Cost {
  hypercalls: Record<string, number>;
  store_messages: number;
  store_round_trips: number;
  transactions: number;
  conflicts: number;
}

export interface Sr {
  name: string;
  kind: string;
  config: Record<string, string>;
  in_use: number;
  vdis: number | null;
  bytes: number | null;
  free_bytes: number | null;
  problem?: string | null;
}

export interface Network {
  name: string;
  kind: string;
  exists: boolean;
  up: boolean;
  mtu: number | null;
  ports: string[];
  interfaces: number;
}

export interface Host {
  name: string;
  kernel: string;
  xen_version: string;
  cpus: number;
  memory_mib: number;
  memory_free_mib: number;
  booted_unix_ms: number;
}

/** What interfaces have passed, since they were plugged. */
export interface Traffic {
  age_ns: number;
  vifs: { domid: number; devid: number; received_bytes: number; sent_bytes: number }[];
}

export interface Vdi {
  sr: string;
  name: string;
  bytes: number;
  used_bytes: number | null;
  snapshot_of: string | null;
  users: { owner: string; access: string; active: boolean; device: string | null }[];
}

export interface DomainRow {
  name: string | null;
  domid: number;
  uuid: string;
  kind: string;
  mem_kib: number;
  mem_max_kib: number;
  vcpus_online: number;
  cpu_time_ns: number;
  managed: boolean;
  started_unix_s: number | null;
}

export interface Limits {
  host: number;
  vm: number;
  sr: number;
  backend: number;
  storage: number | null;
  domain: number | null;
  scan: number | null;
  change: number | null;
  memory: number | null;
  send: number | null;
  receive: number | null;
  waiting: number;
  under_way: number;
}

export interface StateChange {
  revision: number;
  unix_ms: number;
  vm: string;
  uuid: string;
  domid: number | null;
  before: string;
  after: string;
  reason: string;
}

export interface StateChanges {
  revision: number;
  too_old: boolean;
  changes: StateChange[];
}

export interface BlockRow {
  vdev: number;
  backend_domid: number;
  frontend_domid: number;
  state: number;
  backend_path: string;
}

export interface NetworkRow {
  devid: number;
  backend_domid: number;
  mac: string;
  state: number;
  backend_path: string;
}

export interface Checked {
  faults: string[];
  warnings: string[];
}

export type Role = 'viewer' | 'operator' | 'admin';

export interface Session {
  who: string;
  role: Role;
  expires_unix_s: number;
  /** Of the VMs that one is limited to. */
  tags?: string[];
}

export interface Health {
  release: string;
  daemon: { release: string; pid: number } | null;
  /** Whether one may log in by a provider of OpenID Connect. */
  oidc?: boolean;
}

export interface Task {
  id: string;
  what: string;
  who: string;
  started_unix_ms: number;
  ended_unix_ms: number | null;
  status: 'pending' | 'success' | 'failure' | 'cancelled';
  detail: string | null;
}

export interface History {
  from: number;
  step: number;
  series: Record<string, (number | null)[]>;
}

export interface ObjectsByClass {
  vm: Vm;
  device: Device;
  domain: Domain;
  operation: Operation;
  sr: Sr;
  vdi: Vdi;
  network: Network;
  host: Host;
}

export type ClassName = keyof ObjectsByClass;

export interface Change {
  revision: number;
  key: string;
  class: string;
  object: unknown;
}
