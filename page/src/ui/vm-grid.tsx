import { Index, Show, createEffect, createMemo, createSignal, onCleanup, onMount } from 'solid-js';
import { model } from '../api/live';
import { may } from '../api/session';
import type { Query, SortKey } from '../model/filter';
import { mib } from '../model/format';
import { coverage, extended, moved, toggled } from '../model/selection';
import type { Vm } from '../model/types';
import { scrollFor, windowOf } from '../model/virtual';
import { go, link } from '../router';
import { isNarrow } from './media';
import { State } from './state';

const columns: readonly { key: SortKey; label: string; isNumber?: boolean }[] = [
  { key: 'name', label: 'Name' },
  { key: 'state', label: 'State' },
  { key: 'domid', label: 'Domid', isNumber: true },
  { key: 'kind', label: 'Type' },
  { key: 'vcpus', label: 'vCPUs', isNumber: true },
  { key: 'memory', label: 'Memory', isNumber: true },
];

/** As in the style. */
const headHeight = 30;

/** The list of VMs: only the lines in view are in the document. */
export function VmGrid(props: {
  ref: (element: HTMLElement) => void;
  vms: readonly Vm[];
  query: Query;
  onQuery: (query: Query) => void;
  chosen: ReadonlySet<string>;
  onChosen: (chosen: ReadonlySet<string>) => void;
}) {
  const rowHeight = () => (isNarrow() ? 52 : 32);
  const [scrollTop, setScrollTop] = createSignal(0);
  const [height, setHeight] = createSignal(600);
  const [active, setActive] = createSignal<string | null>(null);
  const canChoose = () => may('operator');
  const uuids = createMemo(() => props.vms.map((vm) => vm.uuid));
  const shown = createMemo(() => windowOf(scrollTop(), height(), rowHeight(), props.vms.length));
  const rows = createMemo(() => props.vms.slice(shown().first, shown().end));
  const activeIndex = createMemo(() => {
    const uuid = active();
    return uuid === null ? -1 : uuids().indexOf(uuid);
  });
  const isActiveShown = (): boolean => activeIndex() >= shown().first && activeIndex() < shown().end;
  let body: HTMLDivElement | undefined;
  let anchor: string | null = null;

  onMount(() => {
    if (!body) return;
    const observer = new ResizeObserver(() => setHeight((body?.clientHeight ?? 600) - headHeight));
    observer.observe(body);
    onCleanup(() => observer.disconnect());
  });
  // Another order or another filter begins at the top.
  createEffect<string>((before) => {
    const now = JSON.stringify(props.query);
    if (before !== undefined && before !== now && body) body.scrollTop = 0;
    return now;
  });

  const goTo = (index: number): void => {
    const uuid = uuids()[index];
    if (uuid === undefined || !body) return;
    setActive(uuid);
    body.scrollTop = scrollFor(index, body.scrollTop, height(), rowHeight());
  };
  const onKey = (event: KeyboardEvent): void => {
    if (event.altKey) return;
    if ((event.ctrlKey || event.metaKey) && event.key === 'a' && canChoose()) {
      event.preventDefault();
      props.onChosen(new Set(uuids()));
      return;
    }
    if (event.ctrlKey || event.metaKey) return;
    const isOnControl = event.target !== body;
    if (isOnControl && (event.key === ' ' || event.key === 'Enter')) return;
    const to = moved(event.key, activeIndex(), props.vms.length, Math.floor(height() / rowHeight()) - 1);
    const uuid = active();
    if (to !== null) {
      event.preventDefault();
      if (event.shiftKey && canChoose()) {
        anchor ??= uuid ?? uuids()[to] ?? null;
        const target = uuids()[to];
        if (target) props.onChosen(extended(props.chosen, uuids(), anchor, target));
      } else {
        anchor = null;
      }
      goTo(to);
    } else if (event.key === ' ' && uuid !== null && canChoose()) {
      event.preventDefault();
      props.onChosen(toggled(props.chosen, uuid));
    } else if (event.key === 'Enter' && uuid !== null) {
      go('vm', uuid);
    } else if (event.key === 'Escape' && props.chosen.size > 0) {
      props.onChosen(new Set());
    }
  };
  const choose = (vm: Vm, event: MouseEvent): void => {
    setActive(vm.uuid);
    if (event.shiftKey && anchor !== null) props.onChosen(extended(props.chosen, uuids(), anchor, vm.uuid));
    else props.onChosen(toggled(props.chosen, vm.uuid));
    anchor = vm.uuid;
  };
  const sortBy = (key: SortKey): void => {
    const isSame = props.query.sort === key;
    props.onQuery({ ...props.query, sort: key, descending: isSame && !props.query.descending });
  };
  const sortOf = (key: SortKey): 'ascending' | 'descending' | 'none' =>
    props.query.sort !== key ? 'none' : props.query.descending ? 'descending' : 'ascending';
  const all = createMemo(() => coverage(props.chosen, uuids()));

  return (
    <div
      ref={(element) => {
        body = element;
        props.ref(element);
      }}
      class="grid"
      role="grid"
      tabindex="0"
      aria-label="VMs: arrows move, Space selects, Enter opens"
      aria-rowcount={props.vms.length + 1}
      aria-multiselectable={canChoose()}
      aria-activedescendant={isActiveShown() ? `vm-${active()}` : undefined}
      onScroll={(event) => setScrollTop(event.currentTarget.scrollTop)}
      onKeyDown={onKey}
      onFocus={(event) => event.target === body && activeIndex() < 0 && goTo(Math.floor(scrollTop() / rowHeight()))}
    >
      <div class="grid-head" role="row" aria-rowindex="1">
        <span role="columnheader" class="cell-check">
          <Show when={canChoose()} fallback={<span class="hidden">Selected</span>}>
            <input
              type="checkbox"
              aria-label="Select all that are listed"
              checked={all() === 'all'}
              prop:indeterminate={all() === 'some'}
              onChange={() => props.onChosen(all() === 'all' ? new Set() : new Set(uuids()))}
            />
          </Show>
        </span>
        <Index each={columns}>
          {(column) => (
            <span role="columnheader" class={`cell-${column().key}`} aria-sort={sortOf(column().key)}>
              <button type="button" onClick={() => sortBy(column().key)}>
                {column().label}
                <span class="arrow" aria-hidden="true">
                  {sortOf(column().key) === 'none' ? '' : props.query.descending ? '↓' : '↑'}
                </span>
              </button>
            </span>
          )}
        </Index>
        <span role="columnheader" class="cell-defined">
          Defined
        </span>
        <span role="columnheader" class="cell-work">
          Operation
        </span>
      </div>
      <div class="grid-space" role="rowgroup" style={{ height: `${props.vms.length * rowHeight()}px` }}>
          <Index each={rows()}>
            {(vm, index) => (
              <Row
                vm={vm()}
                index={shown().first + index}
                top={(shown().first + index) * rowHeight()}
                isActive={active() === vm().uuid}
                isChosen={props.chosen.has(vm().uuid)}
                canChoose={canChoose()}
                onChoose={(event) => choose(vm(), event)}
                onActive={() => setActive(vm().uuid)}
              />
            )}
          </Index>
      </div>
    </div>
  );
}

