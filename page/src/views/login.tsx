import { Show, createSignal, onMount } from 'solid-js';
import { get, wordsOf } from '../api/client';
import { logIn, sessionError } from '../api/session';
import type { Health } from '../model/types';
import { Problem } from '../ui/notice';

export function LoginView() {
  const [how, setHow] = createSignal<'password' | 'token'>('password');
  const [error, setError] = createSignal<string | null>(sessionError());
  const [isBusy, setBusy] = createSignal(false);
  const [hasProvider, setProvider] = createSignal(false);
  onMount(() => {
    get<Health>('/v1/health').then(
      (health) => setProvider(health.oidc === true),
      () => setProvider(false),
    );
  });
  const submit = async (event: SubmitEvent): Promise<void> => {
    event.preventDefault();
    const data = new FormData(event.currentTarget as HTMLFormElement);
    const field = (name: string): string => String(data.get(name) ?? '').trim();
    setBusy(true);
    setError(null);
    try {
      if (how() === 'token') await logIn({ token: field('token') });
      else await logIn({ name: field('name'), password: String(data.get('password') ?? '') });
    } catch (thrown) {
      setError(wordsOf(thrown));
    }
    setBusy(false);
  };
  return (
    <main class="lone">
      <form class="login" onSubmit={(event) => void submit(event)}>
        <img src="./icon.svg" alt="" width="40" height="40" />
        <h1>Log in to this host</h1>
        <fieldset class="switch">
          <legend class="hidden">Log in with</legend>
          <label>
            <input type="radio" name="how" checked={how() === 'password'} onChange={() => setHow('password')} />
            <span>Name and password</span>
          </label>
          <label>
            <input type="radio" name="how" checked={how() === 'token'} onChange={() => setHow('token')} />
            <span>Token</span>
          </label>
        </fieldset>
        <Show
          when={how() === 'token'}
          fallback={
            <>
              <label class="field">
                <span>Name</span>
                <input name="name" autocomplete="username" autocapitalize="none" spellcheck={false} required />
              </label>
              <label class="field">
                <span>Password</span>
                <input name="password" type="password" autocomplete="current-password" required />
              </label>
            </>
          }
        >
          <label class="field">
            <span>Token</span>
            <input name="token" type="password" autocomplete="off" spellcheck={false} required />
          </label>
        </Show>
        <Show when={error()}>{(text) => <Problem>{text()}</Problem>}</Show>
        <button type="submit" class="button primary" disabled={isBusy()}>
          {isBusy() ? 'Logging in' : 'Log in'}
        </button>
        <Show when={hasProvider()}>
          <a class="button" href="/v1/session/oidc">
            Log in with OpenID Connect
          </a>
        </Show>
      </form>
    </main>
  );
}
