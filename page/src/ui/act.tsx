import { For, Show, createSignal } from 'solid-js';
import { run } from '../api/jobs';
import { may } from '../api/session';
import { actions, canDo, warnings, type Action } from '../model/actions';
import { count } from '../model/format';
import type { Vm } from '../model/types';
import { Dialog } from './dialog';

/** Buttons for what can be done with these VMs now. What can lose something is asked first. */
export function Actions(props: { vms: readonly Vm[]; withCounts?: boolean }) {
  const [asked, setAsked] = createSignal<{ action: Action; vms: readonly Vm[] } | null>(null);
  const offered = () =>
    may('operator')
      ? actions
          .map((action) => ({ action, vms: props.vms.filter((vm) => canDo(action, vm)) }))
          .filter((offer) => offer.vms.length > 0)
      : [];
  const begin = (action: Action, vms: readonly Vm[]): void => {
    if (action.lost === undefined) run(action, vms);
    else setAsked({ action, vms });
  };
  return (
    <>
      <div class="actions" role="group" aria-label="Actions">
        <For each={actions}>
          {(action) => {
            const offer = () => offered().find((it) => it.action === action);
            return (
              <Show when={offer()}>
                {(it) => (
                  <button
                    type="button"
                    class="button"
                    classList={{ danger: action.isDanger }}
                    onClick={() => begin(action, it().vms)}
                  >
                    {action.label}
                    <Show when={props.withCounts}>
                      <span class="num"> {it().vms.length}</span>
                    </Show>
                  </button>
                )}
              </Show>
            );
          }}
        </For>
      </div>
      <Show when={asked()} keyed>
        {(it) => (
          <Dialog
            title={it.vms.length === 1 ? `${it.action.label} ${it.vms[0]?.name}?` : `${it.action.label} ${it.vms.length} VMs?`}
            yes={it.vms.length === 1 ? it.action.label : `${it.action.label} ${count(it.vms.length, 'VM')}`}
            isDanger={it.action.isDanger}
            onYes={() => run(it.action, it.vms)}
            onClose={() => setAsked(null)}
          >
            <Show when={it.vms.length > 1}>
              <p class="names">
                {it.vms
                  .slice(0, 20)
                  .map((vm) => vm.name)
                  .join(', ')}
                {it.vms.length > 20 ? ` and ${it.vms.length - 20} more` : ''}
              </p>
            </Show>
            <For each={warnings(it.action, it.vms)}>{(line) => <p>{line}</p>}</For>
          </Dialog>
        )}
      </Show>
    </>
  );
}
