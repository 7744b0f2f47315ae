import { Show, createSignal, onCleanup, onMount } from 'solid-js';
import { socketAddress } from '../../api/socket';
import type { Vm } from '../../model/types';
import { Problem } from '../../ui/notice';
import { RFB } from '../../ui/rfb';

export function Screen(props: { vm: Vm }) {
  const [state, setState] = createSignal<'connecting' | 'open' | 'closed' | 'password'>('connecting');
  let place: HTMLDivElement | undefined;
  let rfb: RFB | undefined;

  const connect = (): void => {
    rfb?.disconnect();
    if (!place) return;
    setState('connecting');
    const mine = new RFB(place, socketAddress(`/v1/vms/${encodeURIComponent(props.vm.uuid)}/screen`), { wsProtocols: ['binary'] });
    rfb = mine;
    mine.scaleViewport = true;
    mine.background = '#000';
    mine.addEventListener('connect', () => setState('open'));
    mine.addEventListener('credentialsrequired', () => setState('password'));
    mine.addEventListener('disconnect', () => rfb === mine && setState('closed'));
  };
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    const password = new FormData(event.currentTarget as HTMLFormElement).get('password');
    rfb?.sendCredentials({ password: String(password ?? '') });
    setState('connecting');
  };
  onMount(connect);
  onCleanup(() => {
    const last = rfb;
    rfb = undefined;
    last?.disconnect();
  });
  return (
    <section class="section" aria-label="Screen">
      <div class="panel-bar">
        <span class="muted" role="status">
          {state() === 'open' ? 'Connected' : state() === 'connecting' ? 'Connecting' : state() === 'password' ? 'It has a password' : 'Not connected'}
        </span>
        <Show when={state() === 'open'}>
          <button type="button" class="button small" onClick={() => rfb?.sendCtrlAltDel()}>
            Send Ctrl+Alt+Del
          </button>
        </Show>
        <Show when={state() === 'closed'}>
          <button type="button" class="button small" onClick={connect}>
            Connect again
          </button>
        </Show>
      </div>
      <Show when={state() === 'password'}>
        <form class="panel-bar" onSubmit={submit}>
          <label class="field">
            <span>Password of the screen</span>
            <input name="password" type="password" autocomplete="off" required />
          </label>
          <button type="submit" class="button">
            Connect
          </button>
        </form>
      </Show>
      <Show when={state() === 'closed'}>
        <Problem>The screen was closed. It may be that the VM has none, or that it has stopped.</Problem>
      </Show>
      <div class="screen" ref={place} />
    </section>
  );
}
