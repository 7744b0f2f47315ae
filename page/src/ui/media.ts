import { createSignal, type Accessor } from 'solid-js';

function watch(query: string): Accessor<boolean> {
  const list = matchMedia(query);
  const [matches, setMatches] = createSignal(list.matches);
  list.addEventListener('change', (event) => setMatches(event.matches));
  return matches;
}

export const isNarrow = watch('(max-width: 719px)');

/** Ticks each second, for what is told in "seconds ago". */
const [seconds, setSeconds] = createSignal(Date.now());
setInterval(() => setSeconds(Date.now()), 1000);
export const nowMs = seconds;
