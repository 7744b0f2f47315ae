// Who is logged in, and what that one may do.
import { createSignal } from 'solid-js';
import { allows } from '../model/actions';
import { limits } from '../model/places';
import { failedLogInOf, logInWordsOf, tokenOf } from '../model/route';
import type { Role, Session } from '../model/types';
import { Problem, get, send, whenUnauthorised } from './client';

/** `undefined`: not asked yet; `null`: nobody. */
const [session, setSession] = createSignal<Session | null | undefined>(undefined);
const [sessionError, setSessionError] = createSignal<string | null>(null);
export { session, sessionError };

whenUnauthorised(() => setSession(null));

export function may(role: Role): boolean {
  return allows(session()?.role, role);
}

async function open(body: object): Promise<void> {
  const response = await send('POST', '/v1/session', { body });
  setSession((await response.json()) as Session);
}

export async function logIn(body: { token: string } | { name: string; password: string }): Promise<void> {
  await open(body);
}

export async function logOut(): Promise<void> {
  await send('DELETE', '/v1/session');
  setSession(null);
}

/** Whether this client sees VMs with its tags alone, and nothing else of the host. */
export function isLimited(): boolean {
  return limits(session()).length > 0;
}

/** A token in the address is used and removed from it, so that it stays in no history; so is why a log-in has failed. */
export async function findSession(): Promise<void> {
  const failed = failedLogInOf(location.hash);
  if (failed !== null) history.replaceState(null, '', `${location.pathname}#/`);
  const token = tokenOf(location.hash);
  if (token !== null) {
    history.replaceState(null, '', `${location.pathname}#/`);
    try {
      await open({ token });
      return;
    } catch (error) {
      setSessionError(error instanceof Error ? error.message : String(error));
    }
  }
  try {
    setSession(await get<Session>('/v1/session'));
    setSessionError(null);
  } catch (error) {
    if (failed !== null) setSessionError(logInWordsOf(failed));
    const isNobody = error instanceof Problem && (error.status === 401 || error.status === 403);
    if (!isNobody) setSessionError(error instanceof Error ? error.message : String(error));
    setSession(null);
  }
}
