import { For, Show, createEffect, createMemo, createSignal, on, onCleanup, onMount } from 'solid-js';
import { request, wordsOf } from '../api/client';
import { model } from '../api/live';
import { may } from '../api/session';
import { asText, find, lineOf, parse, template } from '../model/config';
import type { Checked } from '../model/types';
import { go, link } from '../router';
import { Loading, Problem } from '../ui/notice';
import { Form } from './edit/form';

const checkMs = 400;
const fileName = 'page';

/** Creates a VM, or changes the definition of one. */
export function EditView(props: { uuid?: string }) {
  const [text, setText] = createSignal<string | null>(props.uuid === undefined ? template : null);
  const [error, setError] = createSignal<string | null>(null);
  const [order, setOrder] = createSignal('');
  const vm = createMemo(() => (props.uuid === undefined ? undefined : model('vm').vm.get(props.uuid)));
  onMount(() => {
    if (props.uuid === undefined) return;
    setOrder(String(vm()?.autostart ?? ''));
    request<string>('config-text', { target: props.uuid }, 'text').then(setText, (thrown) => setError(wordsOf(thrown)));
  });
  return (
    <div class="view">
      <h1>{props.uuid === undefined ? 'Create a VM' : `Edit ${vm()?.name ?? 'a VM'}`}</h1>
      <Show when={may('admin')} fallback={<Problem>This needs the role admin.</Problem>}>
        <Show when={error()}>{(words) => <Problem>{words()}</Problem>}</Show>
        <Show when={text() !== null} fallback={<Show when={!error()}>{<Loading what="the configuration" />}</Show>}>
          <Editor text={text() ?? ''} onText={setText} uuid={props.uuid} runs={vm()?.domid != null} order={order()} onOrder={setOrder} />
        </Show>
      </Show>
    </div>
  );
}

interface EditorProps {
  text: string;
  onText: (text: string) => void;
  uuid: string | undefined;
  /** It has a domain, beside which there would be no room for another. */
  runs: boolean;
  order: string;
  onOrder: (order: string) => void;
}

function Editor(props: EditorProps) {
  const check = useCheck(() => props.text);
  const [busy, setBusy] = createSignal<string | null>(null);
  const [error, setError] = createSignal<string | null>(null);
  const name = () => asText(find(parse(props.text), 'name'));
  let area: HTMLTextAreaElement | undefined;

  const body = (): object => ({ file: fileName, config_text: props.text, cwd: '/' });
  const submit = async (doing: string, run: () => Promise<string>): Promise<void> => {
    setBusy(doing);
    setError(null);
    try {
      go('vm', await run());
    } catch (thrown) {
      setError(wordsOf(thrown));
    }
    setBusy(null);
  };
  const create = (): Promise<void> =>
    submit('Creating', async () => (await request<{ uuid: string }>('create', body(), 'created')).uuid);
  const define = (): Promise<void> =>
    submit('Defining', async () => {
      const autostart = /^\d+$/.test(props.order.trim()) ? Number(props.order.trim()) : null;
      return (await request<{ uuid: string }>('define', { ...body(), autostart }, 'defined')).uuid;
    });
  const showLine = (line: number): void => {
    if (!area) return;
    const lines = props.text.split('\n');
    const start = lines.slice(0, line - 1).join('\n').length + (line > 1 ? 1 : 0);
    area.focus();
    area.setSelectionRange(start, start + (lines[line - 1]?.length ?? 0));
  };
  return (
    <>
      <div class="editor">
        <Form text={props.text} onText={props.onText} isNameFixed={props.uuid !== undefined} />
        <div class="text-side">
          <label class="field config">
            <span>Configuration, as in a file of xl</span>
            <textarea
              ref={area}
              value={props.text}
              spellcheck={false}
              autocomplete="off"
              autocapitalize="none"
              onInput={(event) => props.onText(event.currentTarget.value)}
            />
          </label>
          <Faults check={check} unread={parse(props.text).unread} runs={props.runs} onLine={showLine} />
          <Show when={error()}>{(words) => <Problem>{words()}</Problem>}</Show>
          <div class="panel-bar">
            <Show when={props.uuid === undefined}>
              <button type="button" class="button primary" disabled={busy() !== null} onClick={() => void create()}>
                Create and start
              </button>
            </Show>
            <button type="button" class="button" classList={{ primary: props.uuid !== undefined }} disabled={busy() !== null} onClick={() => void define()}>
              Define
            </button>
            <label class="inline">
              <span>Start with the host, order</span>
              <input
                class="short"
                inputmode="numeric"
                placeholder="no"
                value={props.order}
                onInput={(event) => props.onOrder(event.currentTarget.value)}
              />
            </label>
            <Show when={busy()}>
              {(words) => (
                <span class="loading" role="status">
                  <span class="spinner" aria-hidden="true" /> {words()} {name()}
                </span>
              )}
            </Show>
            <span class="grow" />
            <a class="button quiet" href={props.uuid === undefined ? link('vms') : link('vm', props.uuid)}>
              Cancel
            </a>
          </div>
          <p class="muted">
            What is created exists as long as its domain. What is defined is kept, and the definition holds from the next start; a running
            domain keeps its own until then.
          </p>
        </div>
      </div>
    </>
  );
}

