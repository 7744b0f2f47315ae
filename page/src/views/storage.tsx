import { For, Show, createMemo, createSignal } from 'solid-js';
import { request } from '../api/client';
import { isCurrent, model, srs } from '../api/live';
import { poll } from '../api/polled';
import { wordsOf } from '../model/filter';
import { bytes, plainNumber } from '../model/format';
import { configWords, ownerOf, vdisMatching } from '../model/storage';
import type { Sr, Vdi } from '../model/types';
import { link } from '../router';
import { Meter } from '../ui/meter';
import { Empty, Loading, Problem } from '../ui/notice';

const shownMost = 500;

export function StorageView() {
  const names = createMemo(() => srs().map((sr) => sr.name).sort());
  const vdis = createMemo(() => [...model('vdi').vdi.values()]);
  return (
    <div class="view">
      <h1>Storage</h1>
      <section class="section" aria-labelledby="srs-title">
        <h2 id="srs-title">SRs</h2>
        <Show when={names().length > 0} fallback={<Empty>There are no SRs.</Empty>}>
          <div class="cards fill">
            <For each={names()}>{(name) => <OneSr name={name} />}</For>
          </div>
        </Show>
      </section>
      <Show when={isCurrent() || vdis().length > 0} fallback={<Loading what="the VDIs" />}>
        <Vdis vdis={vdis()} />
      </Show>
    </div>
  );
}

function OneSr(props: { name: string }) {
  const info = poll(async (signal) => {
    const rows = await request<Sr[]>('storage', { do: 'sr-info', name: props.name }, 'srs', signal);
    return rows[0];
  }, 15000);
  const told = createMemo(() => srs().find((it) => it.name === props.name));
  const sr = createMemo(() => info.value() ?? told());
  return (
    <section class="card" aria-label={props.name}>
      <div class="meter-line">
        <strong>{props.name}</strong>
        <span class="muted">{sr()?.kind}</span>
      </div>
      <Show when={info.error() ?? told()?.problem}>{(words) => <Problem>{words()}</Problem>}</Show>
      <Show when={info.value()} fallback={info.isLoading() ? <Loading what="its space" /> : null}>
        {(it) => {
          const used = () => (it().bytes ?? 0) - (it().free_bytes ?? 0);
          return (
            <Show when={it().bytes}>
              {(all) => <Meter label="Used" value={used()} max={all()} text={`${bytes(used())} of ${bytes(all())}`} />}
            </Show>
          );
        }}
      </Show>
      <dl class="facts">
        <dt>VDIs</dt>
        <dd class="num">{sr()?.vdis ?? '–'}</dd>
        <dt>In use</dt>
        <dd class="num">{sr()?.in_use ?? '–'}</dd>
        <Show when={configWords(sr())}>
          {(words) => (
            <>
              <dt>Configuration</dt>
              <dd>
                <code>{words()}</code>
              </dd>
            </>
          )}
        </Show>
      </dl>
    </section>
  );
}

function Vdis(props: { vdis: readonly Vdi[] }) {
  const [text, setText] = createSignal('');
  const found = createMemo(() => vdisMatching(props.vdis, wordsOf(text())));
  return (
    <section class="section" aria-labelledby="vdis-title">
      <div class="title-line">
        <h2 id="vdis-title">VDIs</h2>
        <span class="muted num">{plainNumber(found().length)}</span>
        <span class="grow" />
        <label class="filter">
          <span class="hidden">Filter VDIs by name</span>
          <input
            type="search"
            placeholder="Filter: SR, name"
            value={text()}
            spellcheck={false}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
      </div>
      <Show when={found().length > 0} fallback={<Empty>None.</Empty>}>
        <div class="scroll tall" tabindex="0" role="region" aria-labelledby="vdis-title">
          <table>
            <thead>
              <tr>
                <th>VDI</th>
                <th class="num">Size</th>
                <th class="num">Used</th>
                <th>Snapshot of</th>
                <th>Users</th>
              </tr>
            </thead>
            <tbody>
              <For each={found().slice(0, shownMost)}>
                {(vdi) => (
                  <tr>
                    <td>
                      <code>
                        {vdi.sr}:{vdi.name}
                      </code>
                    </td>
                    <td class="num">{bytes(vdi.bytes)}</td>
                    <td class="num">{bytes(vdi.used_bytes)}</td>
                    <td>{vdi.snapshot_of ?? '–'}</td>
                    <td>
                      <For each={vdi.users} fallback="–">
                        {(user) => <User owner={user.owner} access={user.access} />}
                      </For>
                    </td>
                  </tr>
                )}
              </For>
            </tbody>
          </table>
        </div>
        <Show when={found().length > shownMost}>
          <p class="muted">and {plainNumber(found().length - shownMost)} more; filter for them</p>
        </Show>
      </Show>
    </section>
  );
}

function diskName(disk: { uuid: string; vdev: string }): string {
  const { vm, device } = model('vm', 'device');
  const name = device.get(`${disk.uuid}/vbd/${disk.vdev}`)?.name ?? disk.vdev;
  return `${vm.get(disk.uuid)?.name ?? disk.uuid} ${name}`;
}

function User(props: { owner: string; access: string }) {
  const disk = () => ownerOf(props.owner);
  return (
    <span class="user">
      <Show when={disk()} fallback={props.owner}>
        {(it) => <a href={link('vm', it().uuid)}>{diskName(it())}</a>}
      </Show>
      <span class="muted"> {props.access === 'w' ? 'writes' : 'reads'}</span>
    </span>
  );
}
