import { createSignal } from 'solid-js';

export type Theme = 'system' | 'light' | 'dark';

const key = 'xylem.theme';
const dark = matchMedia('(prefers-color-scheme: dark)');

function stored(): Theme {
  try {
    const theme = localStorage.getItem(key);
    return theme === 'light' || theme === 'dark' ? theme : 'system';
  } catch {
    return 'system';
  }
}

const [theme, setSignal] = createSignal<Theme>(stored());
const [isSystemDark, setSystemDark] = createSignal(dark.matches);
dark.addEventListener('change', (event) => setSystemDark(event.matches));
export { theme };

export function isDark(): boolean {
  return theme() === 'dark' || (theme() === 'system' && isSystemDark());
}

export function setTheme(next: Theme): void {
  setSignal(next);
  if (next === 'system') delete document.documentElement.dataset.theme;
  else document.documentElement.dataset.theme = next;
  try {
    if (next === 'system') localStorage.removeItem(key);
    else localStorage.setItem(key, next);
  } catch {
    // It holds until the page is closed.
  }
}
