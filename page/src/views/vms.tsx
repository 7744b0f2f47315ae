import { For, Show, createEffect, createMemo, createSignal, on, onCleanup } from 'solid-js';
import { isCurrent, vms } from '../api/live';
import { isLimited, may } from '../api/session';
import { countStates, everything, fromParams, select, toParams, type Query } from '../model/filter';
import { plainNumber } from '../model/format';
import { link, replace, route } from '../router';
import { Actions } from '../ui/act';
import { Empty, Loading } from '../ui/notice';
import { State } from '../ui/state';
import { VmGrid } from '../ui/vm-grid';

const addressMs = 250;

export function VmsView() {
  const [query, setQuery] = createSignal<Query>(fromParams(route().params));
  const [chosen, setChosen] = createSignal<ReadonlySet<string>>(new Set());
  const found = createMemo(() => select(vms(), query()));
  const states = createMemo(() => countStates(vms()));
  const chosenVms = createMemo(() => vms().filter((vm) => chosen().has(vm.uuid)));
  let grid: HTMLElement | undefined;

  // The address follows the query, a moment later, and the query an address from elsewhere.
  createEffect(
    on(query, (now) => {
      const timer = setTimeout(() => replace(['vms'], toParams(now)), addressMs);
      onCleanup(() => clearTimeout(timer));
    }, { defer: true }),
  );
  createEffect(
    on(route, (now) => {
      if (now.path[0] === 'vms') setQuery((old) => (same(old, fromParams(now.params)) ? old : fromParams(now.params)));
    }, { defer: true }),
  );

  const toggleState = (state: string): void => {
    setQuery((now) => ({
      ...now,
      states: now.states.includes(state) ? now.states.filter((it) => it !== state) : [...now.states, state],
    }));
  };
  return (
    <div class="view view-full">
      <div class="title-line">
        <h1>VMs</h1>
        <span class="muted num" role="status">
          {found().length === vms().length
            ? plainNumber(vms().length)
            : `${plainNumber(found().length)} of ${plainNumber(vms().length)}`}
        </span>
        <span class="grow" />
        <Show when={may('admin') && !isLimited()}>
          <a class="button" href={link('create')}>
            Create a VM
          </a>
        </Show>
      </div>
      <div class="tools">
        <label class="filter">
          <span class="hidden">Filter by name, UUID, state, type or domid</span>
          <input
            type="search"
            placeholder="Filter: name, UUID, state, type, domid"
            value={query().text}
            spellcheck={false}
            autocomplete="off"
            onInput={(event) => setQuery({ ...query(), text: event.currentTarget.value })}
            onKeyDown={(event) => {
              if (event.key !== 'ArrowDown' && event.key !== 'Enter') return;
              event.preventDefault();
              grid?.focus();
            }}
          />
          <kbd aria-hidden="true">/</kbd>
        </label>
        <div class="chips" role="group" aria-label="States">
          <For each={[...states()]}>
            {([state, n]) => (
              <button type="button" class="chip" aria-pressed={query().states.includes(state)} onClick={() => toggleState(state)}>
                <State state={state} /> <span class="num muted">{plainNumber(n)}</span>
              </button>
            )}
          </For>
        </div>
      </div>
      <Show when={chosenVms().length > 0}>
        <div class="chosen">
          <strong class="num">{plainNumber(chosenVms().length)} selected</strong>
          <Actions vms={chosenVms()} withCounts />
          <button type="button" class="button quiet" onClick={() => setChosen(new Set<string>())}>
            Clear
          </button>
        </div>
      </Show>
      <Show when={isCurrent() || vms().length > 0} fallback={<Loading what="VMs" />}>
        <Show
          when={found().length > 0}
          fallback={
            <Empty>
              {vms().length === 0 ? 'There are no VMs.' : 'No VM is like that. '}
              <Show when={vms().length > 0}>
                <button type="button" class="button small" onClick={() => setQuery(everything)}>
                  Show all
                </button>
              </Show>
            </Empty>
          }
        >
          <VmGrid
            ref={(element) => (grid = element)}
            vms={found()}
            query={query()}
            onQuery={setQuery}
            chosen={chosen()}
            onChosen={setChosen}
          />
        </Show>
      </Show>
    </div>
  );
}

function same(a: Query, b: Query): boolean {
  return JSON.stringify(a) === JSON.stringify(b);
}
