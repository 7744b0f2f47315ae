import { render } from 'solid-js/web';
import { App } from './app';
import './style/base.css';
import './style/controls.css';
import './style/shell.css';
import './style/list.css';
import './style/timeline.css';
import './style/edit.css';
import './style/views.css';

const root = document.getElementById('page');
if (root) render(() => <App />, root);
