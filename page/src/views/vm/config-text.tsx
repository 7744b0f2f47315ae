import { Show } from 'solid-js';
import { request } from '../../api/client';
import { poll } from '../../api/polled';
import type { Vm } from '../../model/types';
import { Loading, Problem } from '../../ui/notice';

export function ConfigText(props: { vm: Vm }) {
  const text = poll((signal) => request<string>('config-text', { target: props.vm.uuid }, 'text', signal), 0);
  return (
    <section class="section" aria-labelledby="text-title">
      <h2 id="text-title">{props.vm.defined ? 'As defined' : 'As it runs'}</h2>
      <Show when={text.error()}>{(words) => <Problem>{words()}</Problem>}</Show>
      <Show when={text.value()} fallback={<Show when={text.isLoading()}>{<Loading what="the configuration" />}</Show>}>
        {(it) => (
          <div class="scroll">
            <pre class="text" tabindex="0">
              {it()}
            </pre>
          </div>
        )}
      </Show>
    </section>
  );
}
