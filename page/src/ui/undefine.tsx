import { Show, createSignal } from 'solid-js';
import { request, wordsOf } from '../api/client';
import { may } from '../api/session';
import type { Vm } from '../model/types';
import { Dialog } from './dialog';
import { Problem } from './notice';

/** Forgets a VM's definition, after a question. */
export function Undefine(props: { vm: Vm }) {
  const [isAsked, setAsked] = createSignal(false);
  const [error, setError] = createSignal<string | null>(null);
  const run = (): void => {
    setError(null);
    request('undefine', { target: props.vm.uuid }, 'done').catch((thrown: unknown) => setError(wordsOf(thrown)));
  };
  return (
    <Show when={may('admin') && props.vm.defined}>
      <button type="button" class="button danger" onClick={() => setAsked(true)}>
        Undefine
      </button>
      <Show when={error()}>{(words) => <Problem>{words()}</Problem>}</Show>
      <Show when={isAsked()}>
        <Dialog title={`Undefine ${props.vm.name}?`} yes="Undefine" isDanger onYes={run} onClose={() => setAsked(false)}>
          <p>Its configuration is removed from this host, and it does not start with the host any more. Disks stay.</p>
          <Show when={props.vm.domid !== null}>
            <p>Its domain runs on, and once that has ended the VM is gone.</p>
          </Show>
        </Dialog>
      </Show>
    </Show>
  );
}
