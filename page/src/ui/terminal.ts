import { Terminal } from '@xterm/xterm';
import '@xterm/xterm/css/xterm.css';
import { tameStyles } from './sheets';

export interface Open {
  write: (data: string | Uint8Array) => void;
  focus: () => void;
  dispose: () => void;
}

/** A terminal that fills `place`. */
export function openTerminal(place: HTMLElement, onData: (data: Uint8Array) => void): Open {
  const untame = tameStyles();
  const terminal = new Terminal({
    fontFamily: "ui-monospace, 'SF Mono', 'Cascadia Mono', 'DejaVu Sans Mono', 'Liberation Mono', monospace",
    fontSize: 13,
    scrollback: 5000,
    theme: { background: '#10140f', foreground: '#d8e2dc', cursor: '#66c9a3' },
  });
  // Who uses the keyboard must be able to leave.
  terminal.attachCustomKeyEventHandler((event) => !(event.key === 'Tab' && event.shiftKey));
  terminal.open(place);
  const encoder = new TextEncoder();
  terminal.onData((data) => onData(encoder.encode(data)));
  terminal.onBinary((data) => onData(Uint8Array.from(data, (c) => c.charCodeAt(0) & 255)));
  const fit = (): void => {
    const screen = place.querySelector<HTMLElement>('.xterm-screen');
    if (!screen || screen.clientWidth === 0) return;
    const cell = { width: screen.clientWidth / terminal.cols, height: screen.clientHeight / terminal.rows };
    const cols = Math.max(20, Math.floor((place.clientWidth - 32) / cell.width));
    const rows = Math.max(4, Math.floor((place.clientHeight - 16) / cell.height));
    if (cols !== terminal.cols || rows !== terminal.rows) terminal.resize(cols, rows);
  };
  const observer = new ResizeObserver(fit);
  observer.observe(place);
  fit();
  return {
    write: (data) => terminal.write(data),
    focus: () => terminal.focus(),
    dispose: () => {
      observer.disconnect();
      terminal.dispose();
      place.replaceChildren();
      untame();
    },
  };
}
