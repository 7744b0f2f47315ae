import { createMemo } from 'solid-js';
import { session } from '../api/session';
import { labelOf, limits, tagWords } from '../model/places';
import { link } from '../router';

/** In place of a view of the host, for a client that is limited to VMs with a tag. */
export function LimitedView(props: { first: string }) {
  const tags = createMemo(() => tagWords(limits(session())));
  return (
    <div class="view">
      <h1>{props.first === '' ? 'Your VMs' : labelOf(props.first)}</h1>
      <p>
        You see <a href={link('vms')}>VMs</a> with {tags()} alone, and their <a href={link('operations')}>operations</a>. Nothing else of this
        host is shown to you, and what makes VMs or changes their configuration is for others.
      </p>
    </div>
  );
}
