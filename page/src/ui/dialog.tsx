import { createSignal, onMount, type JSX } from 'solid-js';

/** A question over the page. Escape and the other button mean no. */
export function Dialog(props: {
  title: string;
  yes: string;
  isDanger?: boolean | undefined;
  onYes: () => void;
  onClose: () => void;
  children: JSX.Element;
}) {
  let dialog: HTMLDialogElement | undefined;
  const [id] = createSignal(`dialog-${Math.random().toString(36).slice(2)}`);
  onMount(() => dialog?.showModal());
  const close = (): void => dialog?.close();
  return (
    <dialog
      ref={dialog}
      class="dialog"
      aria-labelledby={id()}
      onClose={() => props.onClose()}
      onClick={(event) => event.target === dialog && close()}
    >
      <form
        method="dialog"
        onSubmit={(event) => {
          event.preventDefault();
          props.onYes();
          close();
        }}
      >
        <h2 id={id()}>{props.title}</h2>
        {props.children}
        <div class="dialog-buttons">
          <button type="button" class="button" autofocus onClick={close}>
            Cancel
          </button>
          <button type="submit" class="button" classList={{ danger: props.isDanger, primary: !props.isDanger }}>
            {props.yes}
          </button>
        </div>
      </form>
    </dialog>
  );
}
