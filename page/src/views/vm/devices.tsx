import { Index, Show, createMemo, createSignal } from 'solid-js';
import { request } from '../../api/client';
import { model } from '../../api/live';
import { poll } from '../../api/polled';
import { may } from '../../api/session';
import { deviceLines } from '../../model/devices';
import { devicesOf } from '../../model/store';
import type { BlockRow, Device, NetworkRow, Vm } from '../../model/types';
import { link } from '../../router';
import { Empty, Problem } from '../../ui/notice';
import { State } from '../../ui/state';
import { Attach, Detach, DetachButton, canDetach } from './plug';

export function Devices(props: { vm: Vm }) {
  const devices = createMemo(() => devicesOf(model('device'), props.vm.uuid));
  const targets = (): { targets: string[] } => ({ targets: [props.vm.uuid] });
  // Only a domain has frontends.
  const rows = poll(async (signal) => {
    if (props.vm.domid === null) return { blocks: [], networks: [] };
    const [blocks, networks] = await Promise.all([
      request<BlockRow[]>('block-list', targets(), 'blocks', signal),
      request<NetworkRow[]>('network-list', targets(), 'networks', signal),
    ]);
    return { blocks, networks };
  }, 4000);
  const lines = createMemo(() => {
    const known = props.vm.domid === null ? undefined : rows.value();
    return deviceLines(devices(), known?.blocks ?? [], known?.networks ?? []);
  });
  const [error, setError] = createSignal<string | null>(null);
  // Not in its row: rows come and go while somebody reads the question.
  const [asked, setAsked] = createSignal<Device | null>(null);
  const canPlug = (): boolean => may('admin') && props.vm.domid !== null;
  return (
    <section class="section" aria-labelledby="devices-title">
      <h2 id="devices-title">
        Devices <span class="badge num">{lines().length}</span>
      </h2>
      <Show when={lines().length > 0} fallback={<Empty>None.</Empty>}>
        <div class="scroll" tabindex="0" role="region" aria-labelledby="devices-title">
          <table>
            <thead>
              <tr>
                <th>Kind</th>
                <th class="num">Number</th>
                <th>Name</th>
                <th>Configuration</th>
                <th>State</th>
                <th>Frontend</th>
                <th>Backend</th>
                <th>Operation</th>
                <Show when={canPlug()}>
                  <th>
                    <span class="hidden">Action</span>
                  </th>
                </Show>
              </tr>
            </thead>
            <tbody>
              <Index each={lines()}>
                {(line) => (
                  <tr>
                    <td>{line().device.kind}</td>
                    <td class="num">{line().device.devid}</td>
                    <td>{line().device.name ?? '–'}</td>
                    <td class="wrap">
                      <code>{line().device.config}</code>
                    </td>
                    <td>
                      <State state={line().device.state} />
                    </td>
                    <td>{line().frontend}</td>
                    <td>{line().backend}</td>
                    <td>
                      <Show when={line().device.operation} fallback="–">
                        {(id) => <a href={link('operations', String(id()))}>{id()}</a>}
                      </Show>
                    </td>
                    <Show when={canPlug()}>
                      <td class="num">
                        <Show when={canDetach(line().device)}>
                          <DetachButton device={line().device} onAsk={setAsked} />
                        </Show>
                      </td>
                    </Show>
                  </tr>
                )}
              </Index>
            </tbody>
          </table>
        </div>
      </Show>
      <Show when={asked()} keyed>
        {(device) => <Detach vm={props.vm} device={device} onError={setError} onClose={() => setAsked(null)} />}
      </Show>
      <Show when={error()}>{(words) => <Problem>{words()}</Problem>}</Show>
      <Show when={canPlug()}>
        <Attach vm={props.vm} />
      </Show>
    </section>
  );
}
