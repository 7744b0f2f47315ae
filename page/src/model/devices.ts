// A VM's devices with what their frontends say.
import type { BlockRow, Device, NetworkRow } from './types';

const xenbusStates = ['Unknown', 'Initialising', 'InitWait', 'Initialised', 'Connected', 'Closing', 'Closed', 'Reconfiguring', 'Reconfigured'];

export function xenbusState(n: number | null | undefined): string {
  return n === null || n === undefined ? '–' : (xenbusStates[n] ?? String(n));
}

export interface DeviceLine {
  device: Device;
  frontend: string;
  /** Of domain 0 or a driver domain. */
  backend: string;
}

export function deviceLines(devices: readonly Device[], blocks: readonly BlockRow[], networks: readonly NetworkRow[]): DeviceLine[] {
  return devices.map((device) => {
    const row =
      device.kind === 'vbd'
        ? blocks.find((it) => it.vdev === device.devid)
        : device.kind === 'vif'
          ? networks.find((it) => it.devid === device.devid)
          : undefined;
    const state = device.frontend_state ?? row?.state;
    const domain = row === undefined ? '' : row.backend_domid === 0 ? 'domain 0' : `domain ${row.backend_domid}`;
    const backend = device.backend_state === undefined ? domain : `${xenbusState(device.backend_state)} ${domain}`.trim();
    return { device, frontend: xenbusState(state), backend: backend || '–' };
  });
}
