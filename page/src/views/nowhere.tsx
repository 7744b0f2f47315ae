import { link } from '../router';

export function NowhereView() {
  return (
    <div class="view">
      <h1>No such view</h1>
      <p>
        The address names nothing of this page. <a href={link()}>The host</a> is the first view.
      </p>
    </div>
  );
}
