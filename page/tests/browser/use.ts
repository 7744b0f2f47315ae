// What somebody does with the page, by keyboard where that is how it is done.
import type { Page } from 'playwright-core';
import type { Faults } from './watch';

async function step(faults: Faults, name: string, run: () => Promise<void>): Promise<void> {
  faults.where = `use: ${name}`;
  try {
    await run();
    console.log(`${name}: ok`);
  } catch (error) {
    faults.add(String(error).split('\n').slice(0, 4).join(' '));
  }
}

export async function useIt(page: Page, faults: Faults): Promise<void> {
  const made = `page-test-${Date.now()}`;
  await page.locator('header.top').waitFor();
  await step(faults, 'the skip link comes first', async () => {
    await page.keyboard.press('Tab');
    await page.locator('.skip:focus').waitFor();
    await page.keyboard.press('Enter');
    await page.locator('main:focus').waitFor();
  });
  await step(faults, '/ and the filter', async () => {
    await page.evaluate(() => (location.hash = '#/vms'));
    await page.locator('.grid-row').first().waitFor();
    await page.keyboard.press('/');
    await page.keyboard.type('web');
    await page.waitForFunction(() => location.hash.includes('q=web'));
    const names = await page.locator('.grid-row .cell-name a').allTextContents();
    if (names.length === 0 || names.some((it) => !it.includes('web'))) throw new Error(`listed: ${names.slice(0, 5).join(' ')}`);
  });
  let name = '';
  await step(faults, 'arrows and Space select, Pause pauses', async () => {
    await page.evaluate(() => (location.hash = '#/vms?state=running&q=web'));
    await page.waitForTimeout(400);
    await page.locator('.grid').focus();
    await page.keyboard.press('ArrowDown');
    name = (await page.locator('.grid-row.active .cell-name a').textContent()) ?? '';
    await page.keyboard.press(' ');
    await page.getByText('1 selected').waitFor();
    await page.getByRole('button', { name: /^Pause/ }).click();
    await page.locator('.jobs', { hasText: 'Pausing: 1 of 1' }).waitFor();
  });
  await step(faults, 'the list is live', async () => {
    await page.evaluate((it) => (location.hash = `#/vms?q=${it}`), name);
    await page.locator('.grid-row', { hasText: name }).locator('.state[data-state=paused]').first().waitFor();
    await page.getByRole('button', { name: /^Unpause/ }).click();
    await page.locator('.grid-row', { hasText: name }).locator('.state[data-state=running]').first().waitFor();
  });
  await step(faults, 'destroy asks first', async () => {
    await page.getByRole('button', { name: /^Destroy/ }).click();
    await page.locator('dialog[open]', { hasText: 'Disks stay' }).waitFor();
    await page.keyboard.press('Escape');
    await page.locator('dialog[open]').waitFor({ state: 'detached' });
    await page.locator('.grid-row', { hasText: name }).locator('.state[data-state=running]').first().waitFor();
  });
  await step(faults, 'what fails is told', async () => {
    await page.evaluate(() => (location.hash = '#/create'));
    const text = page.locator('.config textarea');
    await text.fill(`name = "${made}"\ntype = "pvh"\nkernel = "/boot/missing"\nmemory = 8\n`);
    await page.locator('ul.notice-bad', { hasText: '/boot/missing' }).waitFor();
  });
  await step(faults, 'form and text are kept in step', async () => {
    const text = page.locator('.config textarea');
    await page.getByLabel('Kernel').fill('/boot/vmlinuz');
    await page.waitForFunction(() => document.querySelector<HTMLTextAreaElement>('.config textarea')?.value.includes('kernel = "/boot/vmlinuz"'));
    await text.fill((await text.inputValue()).replace('memory = 8', 'memory = 16'));
    if ((await page.getByLabel('Memory, MiB').inputValue()) !== '16') throw new Error('the form has not followed');
    await page.locator('.notice-good').waitFor();
  });
  await step(faults, 'define, start, destroy, undefine', async () => {
    await page.getByRole('button', { name: 'Define' }).click();
    await page.getByRole('heading', { name: made }).waitFor();
    await page.getByRole('button', { name: 'Start', exact: true }).click();
    await page.locator('.title-line .state[data-state=running]').waitFor();
    await page.getByRole('button', { name: 'Destroy' }).click();
    await page.locator('dialog[open]').getByRole('button', { name: 'Destroy' }).click();
    await page.locator('.title-line .state[data-state=down]').waitFor();
    await page.getByRole('button', { name: 'Undefine' }).click();
    await page.locator('dialog[open]').getByRole('button', { name: 'Undefine' }).click();
    await page.getByRole('heading', { name: 'No such VM' }).waitFor();
  });
  await step(faults, 'devices are attached and detached', async () => {
    await page.evaluate(() => (location.hash = '#/vms?state=running&q=web'));
    await page.locator('.grid-row .cell-name a').first().click();
    await page.getByLabel('What to attach').selectOption('interface');
    const rows = page.locator('table tbody tr', { hasText: 'vif' });
    await page.getByRole('heading', { name: 'Devices' }).waitFor();
    const before = await rows.count();
    await page.getByLabel('Its configuration').fill('bridge=xenbr0');
    await page.getByRole('button', { name: 'Attach', exact: true }).click();
    await rows.nth(before).locator('.state[data-state=attached]').waitFor();
    await rows.nth(before).getByRole('button', { name: /^Detach/ }).click();
    // The list is read anew meanwhile, and the question stays.
    await page.waitForTimeout(5000);
    await page.locator('dialog[open]').getByRole('button', { name: 'Detach' }).click();
    await rows.nth(before).waitFor({ state: 'detached' });
    await page.getByLabel('What to attach').selectOption('disk');
    await page.getByLabel('Its configuration').fill('nowhere:none,,xvdz,w');
    await page.getByRole('button', { name: 'Attach', exact: true }).click();
    await page.locator('.notice-bad', { hasText: 'nowhere' }).waitFor();
  });
  await step(faults, 'a limit is changed', async () => {
    await page.evaluate(() => (location.hash = '#/limits'));
    const field = page.getByLabel('Limit vm', { exact: true });
    await field.waitFor();
    const before = await field.inputValue();
    const change = page.getByRole('button', { name: 'Change' });
    if (await change.isEnabled()) throw new Error('nothing was typed yet');
    await field.fill('9');
    await change.click();
    await page.waitForFunction(() => document.querySelector<HTMLButtonElement>('main button[type=submit]')?.disabled === true);
    await field.fill(before);
    await change.click();
    await page.waitForTimeout(1500);
    if ((await field.inputValue()) !== before) throw new Error('it is not as before');
  });
  await step(faults, 'the timeline by keyboard', async () => {
    await page.evaluate(() => (location.hash = '#/operations'));
    await page.locator('.timeline canvas').waitFor();
    await page.waitForTimeout(600);
    await page.locator('.timeline').focus();
    // What fails before its first step has none.
    for (let tries = 0; tries < 8 && (await page.locator('table.steps tbody tr').count()) === 0; tries += 1) {
      await page.keyboard.press('ArrowDown');
      await page.waitForTimeout(800);
    }
    await page.locator('table.steps tbody tr').first().waitFor();
    for (const key of ['Enter', '+', '-', 'Shift+ArrowLeft', ' ', ' ', 'h', 'h']) await page.keyboard.press(key);
    if (!page.url().includes('#/operations/')) throw new Error(`at ${page.url()}`);
  });
  await step(faults, 'a theme is kept', async () => {
    await page.getByLabel('Theme').selectOption('dark');
    await page.reload();
    await page.locator('header.top').waitFor();
    if ((await page.evaluate(() => document.documentElement.dataset.theme)) !== 'dark') throw new Error('it is not');
    await page.getByLabel('Theme').selectOption('system');
  });
  await step(faults, 'log out', async () => {
    await page.getByRole('button', { name: 'Log out' }).click();
    await page.locator('form.login').waitFor();
  });
}
