import { For, Show, createMemo, createSignal } from 'solid-js';
import { request } from '../api/client';
import { isCurrent, model } from '../api/live';
import { poll } from '../api/polled';
import { wordsOf } from '../model/filter';
import { bytes, plainNumber } from '../model/format';
import { Rates, interfaceLines, kindWords, networkState, ratesByNetwork, type InterfaceLine, type Rate } from '../model/networks';
import { formatRoute } from '../model/route';
import type { Network, Traffic } from '../model/types';
import { link, route } from '../router';
import { Empty, Loading, Problem } from '../ui/notice';
import { State } from '../ui/state';

const shownMost = 500;

function perSecond(n: number | undefined): string {
  return n === undefined ? '–' : `${bytes(n)}/s`;
}

export function NetworksView() {
  const rates = new Rates();
  const traffic = poll(async (signal) => {
    const now = await request<Traffic>('traffic', {}, 'traffic', signal);
    rates.take(now, Date.now());
    return now;
  }, 3000);
  const chosen = () => route().params.network;
  const networks = createMemo(() => [...model('network').network.values()]);
  const sums = createMemo(() => {
    traffic.value();
    const { device, vm } = model('device', 'vm');
    return ratesByNetwork(device.values(), vm, rates);
  });
  return (
    <div class="view">
      <h1>Networks</h1>
      <Show when={traffic.error()}>{(words) => <Problem>{words()}</Problem>}</Show>
      <Show when={networks().length > 0} fallback={isCurrent() ? <Empty>There are no networks.</Empty> : <Loading what="networks" />}>
        <div class="cards fill">
          <For each={networks()}>{(it) => <OneNetwork network={it} rate={sums().get(it.name)} isChosen={chosen() === it.name} />}</For>
        </div>
      </Show>
      <Interfaces rates={rates} counted={traffic.value} network={chosen()} />
    </div>
  );
}

function OneNetwork(props: { network: Network; rate: Rate | undefined; isChosen: boolean }) {
  const it = () => props.network;
  return (
    <section class="card" aria-label={it().name}>
      <div class="meter-line">
        <strong>{it().name}</strong>
        <State state={networkState(it())} />
      </div>
      <p class="muted">{kindWords(it())}</p>
      <Show when={!it().exists && it().interfaces > 0}>
        <Problem>The host has no such network: VMs that are to be on it do not start.</Problem>
      </Show>
      <dl class="facts">
        <dt>Ports of the host</dt>
        <dd>{it().ports.join(', ') || '–'}</dd>
        <dt>MTU</dt>
        <dd class="num">{it().mtu ?? '–'}</dd>
        <dt>Interfaces of VMs</dt>
        <dd class="num">
          <Show when={it().interfaces > 0} fallback="0">
            <a
              href={formatRoute(['networks'], { network: it().name })}
              aria-label={`${plainNumber(it().interfaces)}: show those on ${it().name}`}
              aria-current={props.isChosen ? 'true' : undefined}
            >
              {plainNumber(it().interfaces)}
            </a>
          </Show>
        </dd>
        <dt>VMs receive</dt>
        <dd class="num">{perSecond(props.rate?.received)}</dd>
        <dt>VMs send</dt>
        <dd class="num">{perSecond(props.rate?.sent)}</dd>
      </dl>
    </section>
  );
}

function Interfaces(props: { rates: Rates; counted: () => unknown; network: string | undefined }) {
  const [text, setText] = createSignal('');
  const found = createMemo(() => {
    props.counted();
    const { device, vm } = model('device', 'vm');
    return interfaceLines(device.values(), vm, props.rates, props.network, wordsOf(text()));
  });
  return (
    <section class="section" aria-labelledby="interfaces-title">
      <div class="title-line">
        <h2 id="interfaces-title">Interfaces of VMs{props.network === undefined ? '' : ` on ${props.network}`}</h2>
        <span class="muted num">{plainNumber(found().length)}</span>
        <Show when={props.network !== undefined}>
          <a href={link('networks')}>Show those of all networks</a>
        </Show>
        <span class="grow" />
        <label class="filter">
          <span class="hidden">Filter interfaces by VM, network or address</span>
          <input
            type="search"
            placeholder="Filter: VM, network, MAC"
            value={text()}
            spellcheck={false}
            onInput={(event) => setText(event.currentTarget.value)}
          />
        </label>
      </div>
      <Show when={found().length > 0} fallback={<Empty>None.</Empty>}>
        <div class="scroll tall" tabindex="0" role="region" aria-labelledby="interfaces-title">
          <table>
            <thead>
              <tr>
                <th>VM</th>
                <th class="num">Number</th>
                <th>Network</th>
                <th>State</th>
                <th class="num">Receives</th>
                <th class="num">Sends</th>
                <th>Configuration</th>
              </tr>
            </thead>
            <tbody>
              <For each={found().slice(0, shownMost)}>{(line) => <OneInterface line={line} />}</For>
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

function OneInterface(props: { line: InterfaceLine }) {
  const device = () => props.line.device;
  return (
    <tr>
      <td>
        <a href={link('vm', device().vm)}>{props.line.vm?.name ?? device().vm}</a>
      </td>
      <td class="num">{device().devid}</td>
      <td>{device().network ?? 'of a script or of another domain'}</td>
      <td>
        <State state={device().state} />
      </td>
      <td class="num">{perSecond(props.line.rate?.received)}</td>
      <td class="num">{perSecond(props.line.rate?.sent)}</td>
      <td class="wrap">
        <code>{device().config}</code>
      </td>
    </tr>
  );
}
