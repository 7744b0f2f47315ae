// What Xen Orchestra's server makes of a host, asked by its own interface: JSON-RPC over a WebSocket.
//
// Usage: node --experimental-websocket server.mjs ORCHESTRA HOST USER PASSWORD VM [TOKEN]
//
// ORCHESTRA is its address (127.0.0.1:8080), HOST that of xylem-web as its users write it (https://127.0.0.2), VM the name
// of a defined VM that is down and has no disks (prepare.py makes one); it is down again at the end. README.md says how to
// start both. TOKEN is an admin's token, with which the host is changed behind Xen Orchestra's back. A row is printed for
// each call. All of them are tried, whatever comes of those before.
import assert from 'node:assert/strict'
import { setTimeout as sleep } from 'node:timers/promises'

const [orchestra, host, user, password, name, token] = process.argv.slice(2)
// What a new one has; it is for loopback only.
const ACCOUNT = { username: 'admin@admin.net', password: 'admin' }
const END_MS = 900_000
const CALL_MS = 60_000

// The certificate is one that the host has made for itself.
process.env.NODE_TLS_REJECT_UNAUTHORIZED = '0'
let failed = 0
const guard = setTimeout(() => {
  console.error('server: it takes too long')
  process.exit(1)
}, END_MS)
guard.unref()

// A row of the table.
const row = async (what, does) => {
  const began = performance.now()
  try {
    const found = await does()
    const ms = Math.round(performance.now() - began)
    console.log(`ok    ${what} (${ms} ms)${found === undefined ? '' : `: ${found}`}`)
    return true
  } catch (error) {
    ++failed
    console.log(`FAILS ${what}: ${error.message}`)
    return false
  }
}

const connect = async () => {
  const socket = new WebSocket(`ws://${orchestra}/api/`)
  const waiting = new Map()
  socket.addEventListener('message', ({ data }) => {
    const { id, result, error } = JSON.parse(data)
    const call = waiting.get(id)
    waiting.delete(id)
    if (error === undefined) return call?.resolve(result)
    const why = error.data?.message ?? error.data?.code ?? error.data ?? error.message
    const more = error.data?.call?.params === undefined ? '' : ` of ${error.data.call.method}`
    call?.reject(new Error(`${error.message}: ${typeof why === 'string' ? why : JSON.stringify(why)}${more}`))
  })
  await new Promise((resolve, reject) => {
    socket.addEventListener('open', resolve)
    socket.addEventListener('error', () => reject(new Error(`${orchestra} does not answer`)))
  })
  let last = 0
  return {
    close: () => socket.close(),
    call: (method, params = {}) =>
      new Promise((resolve, reject) => {
        const id = ++last
        const late = setTimeout(() => reject(new Error(`${method}: no answer`)), CALL_MS)
        const then = does => value => (clearTimeout(late), does(value))
        waiting.set(id, { resolve: then(resolve), reject: then(reject) })
        socket.send(JSON.stringify({ jsonrpc: '2.0', id, method, params }))
      }),
  }
}

const xo = await connect()
const all = async filter => Object.values(await xo.call('xo.getAllObjects', { filter }))
const one = async id => (await all({ id }))[0]
const until = async (what, wanted, seconds = 20) => {
  for (const end = Date.now() + seconds * 1000; Date.now() < end; await sleep(100)) {
    const found = await wanted()
    if (found) return found
  }
  throw new Error(`${what}: it does not come`)
}

await xo.call('session.signIn', ACCOUNT)

const server = { id: undefined }
const added = await row('server.add, connect', async () => {
  for (const { id } of await xo.call('server.getAll')) await xo.call('server.remove', { id })
  server.id = await xo.call('server.add', {
    host, username: user, password, label: 'tried', allowUnauthorized: true, autoConnect: false,
  })
  await xo.call('server.enable', { id: server.id })
  const [it] = await xo.call('server.getAll')
  assert.equal(it.status, 'connected')
})
if (!added) process.exit(1)

let vm
await row('xo.getAllObjects', async () => {
  vm = await until('the VM', async () => (await all({ type: 'VM', name_label: name }))[0])
  const counts = {}
  for (const { type } of await all({})) counts[type] = (counts[type] ?? 0) + 1
  return Object.entries(counts).map(it => it.join(' ')).join(', ')
})
const id = vm.id
const vmIs = (what, test) => until(what, async () => test(await one(id)))
const powerIs = state => vmIs(state, it => it?.power_state === state)
const call = (what, method, params, then) =>
  row(what, async () => {
    const value = await xo.call(method, params)
    return then?.(value)
  })

