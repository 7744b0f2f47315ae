import { For, Show, createMemo, lazy, Suspense } from 'solid-js';
import { get, request } from '../api/client';
import { hasHistory } from '../api/features';
import { host, isCurrent, link as liveLink, model, operations, vms } from '../api/live';
import { poll } from '../api/polled';
import { countStates } from '../model/filter';
import { bytes, count, duration, plainNumber, when } from '../model/format';
import { endedLately, failedLately, foreignDomains, inProgress, memoryUse } from '../model/host';
import { formatRoute } from '../model/route';
import type { DomainRow, Health, Host, Limits, Operation } from '../model/types';
import { link } from '../router';
import { nowMs } from '../ui/media';
import { Meter } from '../ui/meter';
import { Empty, Loading, Problem } from '../ui/notice';
import { State } from '../ui/state';

const HistoryGraphs = lazy(() => import('../ui/history').then((m) => ({ default: m.HistoryGraphs })));

export function HostView() {
  const domains = poll((signal) => request<DomainRow[]>('list', {}, 'domains', signal), 5000);
  const limits = poll((signal) => request<Limits>('limits', {}, 'limits', signal), 2000);
  const health = poll((signal) => get<Health>('/v1/health', signal), 10000);
  const states = createMemo(() => countStates(vms()));
  return (
    <div class="view">
      <h1>{host()?.name ?? 'Host'}</h1>
      <Show when={liveLink() === 'offline' ? null : (domains.error() ?? limits.error())}>{(text) => <Problem>{text()}</Problem>}</Show>
      <div class="cards">
        <section class="card" aria-labelledby="vms-title">
          <h2 id="vms-title">VMs</h2>
          <Show when={isCurrent() || vms().length > 0} fallback={<Loading what="VMs" />}>
            <p class="big num">
              <a href={link('vms')}>{plainNumber(vms().length)}</a>
            </p>
            <ul class="states">
              <For each={[...states()]} fallback={<Empty>There are no VMs.</Empty>}>
                {([state, n]) => (
                  <li>
                    <a href={formatRoute(['vms'], { state })}>
                      <State state={state} />
                      <span class="num">{plainNumber(n)}</span>
                    </a>
                  </li>
                )}
              </For>
            </ul>
          </Show>
        </section>
        <section class="card" aria-labelledby="memory-title">
          <h2 id="memory-title">Memory</h2>
          <Show when={host()} fallback={isCurrent() ? <Empty>Not known.</Empty> : <Loading what="memory" />}>
            {(it) => <Memory host={it()} domains={domains.value()} />}
          </Show>
        </section>
        <section class="card" aria-labelledby="limits-title">
          <h2 id="limits-title">
            <a href={link('limits')}>Steps and limits</a>
          </h2>
          <Show when={limits.value()} fallback={limits.error() ? <Empty>Not known.</Empty> : <Loading what="limits" />}>
            {(now) => (
              <>
                <Meter label="Under way" value={now().under_way} max={now().host} text={`${now().under_way}, at most ${now().host} of a kind`} />
                <dl class="facts">
                  <dt>Waiting for a permit</dt>
                  <dd class="num">{now().waiting}</dd>
                  <dt>For one VM</dt>
                  <dd class="num">{now().vm}</dd>
                  <dt>For one storage</dt>
                  <dd class="num">{now().sr}</dd>
                  <dt>For one backend</dt>
                  <dd class="num">{now().backend}</dd>
                </dl>
              </>
            )}
          </Show>
        </section>
        <section class="card" aria-labelledby="versions-title">
          <h2 id="versions-title">Versions</h2>
          <dl class="facts">
            <dt>xylemd</dt>
            <dd>
              <Show when={health.value()} fallback="–">
                {(it) => it().daemon?.release ?? <span class="bad">does not answer</span>}
              </Show>
            </dd>
            <dt>xylem-web</dt>
            <dd>{health.value()?.release ?? '–'}</dd>
            <dt>Xen</dt>
            <dd>{host()?.xen_version ?? '–'}</dd>
            <dt>Domain 0</dt>
            <dd>{host()?.kernel ?? '–'}</dd>
            <dt>CPUs</dt>
            <dd class="num">{host()?.cpus ?? '–'}</dd>
            <Show when={host()?.booted_unix_ms}>
              {(booted) => (
                <>
                  <dt>Booted</dt>
                  <dd class="num">{when(booted(), nowMs())}</dd>
                </>
              )}
            </Show>
            <dt>Domains of others</dt>
            <dd class="num">{foreignDomains(model('domain').domain.values()).length}</dd>
          </dl>
          <p class="small">
            <a href="./licences.html">Licences of what this page is made of</a>
          </p>
        </section>
      </div>
      <Show when={hasHistory()}>
        <Suspense fallback={<Loading what="the graphs" />}>
          <HistoryGraphs of="host" />
        </Suspense>
      </Show>
      <div class="columns">
        <Running />
        <Failed />
      </div>
    </div>
  );
}