interface Check {
  result: () => Checked | null;
  error: () => string | null;
  isBusy: () => boolean;
}

/** Asks xylemd for the faults of what is typed, once it is not typed for a moment. */
function useCheck(text: () => string): Check {
  const [result, setResult] = createSignal<Checked | null>(null);
  const [error, setError] = createSignal<string | null>(null);
  const [isBusy, setBusy] = createSignal(false);
  createEffect(
    on(text, (now) => {
      const stop = new AbortController();
      setBusy(true);
      const timer = setTimeout(() => {
        const body = { file: fileName, config_text: now, cwd: '/', warnings: true };
        request<Checked>('check', body, 'checked', stop.signal)
          .then((found) => {
            setResult(found);
            setError(null);
            setBusy(false);
          })
          .catch((thrown: unknown) => {
            if (stop.signal.aborted) return;
            setError(wordsOf(thrown));
            setBusy(false);
          });
      }, checkMs);
      onCleanup(() => {
        clearTimeout(timer);
        stop.abort();
      });
    }),
  );
  return { result, error, isBusy };
}

function Faults(props: { check: Check; unread: number[]; runs: boolean; onLine: (line: number) => void }) {
  const faults = () => props.check.result()?.faults ?? [];
  const warnings = () => props.check.result()?.warnings ?? [];
  return (
    <section class="section" aria-label="Check" aria-live="polite" aria-busy={props.check.isBusy()}>
      <Show when={props.check.error()}>{(words) => <Problem>{words()}</Problem>}</Show>
      <Show when={props.check.result() && !props.check.error()}>
        <Show
          when={faults().length > 0}
          fallback={<p class="notice notice-good">No faults: a start would begin.</p>}
        >
          <Show when={props.runs}>
            <p class="muted">As if it were started now, while its domain still has the name and the devices:</p>
          </Show>
          <ul class="notice" classList={{ 'notice-bad': !props.runs, 'notice-warn': props.runs }}>
            <For each={faults()}>{(fault) => <Line text={fault} onLine={props.onLine} />}</For>
          </ul>
        </Show>
        <Show when={warnings().length > 0}>
          <ul class="notice notice-warn">
            <For each={warnings()}>{(warning) => <Line text={warning} onLine={props.onLine} />}</For>
          </ul>
        </Show>
      </Show>
      <Show when={props.unread.length > 0}>
        <p class="muted">The form does not show line {props.unread.join(', ')}.</p>
      </Show>
    </section>
  );
}

function Line(props: { text: string; onLine: (line: number) => void }) {
  const line = () => lineOf(props.text);
  return (
    <li>
      <Show when={line()} fallback={props.text}>
        {(at) => (
          <>
            <button type="button" class="button small" onClick={() => props.onLine(at())}>
              Line {at()}
            </button>{' '}
            {props.text.replace(/^[^:\s]*:\d+:\s*/, '')}
          </>
        )}
      </Show>
    </li>
  );
}
