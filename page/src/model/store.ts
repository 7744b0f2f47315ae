// The live model: what the server told of, by class and key.
import type { Change, ClassName, Device, Domain, Host, Network, ObjectsByClass, Operation, Sr, Vdi, Vm } from './types';

export interface Model {
  vm: Map<string, Vm>;
  device: Map<string, Device>;
  domain: Map<string, Domain>;
  operation: Map<string, Operation>;
  sr: Map<string, Sr>;
  vdi: Map<string, Vdi>;
  network: Map<string, Network>;
  host: Map<string, Host>;
}

export function emptyModel(): Model {
  return {
    vm: new Map(),
    device: new Map(),
    domain: new Map(),
    operation: new Map(),
    sr: new Map(),
    vdi: new Map(),
    network: new Map(),
    host: new Map(),
  };
}

const known = emptyModel();

function isKnown(name: string): name is ClassName {
  return Object.hasOwn(known, name);
}

/** Applies changes in order; what was touched, by class. Classes of a later server are ignored. */
export function applyChanges(model: Model, changes: readonly Change[]): Set<ClassName> {
  const touched = new Set<ClassName>();
  for (const change of changes) {
    if (!isKnown(change.class)) continue;
    const objects = model[change.class] as Map<string, ObjectsByClass[ClassName]>;
    if (change.object === null || change.object === undefined) objects.delete(change.key);
    else objects.set(change.key, change.object as ObjectsByClass[ClassName]);
    touched.add(change.class);
  }
  return touched;
}

/**
 * Objects seen between a `reset` and the next `current` are a new whole. The old one is shown until that is complete, so a
 * restart of xylemd does not blank the page.
 */
export class Mirror {
  model = emptyModel();
  cursor: string | null = null;
  /** All is known up to `cursor`. */
  isCurrent = false;
  private next: Model | null = null;

  reset(): void {
    this.next = emptyModel();
    this.cursor = null;
  }

  /** What is to be drawn again. */
  change(changes: readonly Change[]): Set<ClassName> {
    const touched = applyChanges(this.next ?? this.model, changes);
    return this.next === null || !this.isCurrent ? touched : new Set();
  }

  /** While nothing was shown yet, what has arrived so far. */
  shown(): Model {
    return this.next !== null && !this.isCurrent ? this.next : this.model;
  }

  /** Whether everything is to be drawn again. */
  current(cursor: string): boolean {
    this.cursor = cursor;
    const isNew = this.next !== null || !this.isCurrent;
    if (this.next !== null) this.model = this.next;
    this.next = null;
    this.isCurrent = true;
    return isNew;
  }
}

export function devicesOf(model: Model, uuid: string): Device[] {
  const prefix = `${uuid}/`;
  const found: Device[] = [];
  for (const [key, device] of model.device) if (device.vm === uuid || key.startsWith(prefix)) found.push(device);
  return found.sort((a, b) => a.kind.localeCompare(b.kind) || a.devid - b.devid);
}

export function operationsOf(model: Model, uuid: string): Operation[] {
  const found: Operation[] = [];
  for (const operation of model.operation.values()) if (operation.uuid === uuid) found.push(operation);
  return found.sort((a, b) => b.id - a.id);
}
