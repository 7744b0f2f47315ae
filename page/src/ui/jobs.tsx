import { For, Index, Show, createSignal } from 'solid-js';
import { dismiss, jobs, stop } from '../api/jobs';
import { byReason, isOver, progressWords, type Job } from '../model/jobs';

/** One line for each job, at the bottom of every view. */
export function Jobs() {
  return (
    <Show when={jobs().length > 0}>
      <aside class="jobs" aria-label="Progress">
        <Index each={jobs()}>{(job) => <Line job={job()} />}</Index>
      </aside>
    </Show>
  );
}

function Line(props: { job: Job }) {
  const [isOpen, setOpen] = createSignal(false);
  const over = () => isOver(props.job);
  return (
    <div class="job">
      <div class="job-line">
        <span role="status">{progressWords(props.job)}</span>
        <progress
          aria-label={props.job.doing}
          max={Math.max(1, props.job.total)}
          value={props.job.done + props.job.failures.length}
        />
        <Show when={props.job.failures.length > 0}>
          <button type="button" class="button small" aria-expanded={isOpen()} onClick={() => setOpen(!isOpen())}>
            What failed
          </button>
        </Show>
        <Show
          when={over()}
          fallback={
            <Show when={!props.job.isStopped && props.job.total > 1}>
              <button type="button" class="button small" onClick={() => stop(props.job.id)}>
                Begin no more
              </button>
            </Show>
          }
        >
          <button type="button" class="button small" onClick={() => dismiss(props.job.id)}>
            Dismiss
          </button>
        </Show>
      </div>
      <Show when={isOpen() || (over() && props.job.failures.length === 1)}>
        <ul class="failures">
          <For each={byReason(props.job.failures)}>
            {(group) => (
              <li>
                <strong>{group.names.slice(0, 12).join(', ')}</strong>
                <Show when={group.names.length > 12}> and {group.names.length - 12} more</Show>: {group.why}
              </li>
            )}
          </For>
        </ul>
      </Show>
    </div>
  );
}
