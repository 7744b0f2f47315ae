// The views, how each is brought up, and what has to be in it.
import type { Page } from 'playwright-core';

export interface View {
  name: string;
  open: (page: Page) => Promise<void>;
}

async function at(page: Page, hash: string): Promise<void> {
  await page.evaluate((to) => {
    location.hash = to;
  }, hash);
}

/** The UUID of some VM in a state. */
export async function someVm(page: Page, state: string): Promise<string> {
  await at(page, `#/vms?state=${state}`);
  const link = page.locator('.grid-row .cell-name a').first();
  await link.waitFor();
  const href = (await link.getAttribute('href')) ?? '';
  return href.split('/').at(-1) ?? '';
}

export const views: View[] = [
  {
    name: 'host',
    open: async (page) => {
      await at(page, '#/');
      await page.locator('.states li').first().waitFor();
      await page.getByRole('meter', { name: 'Used' }).waitFor();
    },
  },
  {
    name: 'vms',
    open: async (page) => {
      await at(page, '#/vms');
      await page.locator('.grid-row').first().waitFor();
    },
  },
  {
    name: 'vms-selected',
    open: async (page) => {
      await at(page, '#/vms?q=web');
      await page.locator('.grid-row').first().waitFor();
      for (const index of [0, 1, 2]) await page.locator('.grid-row input').nth(index).click();
      await page.locator('.chosen').waitFor();
    },
  },
  {
    name: 'destroy-dialog',
    open: async (page) => {
      await at(page, '#/vms?q=web');
      await page.locator('.grid-row').first().waitFor();
      if ((await page.locator('.chosen').count()) === 0) await page.locator('.grid-row input').first().click();
      await page.locator('.chosen .button.danger').click();
      await page.locator('dialog[open]').waitFor();
    },
  },
  {
    name: 'vm',
    open: async (page) => {
      await page.keyboard.press('Escape');
      await at(page, `#/vm/${await someVm(page, 'running')}`);
      await page.getByRole('heading', { name: 'Devices' }).waitFor();
    },
  },
  {
    name: 'vm-text',
    open: async (page) => {
      await at(page, `#/vm/${await someVm(page, 'running')}/text`);
      await page.locator('pre.text').waitFor();
    },
  },
  {
    name: 'vm-graphs',
    open: async (page) => {
      await at(page, `#/vm/${await someVm(page, 'running')}/graphs`);
      await page.locator('.tabs').waitFor();
      await page.waitForTimeout(400);
    },
  },
  ...['console', 'screen'].map((tab) => ({
    name: `vm-${tab}`,
    open: async (page: Page) => {
      await at(page, `#/vm/${await someVm(page, 'running')}/${tab}`);
      await page.locator('.tabs').waitFor();
      // Not every server has these.
      if ((await page.locator(`.tabs a[href$="/${tab}"]`).count()) > 0) await page.locator(`.${tab} canvas, .${tab} .xterm`).first().waitFor();
      await page.waitForTimeout(400);
    },
  })),
  {
    name: 'operations',
    open: async (page) => {
      await at(page, '#/operations');
      await page.locator('.timeline canvas').waitFor();
      await page.waitForTimeout(1200);
    },
  },
  {
    name: 'operation',
    open: async (page) => {
      await at(page, '#/operations');
      await page.locator('.scroll.tall tbody a').first().click();
      await page.locator('table.steps tbody tr').first().waitFor();
      await page.getByRole('button', { name: 'Show in the timeline' }).click();
      await page.waitForTimeout(800);
    },
  },
  {
    name: 'create',
    open: async (page) => {
      await at(page, '#/create');
      await page.locator('.config textarea').waitFor();
      await page.locator('section[aria-busy=false] .notice').first().waitFor();
    },
  },
  {
    name: 'edit',
    open: async (page) => {
      await at(page, `#/edit/${await someVm(page, 'running')}`);
      await page.locator('.config textarea').waitFor();
      await page.locator('section[aria-busy=false] .notice').first().waitFor();
    },
  },
  {
    name: 'storage',
    open: async (page) => {
      await at(page, '#/storage');
      await page.locator('#vdis-title').waitFor();
    },
  },
  {
    name: 'networks',
    open: async (page) => {
      await at(page, '#/networks');
      await page.getByRole('region', { name: 'xenbr0' }).waitFor();
      await page.locator('tbody td.num', { hasText: '/s' }).first().waitFor();
    },
  },
  {
    name: 'network',
    open: async (page) => {
      await at(page, '#/networks');
      await page.getByRole('link', { name: /show those on xenbr0$/ }).click();
      await page.getByRole('heading', { name: 'Interfaces of VMs on xenbr0' }).waitFor();
    },
  },
  {
    name: 'store',
    open: async (page) => {
      await at(page, '#/store');
      await page.locator('table.store .toggle[aria-expanded=false]').nth(1).click();
      await page.locator('table.store .toggle[aria-expanded=true]').waitFor();
      await page.getByLabel('Follow changes').check();
      await page.waitForTimeout(600);
    },
  },
  {
    name: 'limits',
    open: async (page) => {
      await at(page, '#/limits');
      await page.locator('table').waitFor();
    },
  },
  {
    name: 'log',
    open: async (page) => {
      await at(page, '#/log');
      await page.locator('table tbody tr').first().waitFor();
    },
  },
  {
    name: 'nowhere',
    open: async (page) => {
      await at(page, '#/nowhere');
      await page.getByRole('heading', { name: 'No such view' }).waitFor();
    },
  },
];
