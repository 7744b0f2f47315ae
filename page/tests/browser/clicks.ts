// Random clicks and keys, for the same seed the same ones on the same page.
import type { Page } from 'playwright-core';

const keys = ['Tab', 'Enter', 'Escape', 'ArrowDown', 'ArrowUp', 'ArrowRight', ' ', '/', 'a', '+', '-', 'h', 'Home', 'End'];

/** What ends the session, and so the test. */
const left = /log out/i;

const clickable = ['a', 'button', 'input', 'select', 'canvas', 'textarea'].map((it) => `${it}:visible`).join(', ');

export async function clickAround(page: Page, seconds: number, next: () => number): Promise<void> {
  const end = Date.now() + seconds * 1000;
  let clicks = 0;
  while (Date.now() < end) {
    if (next() < 0.3) {
      const focused = await page.evaluate(() => document.activeElement?.textContent ?? '');
      const key = keys[Math.floor(next() * keys.length)] ?? 'Tab';
      if (!left.test(focused) || (key !== 'Enter' && key !== ' ')) await page.keyboard.press(key);
    } else {
      // Behind a dialog nothing can be clicked.
      const dialog = page.locator('dialog[open]').last();
      const scope = (await dialog.count()) > 0 ? dialog : page;
      const targets = await scope.locator(clickable).all();
      const target = targets[Math.floor(next() * targets.length)];
      const text = (await target?.textContent({ timeout: 300 }).catch(() => '')) ?? '';
      if (target && !left.test(text)) {
        const didClick = await target.click({ timeout: 300, noWaitAfter: true }).then(() => true, () => false);
        if (didClick) clicks += 1;
      }
    }
    if ((await page.locator('form.login').count()) > 0) throw new Error('the session has ended');
  }
  console.log(`${clicks} clicks`);
}
