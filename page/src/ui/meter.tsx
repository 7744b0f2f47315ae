import { Show } from 'solid-js';
import { percent } from '../model/format';

/** How much of something is used. */
export function Meter(props: { label: string; value: number; max: number; text: string; isQuiet?: boolean }) {
  const part = () => percent(props.value, props.max);
  return (
    <div class="meter">
      <Show when={!props.isQuiet}>
        <div class="meter-line">
          <span>{props.label}</span>
          <span class="num">{props.text}</span>
        </div>
      </Show>
      <div
        class="meter-bar"
        role="meter"
        aria-label={props.label}
        aria-valuemin="0"
        aria-valuemax="100"
        aria-valuenow={Math.round(part())}
        aria-valuetext={props.text}
      >
        <span style={{ width: `${part()}%` }} classList={{ full: part() >= 95 }} />
      </div>
    </div>
  );
}