// Power.
const power = async () => {
  await call('vm.start', 'vm.start', { id }, () => powerIs('Running').then(() => undefined))
  await call('vm.restart, clean', 'vm.restart', { id }, () => powerIs('Running').then(() => undefined))
  await call('vm.restart, hard', 'vm.restart', { id, force: true }, () => powerIs('Running').then(() => undefined))
  await call('vm.pause', 'vm.pause', { id }, () => powerIs('Paused').then(() => undefined))
  await call('vm.start, of one that is paused', 'vm.start', { id }, () => powerIs('Running').then(() => undefined))
  await call('vm.suspend', 'vm.suspend', { id }, () => powerIs('Suspended').then(() => undefined))
  await call('vm.resume', 'vm.resume', { id }, () => powerIs('Running').then(() => undefined))
  await call('vm.stop, clean', 'vm.stop', { id }, () => powerIs('Halted').then(() => undefined))
  await call('vm.start', 'vm.start', { id }, () => powerIs('Running').then(() => undefined))
  await call('vm.stop, hard', 'vm.stop', { id, force: true }, () => powerIs('Halted').then(() => undefined))
}

// What is said of a VM.
const set = async state => {
  const change = (what, values, test) =>
    call(`vm.set ${what}, ${state}`, 'vm.set', { id, ...values }, () => vmIs(what, test).then(() => undefined))
  await change('name_label', { name_label: `${name}-2` }, it => it.name_label === `${name}-2`)
  await change('name_label back', { name_label: name }, it => it.name_label === name)
  await change('name_description', { name_description: state }, it => it.name_description === state)
  const memory = state === 'down' ? 48 << 20 : 40 << 20
  const sizes = state === 'down' ? { memory } : { memoryMax: memory }
  await change('memory', sizes, it => it.memory.dynamic[1] === memory)
  const cpus = state === 'down' ? 3 : 2
  await change('CPUs', { CPUs: cpus }, it => it.CPUs.number === cpus)
  await change('notes', { notes: 'of tests' }, it => it.notes === 'of tests')
  await call(`tag.add, ${state}`, 'tag.add', { id, tag: state })
  await vmIs('the tag', it => it.tags.includes(state)).catch(error => console.log(`FAILS tag: ${error.message}`))
  await call(`tag.remove, ${state}`, 'tag.remove', { id, tag: state })
}

// Disks, interfaces.
const disks = async state => {
  const [sr] = await all({ type: 'SR' })
  let vdi
  let vbd
  await call(`disk.create, ${state}`, 'disk.create', { name: `tried-${state}`, size: 8 << 20, sr: sr.id, vm: id }, async found => {
    vdi = found
    vbd = await until('its VBD', async () => (await all({ type: 'VBD', VDI: vdi }))[0])
    if (state === 'up') await until('it is attached', async () => (await one(vbd.id)).attached)
  })
  if (vbd === undefined) return
  await call(`vdi.set name, ${state}`, 'vdi.set', { id: vdi, name_label: `renamed-${state}` }, () =>
    until('the name', async () => (await one(vdi)).name_label === `renamed-${state}`).then(() => undefined))
  if (state === 'up') {
    await call('vbd.disconnect', 'vbd.disconnect', { id: vbd.id }, () =>
      until('it is off', async () => !(await one(vbd.id)).attached).then(() => undefined))
    await call('vbd.connect', 'vbd.connect', { id: vbd.id }, () =>
      until('it is on', async () => (await one(vbd.id)).attached).then(() => undefined))
  }
  await call(`vbd.disconnect, vbd.delete, ${state}`, state === 'up' ? 'vbd.disconnect' : 'vbd.delete', { id: vbd.id })
  if (state === 'up') await call('vbd.delete, up', 'vbd.delete', { id: vbd.id })
  await until('it is gone', async () => (await one(vbd.id)) === undefined).catch(error => console.log(`FAILS vbd: ${error.message}`))
  await call(`vm.attachDisk, ${state}`, 'vm.attachDisk', { vm: id, vdi }, () =>
    until('its VBD', async () => (await all({ type: 'VBD', VDI: vdi }))[0]).then(it => { vbd = it }))
  if (state === 'down') return
  await call('vbd.disconnect', 'vbd.disconnect', { id: vbd.id })
  await call('vdi.delete', 'vdi.delete', { id: vdi }, () => until('it is gone', async () => (await one(vdi)) === undefined).then(() => undefined))
}

