// What must not happen in any view: errors on the console, requests to elsewhere.
import type { Page } from 'playwright-core';

export class Faults {
  readonly found: string[] = [];
  where = 'log-in';

  add(words: string): void {
    const line = `${this.where}: ${words}`;
    if (this.found.includes(line)) return;
    this.found.push(line);
    console.log(`FAULT ${line}`);
  }
}

/** Answers of the server that it is right to get, and that a browser calls errors. */
const expected = [/status of 401/, /status of 4\d\d/];

export function watch(page: Page, origin: string, faults: Faults): void {
  page.on('console', (message) => {
    if (message.type() !== 'error') return;
    const text = message.text();
    if (!expected.some((it) => it.test(text))) faults.add(`console: ${text}`);
  });
  page.on('pageerror', (error) => faults.add(`error: ${error.stack ?? error.message}`));
  page.on('request', (request) => {
    const url = new URL(request.url());
    if (url.protocol === 'data:' || url.protocol === 'blob:') return;
    if (url.host !== new URL(origin).host) faults.add(`a request to ${url.host}`);
  });
  page.on('response', (response) => {
    if (response.status() >= 500) faults.add(`${response.status()} from ${new URL(response.url()).pathname}`);
  });
}
