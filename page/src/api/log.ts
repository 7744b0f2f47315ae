// The changes of VMs' states, as long as somebody looks at them.
import { createSignal, onCleanup, type Accessor } from 'solid-js';
import { keptMost, merged } from '../model/log';
import type { StateChange, StateChanges } from '../model/types';
import { request, wordsOf } from './client';

const pauseMs = 700;
const retryMs = 3000;

let revision: number | null = null;
const [changes, setChanges] = createSignal<readonly StateChange[]>([]);
const [error, setError] = createSignal<string | null>(null);
const [isKnown, setKnown] = createSignal(false);
let readers = 0;
let timer: ReturnType<typeof setTimeout> | undefined;

async function ask(since: number | null): Promise<StateChanges> {
  return request<StateChanges>('events', since === null ? {} : { since }, 'changes');
}

async function round(): Promise<void> {
  let pause = pauseMs;
  try {
    if (revision === null) await begin();
    else {
      const answer = await ask(revision);
      if (answer.too_old) await begin();
      else {
        revision = answer.revision;
        setChanges((known) => merged(known, answer.changes));
      }
    }
    setError(null);
  } catch (thrown) {
    setError(wordsOf(thrown));
    pause = retryMs;
  }
  setKnown(true);
  if (readers > 0) timer = setTimeout(() => void round(), document.hidden ? retryMs : pause);
}

/** The changes that xylemd still has: it is asked for fewer if it has not that many. */
async function begin(): Promise<void> {
  const now = (await ask(null)).revision;
  revision = now;
  for (let back = keptMost; back >= 1; back = Math.floor(back / 4)) {
    const answer = await ask(Math.max(0, now - back));
    if (answer.too_old) continue;
    revision = answer.revision;
    setChanges((known) => merged(known, answer.changes));
    return;
  }
}

export function followLog(): { changes: Accessor<readonly StateChange[]>; error: Accessor<string | null>; isKnown: Accessor<boolean> } {
  readers += 1;
  if (readers === 1) void round();
  onCleanup(() => {
    readers -= 1;
    if (readers === 0) clearTimeout(timer);
  });
  return { changes, error, isKnown };
}
