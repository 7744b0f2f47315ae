// What has to be asked for again and again, while somebody looks at it.
import { createSignal, onCleanup, type Accessor } from 'solid-js';
import { wordsOf } from './client';

export interface Polled<T> {
  value: Accessor<T | undefined>;
  error: Accessor<string | null>;
  isLoading: Accessor<boolean>;
  again: () => void;
}

/** Asks now and each `everyMs`; 0 means once. A hidden page does not ask. */
export function poll<T>(ask: (signal: AbortSignal) => Promise<T>, everyMs: number): Polled<T> {
  const [value, setValue] = createSignal<T | undefined>(undefined);
  const [error, setError] = createSignal<string | null>(null);
  const [isLoading, setLoading] = createSignal(true);
  const stop = new AbortController();
  let timer: ReturnType<typeof setTimeout> | undefined;
  let round = 0;
  const run = async (): Promise<void> => {
    clearTimeout(timer);
    const mine = ++round;
    if (!document.hidden || value() === undefined) {
      setLoading(true);
      try {
        const found = await ask(stop.signal);
        if (mine !== round || stop.signal.aborted) return;
        setValue(() => found);
        setError(null);
      } catch (thrown) {
        if (mine !== round || stop.signal.aborted) return;
        setError(wordsOf(thrown));
      }
      setLoading(false);
    }
    if (everyMs > 0) timer = setTimeout(() => void run(), everyMs);
  };
  void run();
  onCleanup(() => {
    stop.abort();
    clearTimeout(timer);
  });
  return { value, error, isLoading, again: () => void run() };
}
