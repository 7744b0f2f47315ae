import { For, Show, createEffect, createMemo, createSignal, on, onCleanup } from 'solid-js';
import { wordsOf } from '../api/client';
import { vms } from '../api/live';
import { poll } from '../api/polled';
import { may } from '../api/session';
import { quota, read, watch } from '../api/store';
import { plainNumber } from '../model/format';
import { accessOf, asPath, changesOf, domidOf, rowsOf, touched, type Below, type Row } from '../model/tree';
import type { Vm } from '../model/types';
import { link, replace, route } from '../router';
import { Meter } from '../ui/meter';
import { Empty, Loading, Problem } from '../ui/notice';

const usual = '/local/domain';
/** Changes are collected for so long before what they touch is read again. */
const collectedMs = 500;
/** A row that has changed is marked for so long. */
const markedMs = 2000;
/** Rows on the page; more are to be found further below. */
const rowsMost = 2000;

export function StoreView() {
  return (
    <div class="view">
      <h1>Store</h1>
      <Show when={may('admin')} fallback={<Empty>For admins: the store has passwords, and names files of the host.</Empty>}>
        <Browser />
      </Show>
    </div>
  );
}

function Browser() {
  const top = createMemo(() => asPath(route().params.path ?? usual) ?? usual);
  const [text, setText] = createSignal(top());
  createEffect(on(top, (path) => setText(path)));
  return (
    <>
      <form
        class="title-line"
        onSubmit={(event) => {
          event.preventDefault();
          const path = asPath(text());
          if (path !== null) replace(['store'], { path });
        }}
      >
        <label class="filter grow">
          <span class="hidden">Path</span>
          <input
            type="search"
            value={text()}
            spellcheck={false}
            aria-invalid={asPath(text()) === null}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
        <button type="submit" class="button" disabled={asPath(text()) === null}>
          Go there
        </button>
      </form>
      <Show when={top()} keyed>
        {(path) => <Tree top={path} />}
      </Show>
    </>
  );
}

function Tree(props: { top: string }) {
  const [known, setKnown] = createSignal<ReadonlyMap<string, Below>>(new Map());
  const [error, setError] = createSignal<string | null>(null);
  const [marked, setMarked] = createSignal<ReadonlySet<string>>(new Set());
  const [follows, setFollows] = createSignal(false);
  const stop = new AbortController();
  onCleanup(() => stop.abort());

  const load = async (path: string): Promise<void> => {
    try {
      const { node, below } = await read(path, stop.signal);
      if (!node) throw new Error(`${path} is not in the store`);
      const before = known().get(path);
      setKnown((all) => new Map(all).set(path, below));
      if (before) mark(changesOf(before.nodes, below.nodes));
      setError(null);
    } catch (thrown) {
      if (stop.signal.aborted) return;
      // One that is gone closes; its parent tells of it.
      if (path === props.top) setError(wordsOf(thrown));
      else close(path);
    }
  };
  const close = (path: string): void => {
    setKnown((all) => new Map([...all].filter(([open]) => open !== path && !open.startsWith(`${path}/`))));
  };
  const mark = (paths: readonly string[]): void => {
    if (paths.length === 0) return;
    setMarked((all) => new Set([...all, ...paths]));
    setTimeout(() => setMarked((all) => new Set([...all].filter((path) => !paths.includes(path)))), markedMs);
  };
  void load(props.top);

  createEffect(() => {
    if (!follows()) return;
    const end = new AbortController();
    const due = new Set<string>();
    const timer = setInterval(() => {
      const paths = [...due];
      due.clear();
      for (const path of paths) void load(path);
    }, collectedMs);
    const tell = (paths: string[]): void => touched(paths, known()).forEach((path) => due.add(path));
    watch(props.top, tell, end.signal).catch((thrown: unknown) => {
      if (end.signal.aborted) return;
      setError(wordsOf(thrown));
      setFollows(false);
    });
    onCleanup(() => {
      end.abort();
      clearInterval(timer);
    });
  });

  const rows = createMemo(() => rowsOf(props.top, known()));
  // Once for all rows: they are many, and VMs change all the time.
  const owners = createMemo(() => new Map(vms().map((vm) => [`${vm.domid ?? ''}`, vm])));
  return (
    <>
      <Show when={domidOf(props.top)} keyed>
        {(domid) => <Used domid={domid} />}
      </Show>
      <div class="title-line">
        <code class="path">{props.top}</code>
        <span class="muted num" role="status">
          {plainNumber(rows().length)} nodes
        </span>
        <span class="grow" />
        <label>
          <input type="checkbox" checked={follows()} onChange={(event) => setFollows(event.currentTarget.checked)} /> Follow changes
        </label>
      </div>
      <Show when={error()}>{(words) => <Problem>{words()}</Problem>}</Show>
      <Show when={known().has(props.top)} fallback={error() ? null : <Loading what="the store" />}>
        <Show when={rows().length > 0} fallback={<Empty>Nothing is below this node.</Empty>}>
          <div class="scroll" tabindex="0" role="region" aria-label="Nodes">
            <table class="store">
              <thead>
                <tr>
                  <th>Node</th>
                  <th>Value</th>
                  <th>Owner</th>
                  <th>Others</th>
                </tr>
              </thead>
              <tbody>
                <For each={rows().slice(0, rowsMost)}>
                  {(row) => (
                    <Node
                      row={row}
                      owner={owners().get(accessOf(row.node.permissions).owner)}
                      isMarked={marked().has(row.node.path)}
                      onToggle={() => (row.isOpen ? close(row.node.path) : void load(row.node.path))}
                    />
                  )}
                </For>
              </tbody>
            </table>
          </div>
          <Show when={rows().length > rowsMost || [...known().values()].some((it) => it.hasMore)}>
            <p class="muted">There are more; go to a node further below.</p>
          </Show>
        </Show>
      </Show>
    </>
  );
}

