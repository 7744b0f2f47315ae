import { Show, createSignal, onCleanup, onMount } from 'solid-js';
import { socketAddress } from '../../api/socket';
import type { Vm } from '../../model/types';
import { Problem } from '../../ui/notice';
import { openTerminal } from '../../ui/terminal';

type Kind = 'primary' | 'pv' | 'serial';

export function Console(props: { vm: Vm }) {
  const [kind, setKind] = createSignal<Kind>('primary');
  const [state, setState] = createSignal<'connecting' | 'open' | 'closed'>('connecting');
  const [why, setWhy] = createSignal('');
  let place: HTMLDivElement | undefined;
  let close: (() => void) | undefined;

  const connect = (): void => {
    close?.();
    if (!place) return;
    setState('connecting');
    const query = kind() === 'primary' ? '' : `?kind=${kind()}`;
    const socket = new WebSocket(socketAddress(`/v1/vms/${encodeURIComponent(props.vm.uuid)}/console${query}`), []);
    socket.binaryType = 'arraybuffer';
    const terminal = openTerminal(place, (data) => {
      if (socket.readyState === WebSocket.OPEN) socket.send(data);
    });
    socket.addEventListener('open', () => {
      setState('open');
      terminal.focus();
    });
    socket.addEventListener('message', (event: MessageEvent<ArrayBuffer | string>) => {
      terminal.write(typeof event.data === 'string' ? event.data : new Uint8Array(event.data));
    });
    socket.addEventListener('close', (event) => {
      if (close !== mine) return;
      setWhy(event.reason);
      setState('closed');
    });
    const mine = (): void => {
      close = undefined;
      socket.close();
      terminal.dispose();
    };
    close = mine;
  };
  onMount(connect);
  onCleanup(() => close?.());
  return (
    <section class="section" aria-label="Console">
      <div class="panel-bar">
        <Show when={props.vm.config?.kind === 'hvm'}>
          <label>
            <span class="hidden">Console</span>
            <select
              value={kind()}
              onChange={(event) => {
                setKind(event.currentTarget.value as Kind);
                connect();
              }}
            >
              <option value="primary">Primary console</option>
              <option value="serial">Serial port</option>
              <option value="pv">PV console</option>
            </select>
          </label>
        </Show>
        <span class="muted" role="status">
          {state() === 'open' ? 'Connected. Shift+Tab leaves the console.' : state() === 'connecting' ? 'Connecting' : 'Not connected'}
        </span>
        <Show when={state() === 'closed'}>
          <button type="button" class="button small" onClick={connect}>
            Connect again
          </button>
        </Show>
      </div>
      <Show when={state() === 'closed'}>
        <Problem>{why() || 'The console was closed. It may be that the VM has none, or that it has stopped.'}</Problem>
      </Show>
      <div class="console" ref={place} />
    </section>
  );
}
