// Opens each view in Chromium and checks it. See options.ts; the server has to be there already, with some VMs.
import { mkdirSync } from 'node:fs';
import { createRequire } from 'node:module';
import { readFileSync } from 'node:fs';
import { chromium, type Browser, type BrowserContext, type Page } from 'playwright-core';
import { clickAround } from './clicks';
import { useIt } from './use';
import { random, readOptions, type Options } from './options';
import { views } from './views';
import { Faults, watch } from './watch';
import { PATIENCE_MS } from './patience';

const axe = readFileSync(createRequire(import.meta.url).resolve('axe-core/axe.min.js'), 'utf8');
const tags = ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa'];
const widths = [1440, 360];
const themes = ['light', 'dark'] as const;

interface AxeResult {
  violations: { id: string; help: string; nodes: { target: string[]; failureSummary?: string }[] }[];
}

async function checkWithAxe(page: Page, faults: Faults): Promise<void> {
  const result = (await page.evaluate(
    async ([source, only]) => {
      // By script, since the page's policy allows no other.
      if (!('axe' in window)) (0, eval)(source as string);
      return (window as unknown as { axe: { run: (o: object) => Promise<unknown> } }).axe.run({ runOnly: only });
    },
    [axe, tags] as const,
  )) as AxeResult;
  for (const violation of result.violations) {
    for (const node of violation.nodes.slice(0, 3)) {
      faults.add(`axe ${violation.id} at ${node.target.join(' ')}: ${node.failureSummary ?? violation.help}`);
    }
  }
}

async function open(browser: Browser, options: Options, width: number, theme: 'light' | 'dark', faults: Faults): Promise<{ context: BrowserContext; page: Page }> {
  const context = await browser.newContext({
    viewport: { width, height: width < 720 ? 740 : 900 },
    colorScheme: theme,
    deviceScaleFactor: 1,
    ignoreHTTPSErrors: options.insecure,
  });
  context.setDefaultTimeout(PATIENCE_MS);
  const page = await context.newPage();
  watch(page, options.url, faults);
  await page.goto(options.url.replace(/#.*$/, ''));
  await page.locator('form.login').waitFor();
  return { context, page };
}

// Chromium on a busy machine now and then draws no frame for a picture, and draws the next one.
async function shot(page: Page, path: string): Promise<void> {
  try {
    await page.screenshot({ path, timeout: PATIENCE_MS / 2 });
  } catch (error) {
    console.log(`${path}: once more, after: ${String(error).split('\n')[0]}`);
    await page.screenshot({ path });
  }
}

async function checkOverflow(page: Page, faults: Faults): Promise<void> {
  const over = await page.evaluate(() => document.documentElement.scrollWidth - document.documentElement.clientWidth);
  if (over > 0) faults.add(`wider than the window by ${over} px`);
}

async function round(browser: Browser, options: Options, width: number, theme: 'light' | 'dark', faults: Faults): Promise<void> {
  const label = `${theme}-${width}`;
  faults.where = `login ${label}`;
  const { context, page } = await open(browser, options, width, theme, faults);
  const shoot = async (name: string): Promise<void> => {
    if (options.shots !== null) await shot(page, `${options.shots}/${name}-${label}.png`);
  };
  await checkWithAxe(page, faults);
  await shoot('login');
  await page.goto('about:blank');
  await page.goto(options.url);
  await page.locator('header.top').waitFor();
  for (const view of views) {
    if (options.views.length > 0 && !options.views.includes(view.name)) continue;
    faults.where = `${view.name} ${label}`;
    try {
      await view.open(page);
    } catch (error) {
      faults.add(`does not come up: ${String(error).split('\n').slice(0, 3).join(' ')}`);
    }
    await page.waitForTimeout(200);
    await checkWithAxe(page, faults);
    await checkOverflow(page, faults);
    await shoot(view.name);
    await page.keyboard.press('Escape');
  }
  await context.close();
}

const options = readOptions();
if (options.shots !== null) mkdirSync(options.shots, { recursive: true });
const faults = new Faults();
const browser = await chromium.launch({
  executablePath: options.chromium,
  args: ['--no-sandbox', '--disable-gpu', '--disable-quic', '--disable-background-networking', '--disable-component-update', '--disable-sync', '--no-first-run'],
});
try {
  if (options.clicks > 0) {
    faults.where = `clicks, seed ${options.seed}`;
    const { page } = await open(browser, options, 1440, 'light', faults);
    await page.goto('about:blank');
    await page.goto(options.url);
    await clickAround(page, options.clicks, random(options.seed));
  } else {
    for (const [at, theme] of themes.entries()) {
      const chosen = options.quick ? widths.slice(at, at + 1) : widths;
      for (const width of chosen) await round(browser, options, width, theme, faults);
    }
    if (options.views.length === 0 || options.views.includes('use')) {
      faults.where = 'use';
      const { page } = await open(browser, options, 1280, 'light', faults);
      await page.goto('about:blank');
      await page.goto(options.url);
      await useIt(page, faults);
    }
  }
} finally {
  await browser.close();
}
console.log(faults.found.length === 0 ? 'ok' : `${faults.found.length} faults`);
process.exitCode = faults.found.length === 0 ? 0 : 1;