function Memory(props: { host: Host; domains: DomainRow[] | undefined }) {
  const it = createMemo(() => memoryUse(props.host, props.domains ?? []));
  return (
    <>
      <Meter
        label="Used"
        value={it().totalKib - it().freeKib}
        max={it().totalKib}
        text={`${bytes((it().totalKib - it().freeKib) * 1024)} of ${bytes(it().totalKib * 1024)}`}
      />
      <dl class="facts">
        <dt>Free</dt>
        <dd class="num">{bytes(it().freeKib * 1024)}</dd>
        <dt>VMs</dt>
        <dd class="num">{bytes(it().managedKib * 1024)}</dd>
        <dt>Domain 0</dt>
        <dd class="num">{bytes(it().domain0Kib * 1024)}</dd>
        <Show when={it().foreignKib > 0}>
          <dt>Domains of others</dt>
          <dd class="num">{bytes(it().foreignKib * 1024)}</dd>
        </Show>
      </dl>
    </>
  );
}

const shownMost = 12;

function Running() {
  const all = createMemo(() => inProgress(operations()));
  const ended = createMemo(() => endedLately(operations(), 8));
  return (
    <section aria-labelledby="running-title">
      <h2 id="running-title">
        Operations in progress <span class="badge num">{all().length}</span>
      </h2>
      <Show when={all().length > 0} fallback={<Empty>None.</Empty>}>
        <ul class="rows">
          <For each={all().slice(0, shownMost)}>{(operation) => <Progressing operation={operation} />}</For>
        </ul>
      </Show>
      <h2>Ended lately</h2>
      <Show when={ended().length > 0} fallback={<Empty>None that xylemd remembers.</Empty>}>
        <ul class="rows">
          <For each={ended()}>
            {(it) => (
              <li>
                <a href={link('operations', String(it.id))}>
                  {it.what} {it.vm}
                </a>
                <span class="grow bad">{it.failure}</span>
                <span class="num muted">{when(it.started_unix_ms, nowMs())}</span>
                <span class="num">{duration((it.ended_ns ?? it.started_ns) - it.started_ns)}</span>
              </li>
            )}
          </For>
        </ul>
      </Show>
      <p>
        <a href={link('operations')}>All operations, as a timeline</a>
      </p>
    </section>
  );
}

function Progressing(props: { operation: Operation }) {
  const it = () => props.operation;
  return (
    <li>
      <a href={link('operations', String(it().id))}>
        {it().what} {it().vm}
      </a>
      <span class="muted grow">{it().waits_for?.join(', ')}</span>
      <span class="num muted">
        {it().done}/{it().steps}
      </span>
      <span class="num">{duration(Math.max(0, nowMs() - it().started_unix_ms) * 1e6)}</span>
    </li>
  );
}

function Failed() {
  const all = createMemo(() => failedLately(operations(), shownMost));
  return (
    <section aria-labelledby="failed-title">
      <h2 id="failed-title">Failed lately</h2>
      <Show when={all().length > 0} fallback={<Empty>None of the operations that xylemd remembers.</Empty>}>
        <ul class="rows">
          <For each={all()}>
            {(it) => (
              <li class="tall">
                <span class="row-line">
                  <a href={link('operations', String(it.id))}>
                    {it.what} {it.vm}
                  </a>
                  <span class="num muted">
                    {when(it.started_unix_ms, nowMs())}, {count(it.steps, 'step')}
                  </span>
                </span>
                <span class="words">{it.failure}</span>
              </li>
            )}
          </For>
        </ul>
      </Show>
    </section>
  );
}
