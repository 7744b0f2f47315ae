/** A state of a VM or of a device: a mark and the word. */
export function State(props: { state: string; reason?: string | undefined }) {
  return (
    <span class="state" data-state={props.state} title={props.reason || undefined}>
      <span class="mark" aria-hidden="true" />
      {props.state}
    </span>
  );
}
