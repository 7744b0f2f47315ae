import { Show, createSignal } from 'solid-js';
import { request, wordsOf } from '../../api/client';
import type { Device, Vm } from '../../model/types';
import { Dialog } from '../../ui/dialog';
import { Problem } from '../../ui/notice';

type Kind = 'disk' | 'interface';

const examples: Record<Kind, string> = { disk: 'SR:VDI,,xvdb,w', interface: 'bridge=xenbr0' };

/** Attaches devices. Any number may be under way: the list of devices shows each. */
export function Attach(props: { vm: Vm }) {
  const [kind, setKind] = createSignal<Kind>('disk');
  const [underWay, setUnderWay] = createSignal(0);
  const [error, setError] = createSignal<string | null>(null);
  const attach = async (text: string): Promise<void> => {
    setUnderWay((n) => n + 1);
    setError(null);
    try {
      const target = props.vm.uuid;
      if (kind() === 'disk') await request('block-attach', { target, disk: text, cwd: '/' }, 'done');
      else await request('network-attach', { target, vif: text }, 'done');
    } catch (thrown) {
      setError(wordsOf(thrown));
    }
    setUnderWay((n) => n - 1);
  };
  const submit = (event: SubmitEvent): void => {
    event.preventDefault();
    const form = event.currentTarget as HTMLFormElement;
    void attach(String(new FormData(form).get('device') ?? ''));
    form.reset();
  };
  return (
    <>
      <form class="panel-bar" onSubmit={submit}>
        <label>
          <span class="hidden">What to attach</span>
          <select value={kind()} onChange={(event) => setKind(event.currentTarget.value as Kind)}>
            <option value="disk">Disk</option>
            <option value="interface">Interface</option>
          </select>
        </label>
        <label class="attach">
          <span class="hidden">Its configuration, as in a file of xl</span>
          <input name="device" placeholder={examples[kind()]} required={kind() === 'disk'} spellcheck={false} autocomplete="off" />
        </label>
        <button type="submit" class="button">
          Attach
        </button>
        <Show when={underWay() > 0}>
          <span class="loading" role="status">
            <span class="spinner" aria-hidden="true" /> {underWay()} under way
          </span>
        </Show>
      </form>
      <Show when={error()}>{(words) => <Problem>{words()}</Problem>}</Show>
    </>
  );
}

/** Whether a device of a running domain can be taken from it here. */
export function canDetach(device: Device): boolean {
  return (device.kind === 'vbd' || device.kind === 'vif') && device.state === 'attached';
}

function nameOf(device: Device): string {
  return device.name ?? `${device.kind} ${device.devid}`;
}

export function DetachButton(props: { device: Device; onAsk: (device: Device) => void }) {
  return (
    <button type="button" class="button small" aria-label={`Detach ${nameOf(props.device)}`} onClick={() => props.onAsk(props.device)}>
      Detach
    </button>
  );
}

/** Asks first. */
export function Detach(props: { vm: Vm; device: Device; onError: (words: string | null) => void; onClose: () => void }) {
  const run = (): void => {
    props.onError(null);
    const target = props.vm.uuid;
    const number = String(props.device.devid);
    const done =
      props.device.kind === 'vbd'
        ? request('block-detach', { target, disk: props.device.name ?? number }, 'done')
        : request('network-detach', { target, vif: number }, 'done');
    done.catch((thrown: unknown) => props.onError(wordsOf(thrown)));
  };
  return (
    <Dialog title={`Detach ${nameOf(props.device)} from ${props.vm.name}?`} yes="Detach" isDanger onYes={run} onClose={props.onClose}>
      <p>
        {props.device.kind === 'vbd'
          ? 'The guest is asked to let go of the disk. Unmount it there first: what was not written to it is lost. The disk itself stays.'
          : 'The guest loses this interface, and its connections over it end.'}
      </p>
    </Dialog>
  );
}