const interfaces = async state => {
  const [network] = await all({ type: 'network' })
  let vif
  await call(`vm.createInterface, ${state}`, 'vm.createInterface', { vm: id, network: network.id }, found => {
    vif = found
  })
  if (vif === undefined) return
  if (state === 'up') {
    await call('vif.disconnect', 'vif.disconnect', { id: vif })
    await call('vif.connect', 'vif.connect', { id: vif }, () =>
      until('it is on', async () => (await one(vif)).attached).then(() => undefined))
    await call('vif.disconnect', 'vif.disconnect', { id: vif })
  }
  await call(`vif.delete, ${state}`, 'vif.delete', { id: vif }, () =>
    until('it is gone', async () => (await one(vif)) === undefined).then(() => undefined))
}

const snapshots = async (state, saveMemory) => {
  const what = `${saveMemory ? 'with memory' : 'of disks'}, ${state}`
  let snapshot
  await call(`vm.snapshot ${what}`, 'vm.snapshot', { id, name: 'before a test', saveMemory, description: 'of tests' }, async found => {
    snapshot = found
    const it = await until('the snapshot', () => one(snapshot))
    assert.equal(it.type, 'VM-snapshot')
    assert.equal(it.$snapshot_of, id)
    assert.deepEqual((await one(id)).snapshots, [snapshot])
    return `${it.name_label}, ${it.power_state}, ${it.name_description}`
  })
  if (snapshot === undefined) return
  await call(`vm.revert ${what}`, 'vm.revert', { snapshot }, () => powerIs(state === 'up' ? 'Running' : 'Halted').then(() => undefined))
  await call(`vm.delete of a snapshot ${what}`, 'vm.delete', { id: snapshot }, () =>
    until('it is gone', async () => (await one(snapshot)) === undefined).then(() => undefined))
}

const stats = async () => {
  const [it] = await all({ type: 'host' })
  await call('vm.stats', 'vm.stats', { id, granularity: 'seconds' }, ({ stats, interval }) => {
    assert.ok(Object.keys(stats).length > 0, 'nothing is in it')
    return `each ${interval} s: ${Object.keys(stats).join(' ')}`
  })
  await call('host.stats', 'host.stats', { host: it.id, granularity: 'seconds' }, ({ stats, interval }) => {
    assert.ok(Object.keys(stats).length > 0, 'nothing is in it')
    return `each ${interval} s: ${Object.keys(stats).join(' ')}`
  })
}

// What is typed comes back: the guest's console echoes it.
const console_ = () =>
  row('console by /api/consoles', async () => {
    const token = await xo.call('token.create')
    const socket = new WebSocket(`ws://${orchestra}/api/consoles/${id}`, {
      protocols: ['binary'],
      headers: { cookie: `token=${token}` },
    })
    socket.binaryType = 'arraybuffer'
    let seen = Buffer.alloc(0)
    socket.addEventListener('message', ({ data }) => { seen = Buffer.concat([seen, Buffer.from(data)]) })
    const take = async count => {
      await until(`${count} bytes`, () => seen.length >= count)
      const taken = seen.subarray(0, count)
      seen = seen.subarray(count)
      return taken
    }
    const say = bytes => socket.send(Buffer.from(bytes))
    await new Promise((resolve, reject) => {
      socket.addEventListener('open', resolve)
      socket.addEventListener('error', () => reject(new Error('no WebSocket')))
    })
    try {
      // RFB (RFC 6143): the version, no password, shared.
      say(await take(12))
      assert.deepEqual([...(await take(2))], [1, 1])
      say([1])
      assert.deepEqual([...(await take(4))], [0, 0, 0, 0])
      say([1])
      const init = await take(24)
      const title = await take(init.readUInt32BE(20))
      say([3, 0, 0, 0, 0, 0, ...init.subarray(0, 4)])
      await take(4 + 12)
      await sleep(300)
      seen = Buffer.alloc(0)
      // What changes once a key is pressed.
      say([3, 1, 0, 0, 0, 0, ...init.subarray(0, 4)])
      say([4, 1, 0, 0, 0, 0, 0xff, 0x0d])
      assert.equal((await take(4))[0], 0)
      return `${init.readUInt16BE(0)} by ${init.readUInt16BE(2)}, called ${title}; it answers a key`
    } finally {
      socket.close()
    }
  })