function Row(props: {
  vm: Vm;
  index: number;
  top: number;
  isActive: boolean;
  isChosen: boolean;
  canChoose: boolean;
  onChoose: (event: MouseEvent) => void;
  onActive: () => void;
}) {
  return (
    <div
      id={`vm-${props.vm.uuid}`}
      class="grid-row"
      classList={{ active: props.isActive, selected: props.isChosen }}
      role="row"
      aria-rowindex={props.index + 2}
      aria-selected={props.canChoose ? props.isChosen : undefined}
      style={{ transform: `translateY(${props.top}px)` }}
      onClick={() => props.onActive()}
    >
      <span role="gridcell" class="cell-check">
        <Show when={props.canChoose}>
          <input
            type="checkbox"
            tabindex="-1"
            aria-label={`Select ${props.vm.name}`}
            checked={props.isChosen}
            onClick={(event) => props.onChoose(event)}
          />
        </Show>
      </span>
      <span role="gridcell" class="cell-name">
        <a href={link('vm', props.vm.uuid)} tabindex="-1" title={props.vm.uuid}>
          {props.vm.name}
        </a>
      </span>
      <span role="gridcell" class="cell-state">
        <State state={props.vm.state} reason={props.vm.reason} />
      </span>
      <span role="gridcell" class="cell-domid num">
        {props.vm.domid ?? ''}
      </span>
      <span role="gridcell" class="cell-kind">
        {props.vm.config?.kind ?? ''}
      </span>
      <span role="gridcell" class="cell-vcpus num">
        {props.vm.config?.vcpus ?? ''}
      </span>
      <span role="gridcell" class="cell-memory num">
        {props.vm.config ? mib(props.vm.config.memory_mib) : ''}
      </span>
      <span role="gridcell" class="cell-defined">
        {!props.vm.defined ? <span class="muted">no</span> : props.vm.autostart === null ? 'yes' : `order ${props.vm.autostart}`}
      </span>
      <span role="gridcell" class="cell-work">
        <Work vm={props.vm} />
      </span>
    </div>
  );
}

/** The operation on a VM, or why it is stuck. */
function Work(props: { vm: Vm }) {
  const operation = createMemo(() => {
    const id = props.vm.operations?.[0];
    return id === undefined ? undefined : model('operation').operation.get(String(id));
  });
  return (
    <Show when={operation()} fallback={<span class="bad">{props.vm.reason}</span>}>
      {(it) => (
        <a href={link('operations', String(it().id))} tabindex="-1">
          {it().what} <span class="num">{`${it().done}/${it().steps}`}</span>{' '}
          <span class="muted">{it().waits_for?.[0]}</span>
        </a>
      )}
    </Show>
  );
}
