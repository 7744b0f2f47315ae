import { For, Show, createEffect, createMemo, onCleanup, onMount, type JSX } from 'solid-js';
import { link as liveLink, linkDetail, operations, vms } from '../api/live';
import { isLimited, logOut, session } from '../api/session';
import { labelOf, placesFor } from '../model/places';
import { link, route } from '../router';
import { Jobs } from './jobs';
import { setTheme, theme, type Theme } from './theme';

export function Shell(props: { children: JSX.Element }) {
  const running = createMemo(() => operations().filter((operation) => operation.ended_ns === null).length);
  const here = () => {
    const first = route().path[0] ?? '';
    return first === 'vm' || first === 'create' || first === 'edit' ? 'vms' : first;
  };
  const count = (path: string): number | null => (path === 'vms' ? vms().length : path === 'operations' ? running() : null);
  let main: HTMLElement | undefined;
  createEffect(() => {
    document.title = `${isLimited() && here() === '' ? 'Your VMs' : labelOf(here())} – Xylem`;
  });
  onMount(() => document.addEventListener('keydown', focusFilter));
  onCleanup(() => document.removeEventListener('keydown', focusFilter));
  return (
    <>
      <a
        class="skip"
        href="#content"
        onClick={(event) => {
          event.preventDefault();
          main?.focus();
        }}
      >
        Skip to the content
      </a>
      <header class="top">
        <a class="brand" href={link()} aria-label={isLimited() ? 'Xylem: your VMs' : 'Xylem: host'}>
          <img src="./icon.svg" alt="" width="20" height="20" />
          <span>Xylem</span>
        </a>
        <nav aria-label="Views">
          <For each={placesFor(session())}>
            {(place) => (
              <a href={link(...(place.path === '' ? [] : [place.path]))} aria-current={here() === place.path ? 'page' : undefined}>
                {place.label}
                <Show when={count(place.path)}>{(n) => <span class="badge num">{n()}</span>}</Show>
              </a>
            )}
          </For>
        </nav>
        <div class="who">
          <label>
            <span class="hidden">Theme</span>
            <select value={theme()} onChange={(event) => setTheme(event.currentTarget.value as Theme)}>
              <option value="system">Theme: system</option>
              <option value="light">Theme: light</option>
              <option value="dark">Theme: dark</option>
            </select>
          </label>
          <span class="who-name">
            {session()?.who} <span class="muted">({session()?.role})</span>
          </span>
          <button type="button" class="button quiet" onClick={() => void logOut().catch(() => undefined)}>
            Log out
          </button>
        </div>
      </header>
      <Banner />
      <main id="content" ref={main} tabindex="-1">
        {props.children}
      </main>
      <Jobs />
    </>
  );
}

/** A slash goes to the filter of the view, if it has one. */
function focusFilter(event: KeyboardEvent): void {
  const target = event.target as HTMLElement;
  if (event.key !== '/' || event.ctrlKey || event.metaKey || event.altKey) return;
  if (target.closest('input, textarea, select, dialog, .console, .screen')) return;
  const filter = document.querySelector<HTMLInputElement>('main input[type=search]');
  if (!filter) return;
  event.preventDefault();
  filter.focus();
  filter.select();
}

function Banner() {
  const words = () => {
    if (liveLink() === 'offline') return `${linkDetail() || 'xylemd does not answer'}. What is shown may be old.`;
    if (liveLink() === 'lost') return 'xylem-web does not answer. What is shown may be old. Trying again.';
    return null;
  };
  return (
    <Show when={words()}>
      {(text) => (
        <p class="banner" role="alert">
          {text()}
        </p>
      )}
    </Show>
  );
}
