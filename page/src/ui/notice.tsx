import { Show, createSignal, onCleanup, type JSX } from 'solid-js';

/** Shown only if it takes longer than a reader notices. */
export function Loading(props: { what: string }) {
  const [isLate, setLate] = createSignal(false);
  const timer = setTimeout(() => setLate(true), 100);
  onCleanup(() => clearTimeout(timer));
  return (
    <Show when={isLate()}>
      <p class="loading" role="status">
        <span class="spinner" aria-hidden="true" />
        Reading {props.what}
      </p>
    </Show>
  );
}

export function Problem(props: { children: JSX.Element }) {
  return (
    <p class="notice notice-bad" role="alert">
      {props.children}
    </p>
  );
}

export function Empty(props: { children: JSX.Element }) {
  return <p class="empty">{props.children}</p>;
}