function Node(props: { row: Row; owner: Vm | undefined; isMarked: boolean; onToggle: () => void }) {
  const access = () => accessOf(props.row.node.permissions);
  return (
    <tr classList={{ changed: props.isMarked }}>
      <td class="node" style={{ '--depth': `${props.row.depth}` }}>
        <Show when={props.row.node.children > 0} fallback={<span class="toggle" aria-hidden="true" />}>
          <button
            type="button"
            class="button quiet toggle"
            aria-expanded={props.row.isOpen}
            aria-label={`${props.row.isOpen ? 'Close' : 'Open'} ${props.row.node.path}`}
            onClick={() => props.onToggle()}
          >
            {props.row.isOpen ? '▾' : '▸'}
          </button>
        </Show>
        <code>{props.row.name}</code>
        <Show when={props.row.node.children > 0}>
          {' '}
          <a class="muted num" href={`${link('store')}?${new URLSearchParams({ path: props.row.node.path })}`}>
            {plainNumber(props.row.node.children)}
            <span class="hidden"> nodes below {props.row.node.path}</span>
          </a>
        </Show>
      </td>
      <td class="wrap">
        <code>{props.row.node.value}</code>
      </td>
      <td>
        <Owner domid={access().owner} vm={props.owner} />
      </td>
      <td>
        {access().others}
        <For each={access().some}>{(words) => <span class="user">{words}</span>}</For>
      </td>
    </tr>
  );
}

function Owner(props: { domid: string; vm: Vm | undefined }) {
  return (
    <Show when={props.vm} fallback={props.domid === '0' ? 'Domain-0' : props.domid}>
      {(it) => <a href={link('vm', it().uuid)}>{it().name}</a>}
    </Show>
  );
}

/** What a domain has in the store, of what it may have. */
function Used(props: { domid: number }) {
  const rows = poll((signal) => quota(props.domid, signal), 5000);
  const limited = createMemo(() => rows.value()?.filter((it) => it.used !== null && (it.limit ?? 0) > 0) ?? []);
  return (
    <Show when={limited().length > 0}>
      <section class="section" aria-label={`What domain ${props.domid} may have`}>
        <div class="cards fill">
          <For each={limited()}>
            {(it) => (
              <Meter label={it.name} value={it.used ?? 0} max={it.limit ?? 1} text={`${plainNumber(it.used ?? 0)} of ${plainNumber(it.limit ?? 0)}`} />
            )}
          </For>
        </div>
      </section>
    </Show>
  );
}
