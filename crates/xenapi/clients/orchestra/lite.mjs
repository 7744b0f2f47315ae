// What XO Lite, the page that a host of XCP-ng serves, makes of a host, in a browser.
//
// Usage: node lite.mjs HOST PASSWORD VM FOLDER MODULES [PICTURES]
//
// HOST is the address of xylem-web at the usual port (https://127.0.0.2), which has a client called root, as XO Lite knows no
// other; FOLDER is what XO Lite was built into. The browser gets the page's files from there and all else from HOST, as if
// that served both. MODULES is a folder where playwright-core is installed (page/), PICTURES one for screenshots. VM is the
// name of a defined VM that is down; it is down again at the end.
import assert from 'node:assert/strict'
import { existsSync } from 'node:fs'
import { createRequire } from 'node:module'
import { join, resolve } from 'node:path'

const [host, password, name, folder, modules, pictures] = process.argv.slice(2)
const { chromium } = createRequire(resolve(modules, 'x.js'))('playwright-core')
const SLOW_MS = 20_000

const browser = await chromium.launch({ executablePath: '/usr/bin/chromium', args: ['--no-sandbox', '--ignore-certificate-errors', '--disable-features=LocalNetworkAccessChecks,LocalNetworkAccessChecksWebSockets'] })
const context = await browser.newContext({ ignoreHTTPSErrors: true, viewport: { width: 1400, height: 900 } })
const page = await context.newPage()
page.setDefaultTimeout(SLOW_MS)

// What XO Lite complains of by itself.
const EXCUSED = [
  // Numbers of a VM that is down.
  /is halted or host could not be found/,
  // A chart of the pool asks for the host's network interfaces (pif_eth0_rx), of which Xylem has no numbers.
  /reading 'length'/,
]
const complaints = []
const complain = text => {
  if (!EXCUSED.some(it => it.test(text))) complaints.push(text)
}
page.on('console', it => {
  if (it.type() === 'error') complain(it.text())
})
page.on('pageerror', it => complain(String(it)))
page.on('requestfailed', it => {
  if (!it.failure()?.errorText.includes('ABORTED')) complain(`${it.url()}: ${it.failure()?.errorText}`)
})

await page.route(`${host}/**`, async route => {
  const request = route.request()
  const { pathname } = new URL(request.url())
  const file = join(folder, pathname === '/' ? 'index.html' : pathname)
  if (request.method() === 'GET' && existsSync(file)) await route.fulfill({ path: file })
  else await route.continue()
})

let pictured = 0
const row = async (what, does) => {
  await does()
  if (pictures) await page.screenshot({ path: join(pictures, `${String(++pictured).padStart(2, '0')}-${what.replace(/\W+/g, '-')}.png`) })
  console.log(`ok    ${what}`)
}
const call = (method, ...params) =>
  page.evaluate(
    async ({ method, params }) => {
      const body = JSON.stringify({ jsonrpc: '2.0', id: 1, method, params })
      const answer = await (await fetch('/jsonrpc', { method: 'POST', body })).json()
      if (answer.error) throw new Error(JSON.stringify(answer.error))
      return answer.result
    },
    { method, params }
  )
const see = text => page.getByText(text, { exact: false }).first().waitFor()

try {
  await page.goto(host)
  await row('log in', async () => {
    await page.locator('input[name=password]').fill(password)
    await page.locator('button[type=submit]').click()
    await page.locator('input[name=password]').waitFor({ state: 'detached' })
  })
  const session = await call('session.login_with_password', 'root', password)
  const [pool] = await call('pool.get_all', session)
  const poolId = await call('pool.get_uuid', session, pool)
  const [hostRef] = await call('host.get_all', session)
  const hostId = await call('host.get_uuid', session, hostRef)
  const [vm] = await call('VM.get_by_name_label', session, name)
  const id = await call('VM.get_uuid', session, vm)
  const go = async path => {
    await page.goto(`${host}/#${path}`)
    await page.waitForLoadState('networkidle').catch(() => {})
    await page.waitForTimeout(1500)
  }
  for (const view of ['dashboard', 'alarms', 'stats', 'system', 'network', 'storage', 'tasks', 'hosts', 'vms'])
    await row(`pool, ${view}`, () => go(`/pool/${poolId}/${view}`))
  await row('the VM is listed', () => see(name))
  for (const view of ['dashboard', 'console', 'system', 'network', 'storage', 'tasks', 'vms'])
    await row(`host, ${view}`, () => go(`/host/${hostId}/${view}`))
  for (const view of ['dashboard', 'alarms', 'stats', 'system', 'network', 'vdis', 'tasks', 'console'])
    await row(`VM that is down, ${view}`, () => go(`/vm/${id}/${view}`))
  const choose = async (...words) => {
    await page.getByRole('button', { name: 'Change state' }).click()
    for (const word of words) {
      await page.getByText(word, { exact: true }).first().hover()
      await page.getByText(word, { exact: true }).first().click()
    }
  }
  const powerIs = async state => {
    for (let tries = 0; tries < 100; ++tries) {
      if ((await call('VM.get_power_state', session, vm)) === state) return
      await page.waitForTimeout(100)
    }
    assert.fail(`it is not ${state}`)
  }
  await row('start', async () => {
    await choose('Start')
    await powerIs('Running')
    await page.waitForTimeout(4000)
  })
  await row('console', async () => {
    await page.locator('canvas').first().waitFor()
    await page.waitForTimeout(1000)
    await page.locator('canvas').first().click()
    await page.keyboard.type('hello')
    await page.keyboard.press('Enter')
    await page.waitForTimeout(1000)
  })
  for (const view of ['dashboard', 'stats', 'system', 'network', 'vdis', 'tasks'])
    await row(`VM that runs, ${view}`, () => go(`/vm/${id}/${view}`))
  await row('force shutdown', async () => {
    await choose('Force shutdown')
    await page.waitForTimeout(500)
    const confirm = page.getByRole('dialog').getByRole('button').last()
    if (await confirm.isVisible().catch(() => false)) await confirm.click()
    await powerIs('Halted')
    await page.waitForTimeout(4000)
  })
  assert.deepEqual(complaints, [], 'the browser complains')
  console.log('lite: all is as expected')
} catch (error) {
  if (pictures) await page.screenshot({ path: join(pictures, 'failed.png') })
  console.error(error)
  console.error(complaints)
  process.exitCode = 1
} finally {
  await browser.close()
}