const copies = async () => {
  for (const [what, method, params] of [
    ['vm.clone', 'vm.clone', { id, name: 'tried-clone', full_copy: false }],
    ['vm.copy', 'vm.copy', { vm: id, name: 'tried-copy', sr: (await all({ type: 'SR' }))[0].id }],
  ]) {
    let copy
    await call(what, method, params, found => { copy = found })
    if (copy === undefined) continue
    await call(`vm.delete of it`, 'vm.delete', { id: copy, deleteDisks: true }, () =>
      until('it is gone', async () => (await one(copy)) === undefined).then(() => undefined))
  }
}

// A VM of a template, as the page of Xen Orchestra makes it.
const templates = async () => {
  let template
  await call('vm.clone', 'vm.clone', { id, name: 'tried-template', full_copy: false }, found => { template = found })
  if (template === undefined) return
  await call('vm.convertToTemplate', 'vm.convertToTemplate', { id: template }, () =>
    until('a template', async () => (await one(template))?.type === 'VM-template').then(() => undefined))
  const [network] = await all({ type: 'network' })
  const [sr] = await all({ type: 'SR' })
  let made
  await call('vm.create', 'vm.create', {
    template, name_label: 'tried-made', name_description: 'of tests', clone: true, CPUs: 2, memory: 40 << 20,
    VIFs: [{ network: network.id }], VDIs: [{ name_label: 'tried-data', size: 8 << 20, SR: sr.id, type: 'system' }],
    bootAfterCreate: true,
  }, found => { made = found })
  if (made !== undefined) {
    await row('it runs', () => until('Running', async () => (await one(made))?.power_state === 'Running').then(() => undefined))
    await call('vm.delete, while it runs', 'vm.delete', { id: made, deleteDisks: true, force: true }, () =>
      until('it is gone', async () => (await one(made)) === undefined).then(() => undefined))
  }
  await call('vm.delete of the template', 'vm.delete', { id: template, deleteDisks: true })
}

const rest = async () => {
  const [it] = await all({ type: 'host' })
  const [sr] = await all({ type: 'SR' })
  await call('sr.scan', 'sr.scan', { id: sr.id })
  await call('host.set', 'host.set', { id: it.id, name_description: 'of tests' }, () =>
    until('it is set', async () => (await one(it.id)).name_description === 'of tests').then(() => undefined))
  await call('pool.set', 'pool.set', { id: it.$pool, name_description: 'of tests' })
  await call('host.disable', 'host.disable', { id: it.id }, () => until('it is off', async () => !(await one(it.id)).enabled).then(() => undefined))
  await call('host.enable', 'host.enable', { id: it.id }, () => until('it is on', async () => (await one(it.id)).enabled).then(() => undefined))
  await call('task of others are seen', 'xo.getAllObjects', { filter: { type: 'task' } }, it => `${Object.keys(it).length}`)
}

// What others do on the host is seen without a question: here it is done by xylem-web's own interface.
const others = async () => {
  const own = async (method, path) => {
    const answer = await fetch(`${host}/v1/${path}`, { method, headers: { authorization: `Bearer ${token}` } })
    assert.ok(answer.ok, `${path}: ${answer.status}`)
  }
  if (token === undefined) return
  await row('start by others is seen', () => own('POST', `vms/${id}/start`).then(() => powerIs('Running')).then(() => undefined))
  await row('destroy by others is seen', () => own('POST', `vms/${id}/destroy`).then(() => powerIs('Halted')).then(() => undefined))
}

await others()
await power()
await set('down')
await disks('down')
await interfaces('down')
await copies()
await templates()
await call('vm.start', 'vm.start', { id }, () => powerIs('Running').then(() => undefined))
await console_()
await disks('up')
await interfaces('up')
await snapshots('up', false)
await snapshots('up', true)
await set('up')
await stats()
await rest()
await call('vm.stop, hard', 'vm.stop', { id, force: true }, () => powerIs('Halted').then(() => undefined))
await row('vdi.delete of what is left', async () => {
  for (const it of await all({ type: 'VDI' })) if (/^(renamed|tried)-/.test(it.name_label)) await xo.call('vdi.delete', { id: it.id })
})
await row('server.disable, server.remove', async () => {
  await xo.call('server.disable', { id: server.id })
  await xo.call('server.remove', { id: server.id })
})
xo.close()
console.log(failed === 0 ? 'server: all is as expected' : `server: ${failed} are not as expected`)
process.exit(failed === 0 ? 0 : 1)
