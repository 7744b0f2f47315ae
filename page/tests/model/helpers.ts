import type { Operation, Step, Trace, Vm } from '../../src/model/types';

export function vm(name: string, more: Partial<Vm> = {}): Vm {
  return { uuid: `${name}-uuid`, name, state: 'running', domid: 1, defined: true, autostart: null, config: null, ...more };
}

export function operation(id: number, more: Partial<Operation> = {}): Operation {
  return {
    id,
    what: 'start',
    vm: `vm-${id}`,
    uuid: `uuid-${id}`,
    started_ns: 0,
    ended_ns: 100,
    failure: null,
    steps: 2,
    done: 2,
    started_unix_ms: 0,
    ...more,
  };
}

export function step(more: Partial<Step> = {}): Step {
  return { name: 'build', stage: 'build', ready_ns: 0, started_ns: 0, ended_ns: 50, waited_for: null, failed: false, ...more };
}

export function trace(of: Operation, steps: Step[], nowNs = 1000): Trace {
  return { now_ns: nowNs, uuid: of.uuid, operation: of, steps };
}
