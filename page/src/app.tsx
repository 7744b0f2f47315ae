import { ErrorBoundary, Match, Show, Suspense, Switch, createEffect, createMemo, lazy, on, onMount } from 'solid-js';
import { wordsOf } from './api/client';
import { findFeatures } from './api/features';
import { connect, disconnect } from './api/live';
import { findSession, isLimited, session } from './api/session';
import { isOfHost } from './model/places';
import { route } from './router';
import { Loading, Problem } from './ui/notice';
import { Shell } from './ui/shell';
import { HostView } from './views/host';
import { LimitedView } from './views/limited';
import { LoginView } from './views/login';
import { NowhereView } from './views/nowhere';
import { VmsView } from './views/vms';

const VmView = lazy(() => import('./views/vm').then((m) => ({ default: m.VmView })));
const OperationsView = lazy(() => import('./views/operations').then((m) => ({ default: m.OperationsView })));
const EditView = lazy(() => import('./views/edit').then((m) => ({ default: m.EditView })));
const StorageView = lazy(() => import('./views/storage').then((m) => ({ default: m.StorageView })));
const NetworksView = lazy(() => import('./views/networks').then((m) => ({ default: m.NetworksView })));
const StoreView = lazy(() => import('./views/store').then((m) => ({ default: m.StoreView })));
const LimitsView = lazy(() => import('./views/limits').then((m) => ({ default: m.LimitsView })));
const LogView = lazy(() => import('./views/log').then((m) => ({ default: m.LogView })));

export function App() {
  onMount(() => void findSession());
  createEffect(() => {
    if (session()) {
      void findFeatures();
      connect();
    } else {
      disconnect();
    }
  });
  return (
    <Switch>
      <Match when={session() === undefined}>
        <main class="lone">
          <Loading what="the session" />
        </main>
      </Match>
      <Match when={session() === null}>
        <LoginView />
      </Match>
      <Match when={session()}>
        <Shell>
          <ErrorBoundary fallback={(error, reset) => <Broken error={error} onLeave={reset} />}>
            <Suspense fallback={<Loading what="the view" />}>
              <Views />
            </Suspense>
          </ErrorBoundary>
        </Shell>
      </Match>
    </Switch>
  );
}

/** A view that failed, or that a server of another release no longer has. Another address shows another view. */
function Broken(props: { error: unknown; onLeave: () => void }) {
  createEffect(on(route, () => props.onLeave(), { defer: true }));
  return (
    <div class="view">
      <h1>This view cannot be shown</h1>
      <Problem>{wordsOf(props.error)}</Problem>
      <p>
        If xylem-web is another release now, the page has to be read again.{' '}
        <button type="button" class="button small" onClick={() => location.reload()}>
          Read it again
        </button>
      </p>
    </div>
  );
}

function Views() {
  // A change of what follows the first word is the view's own matter.
  const first = createMemo(() => route().path[0] ?? '');
  return (
    <Switch fallback={<NowhereView />}>
      <Match when={isLimited() && isOfHost(first())}>
        <LimitedView first={first()} />
      </Match>
      <Match when={first() === ''}>
        <HostView />
      </Match>
      <Match when={first() === 'vms'}>
        <VmsView />
      </Match>
      <Match when={first() === 'vm'}>
        <Show when={route().path[1]} keyed fallback={<NowhereView />}>
          {(uuid) => <VmView uuid={uuid} />}
        </Show>
      </Match>
      <Match when={first() === 'operations'}>
        <OperationsView />
      </Match>
      <Match when={first() === 'create'}>
        <EditView />
      </Match>
      <Match when={first() === 'edit' && route().path[1]} keyed>
        {(uuid) => <EditView uuid={uuid} />}
      </Match>
      <Match when={first() === 'storage'}>
        <StorageView />
      </Match>
      <Match when={first() === 'networks'}>
        <NetworksView />
      </Match>
      <Match when={first() === 'store'}>
        <StoreView />
      </Match>
      <Match when={first() === 'limits'}>
        <LimitsView />
      </Match>
      <Match when={first() === 'log'}>
        <LogView />
      </Match>
    </Switch>
  );
}
