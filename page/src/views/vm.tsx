import { For, Index, Match, Show, Switch, createMemo, lazy } from 'solid-js';
import { hasConsole, hasHistory, hasScreen } from '../api/features';
import { isCurrent, model } from '../api/live';
import { isLimited, may } from '../api/session';
import { mib } from '../model/format';
import { devicesOf } from '../model/store';
import type { Vm } from '../model/types';
import { link, route } from '../router';
import { Actions } from '../ui/act';
import { Loading } from '../ui/notice';
import { State } from '../ui/state';
import { Undefine } from '../ui/undefine';
import { ConfigText } from './vm/config-text';
import { Devices } from './vm/devices';
import { VmEvents } from './vm/events';
import { VmOperations } from './vm/operations';

const Console = lazy(() => import('./vm/console').then((m) => ({ default: m.Console })));
const Screen = lazy(() => import('./vm/screen').then((m) => ({ default: m.Screen })));
const HistoryGraphs = lazy(() => import('../ui/history').then((m) => ({ default: m.HistoryGraphs })));

export function VmView(props: { uuid: string }) {
  const vm = createMemo(() => model('vm').vm.get(props.uuid));
  return (
    <div class="view">
      <Show
        when={vm()}
        fallback={
          <Show when={isCurrent()} fallback={<Loading what="the VM" />}>
            <h1>No such VM</h1>
            <p>
              It does not exist, or not any more. <a href={link('vms')}>All VMs</a>
            </p>
          </Show>
        }
      >
        {(it) => <OneVm vm={it()} />}
      </Show>
    </div>
  );
}

/** An HVM domain has one unless its configuration says otherwise; others have one by a frame buffer of their own. */
function mayHaveScreen(vm: Vm): boolean {
  return vm.config?.kind === 'hvm' || devicesOf(model('device'), vm.uuid).some((it) => it.kind === 'vfb');
}

function OneVm(props: { vm: Vm }) {
  const tabs = createMemo(() => {
    const all = [{ path: '', label: 'Overview' }];
    const runs = props.vm.domid !== null;
    if (hasConsole() && may('admin') && runs) all.push({ path: 'console', label: 'Console' });
    if (hasScreen() && may('admin') && runs && mayHaveScreen(props.vm)) all.push({ path: 'screen', label: 'Screen' });
    if (hasHistory()) all.push({ path: 'graphs', label: 'Graphs' });
    if (may('admin')) all.push({ path: 'text', label: 'Configuration' });
    return all;
  });
  const tab = createMemo(() => {
    const named = route().path[2] ?? '';
    return tabs().some((it) => it.path === named) ? named : '';
  });
  return (
    <>
      <div class="title-line">
        <h1>{props.vm.name}</h1>
        <State state={props.vm.state} reason={props.vm.reason} />
        <span class="grow" />
        <Actions vms={[props.vm]} />
        <Show when={may('admin') && !isLimited()}>
          <a class="button" href={link('edit', props.vm.uuid)}>
            Edit
          </a>
        </Show>
        <Undefine vm={props.vm} />
      </div>
      <Show when={props.vm.reason}>
        <p class="notice notice-bad">{props.vm.reason}</p>
      </Show>
      <nav class="tabs" aria-label="Of this VM">
        <For each={tabs()}>
          {(it) => (
            <a
              href={link('vm', props.vm.uuid, ...(it.path === '' ? [] : [it.path]))}
              aria-current={tab() === it.path ? 'page' : undefined}
            >
              {it.label}
            </a>
          )}
        </For>
      </nav>
      <Switch>
        <Match when={tab() === ''}>
          <Facts vm={props.vm} />
          <Devices vm={props.vm} />
          <div class="columns">
            <VmOperations uuid={props.vm.uuid} />
            <VmEvents uuid={props.vm.uuid} />
          </div>
        </Match>
        <Match when={tab() === 'console'}>
          <Console vm={props.vm} />
        </Match>
        <Match when={tab() === 'screen'}>
          <Screen vm={props.vm} />
        </Match>
        <Match when={tab() === 'graphs'}>
          <HistoryGraphs of={props.vm.uuid} />
        </Match>
        <Match when={tab() === 'text'}>
          <ConfigText vm={props.vm} />
        </Match>
      </Switch>
    </>
  );
}

function Facts(props: { vm: Vm }) {
  const sizes = () => props.vm.config;
  const memory = (): string => {
    const it = sizes();
    if (!it) return '–';
    return it.memory_max_mib > it.memory_mib ? `${mib(it.memory_mib)}, at most ${mib(it.memory_max_mib)}` : mib(it.memory_mib);
  };
  const vcpus = (): string => {
    const it = sizes();
    if (!it) return '–';
    return it.vcpus_max > it.vcpus ? `${it.vcpus}, at most ${it.vcpus_max}` : String(it.vcpus);
  };
  const kept = (): string => {
    if (!props.vm.defined) return 'no: it exists as long as its domain';
    const order = props.vm.autostart;
    return order === null ? 'yes' : `yes; starts with the host, order ${order}`;
  };
  const facts = (): [string, string][] => [
    ['UUID', props.vm.uuid],
    ['Domid', String(props.vm.domid ?? 'none')],
    ['Type', sizes()?.kind ?? '–'],
    ['vCPUs', vcpus()],
    ['Memory', memory()],
    ['Defined', kept()],
  ];
  return (
    <dl class="card facts across">
      <Index each={facts()}>
        {(fact) => (
          <div>
            <dt>{fact()[0]}</dt>
            <dd class="num">{fact()[1]}</dd>
          </div>
        )}
      </Index>
      <Show when={may('admin') && props.vm.domid !== null}>
        <div>
          <dt>Store</dt>
          <dd>
            <a href={`${link('store')}?${new URLSearchParams({ path: `/local/domain/${props.vm.domid}` })}`}>Its nodes</a>
          </dd>
        </div>
      </Show>
    </dl>
  );
}
