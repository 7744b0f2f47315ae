// What can be done with VMs, by state and role, and what is lost by it.
import type { Role, Vm } from './types';

export type ActionName = 'start' | 'shutdown' | 'reboot' | 'pause' | 'unpause' | 'resume' | 'destroy';

export interface Action {
  name: ActionName;
  label: string;
  /** In "Shutting down 3 of 8". */
  doing: string;
  /** Its path in the API. */
  path: string;
  from: readonly string[];
  /** Said before it is done; without, nothing can be lost. */
  lost?: string;
  isDanger?: boolean;
}

export const actions: readonly Action[] = [
  { name: 'start', label: 'Start', doing: 'Starting', path: 'start', from: ['down'] },
  {
    name: 'shutdown',
    label: 'Shut down',
    doing: 'Shutting down',
    path: 'stop',
    from: ['running'],
    lost: 'The guest is asked to shut down. What runs in it ends. Disks stay.',
  },
  {
    name: 'reboot',
    label: 'Reboot',
    doing: 'Rebooting',
    path: 'reboot',
    from: ['running'],
    lost: 'The guest is asked to reboot. What runs in it ends, and it starts again in another domain. Disks stay.',
  },
  { name: 'pause', label: 'Pause', doing: 'Pausing', path: 'pause', from: ['running'] },
  { name: 'unpause', label: 'Unpause', doing: 'Unpausing', path: 'unpause', from: ['paused'] },
  { name: 'resume', label: 'Resume', doing: 'Resuming', path: 'resume', from: ['suspended'] },
  {
    name: 'destroy',
    label: 'Destroy',
    doing: 'Destroying',
    path: 'destroy',
    from: ['starting', 'running', 'paused', 'suspended', 'stopping', 'preserved', 'stuck'],
    lost: 'Its memory is lost, and so is what the guest has not written to its disks yet. The guest is not asked. Disks stay.',
    isDanger: true,
  },
];

const ranks: Record<Role, number> = { viewer: 0, operator: 1, admin: 2 };

export function allows(role: Role | undefined, needed: Role): boolean {
  return role !== undefined && ranks[role] >= ranks[needed];
}

export function canDo(action: Action, vm: Vm): boolean {
  return action.from.includes(vm.state);
}

/** A VM that exists only while it runs is gone for good when it ends. */
export function isGoneAfter(action: Action, vm: Vm): boolean {
  return !vm.defined && (action.name === 'destroy' || action.name === 'shutdown');
}

/** What is said in the dialog, a sentence each. */
export function warnings(action: Action, vms: readonly Vm[]): string[] {
  const said = action.lost === undefined ? [] : [action.lost];
  const gone = vms.filter((vm) => isGoneAfter(action, vm)).length;
  if (gone > 0) {
    const which = gone === vms.length ? (gone === 1 ? 'It is' : 'They are') : `${gone} of them are`;
    said.push(`${which} not defined: nothing of the configuration is kept on this host.`);
  }
  return said;
}
