// Follows all objects by the client of npm, xen-api, which Xen Orchestra is made with, while a VM goes on and off.
//
// Usage: node follow.mjs URL USER PASSWORD VM [json-rpc|xml-rpc|auto]
//
// VM is the name of a defined VM that is down; it is down again at the end. USER is an admin, and nobody else changes the
// host meanwhile. Ends at the first expectation that does not hold.
import assert from 'node:assert/strict'
import { createClient } from 'xen-api'

const [url, user, password, name, transport = 'auto'] = process.argv.slice(2)
const END_MS = 60_000

const ok = what => console.log(`ok: ${what}`)
setTimeout(() => {
  console.error('follow: it takes too long')
  process.exit(1)
}, END_MS).unref()

const xapi = createClient({ url, auth: { user, password }, transport, allowUnauthorized: true })

// An object once it is as wanted, as events tell of it.
const until = async (what, wanted) => {
  for (let tries = 0; tries < 200; ++tries) {
    const found = wanted()
    if (found) {
      ok(what)
      return found
    }
    await new Promise(resolve => setTimeout(resolve, 50))
  }
  throw new Error(`${what}: it does not come`)
}
const all = type => Object.values(xapi.objects.all).filter(it => it.$type === type)
const fails = async (code, promise) => {
  await assert.rejects(promise, error => {
    assert.equal(error.code, code)
    return true
  })
  ok(`it fails with ${code}`)
}

const followed = async () => {
  await xapi.connect()
  await xapi.objectsFetched
  ok('connected, and all objects are there')
  assert.equal(xapi.pool.$master.software_version.product_brand, 'Xylem')
  const direct = await xapi.call('VM.get_all_records')
  assert.deepEqual(all('VM').map(it => it.$ref).sort(), Object.keys(direct).sort())
  ok('as many VMs as there are')
  for (const vm of all('VM')) {
    for (const vbd of vm.$VBDs) assert.equal(vbd.$VM, vm)
    for (const vif of vm.$VIFs) assert.equal(vif.$network.$type, 'network')
    assert.equal(vm.$metrics.$type, 'VM_metrics')
  }
  ok('references point to objects')
  await xapi.barrier()
  ok('a barrier')
}

const power = async () => {
  const vm = await until('the VM', () => all('VM').find(it => it.name_label === name))
  const { $ref: ref } = vm
  const state = () => xapi.getObject(ref).power_state
  assert.equal(state(), 'Halted')
  assert.equal(await xapi.callAsync('VM.start', ref, false, false), '')
  await until('it runs', () => state() === 'Running')
  await fails('VM_BAD_POWER_STATE', xapi.callAsync('VM.start', ref, false, false))
  await xapi.callAsync('VM.pause', ref)
  await until('it is paused', () => state() === 'Paused')
  await xapi.callAsync('VM.unpause', ref)
  await until('it runs again', () => state() === 'Running')
  await xapi.setField('VM', ref, 'name_description', 'of tests')
  await until('a label', () => xapi.getObject(ref).name_description === 'of tests')
  await xapi.setFieldEntries('VM', ref, 'other_config', { colour: 'green' })
  await until('another', () => xapi.getObject(ref).other_config.colour === 'green')
  return ref
}

const devices = async ref => {
  const [sr] = all('SR')
  const vdi = await xapi.callAsync('VDI.create', {
    SR: sr.$ref, virtual_size: 8 << 20, name_label: 'follow', type: 'user', sharable: false, read_only: false,
    other_config: {},
  }).then(result => xapi.parseTaskResult?.(result) ?? result)
  assert.match(vdi, /^OpaqueRef:/)
  const [userdevice] = await xapi.call('VM.get_allowed_VBD_devices', ref)
  const vbd = await xapi.call('VBD.create', {
    VM: ref, VDI: vdi, userdevice, bootable: false, mode: 'RW', type: 'Disk', empty: false, other_config: {},
    qos_algorithm_type: '', qos_algorithm_params: {},
  })
  await xapi.callAsync('VBD.plug', vbd)
  await until('a disk', () => xapi.getObject(vbd).currently_attached)
  assert.equal(xapi.getObject(vbd).$VDI.$ref, vdi)
  await xapi.callAsync('VBD.unplug', vbd)
  await until('no disk', () => !xapi.getObject(vbd).currently_attached)
  await xapi.call('VBD.destroy', vbd)
  await until('it is gone', () => xapi.getObject(vbd, null) === null)
  await xapi.callAsync('VDI.destroy', vdi)
  await until('the disk is gone', () => xapi.getObject(vdi, null) === null)
}

try {
  await followed()
  const ref = await power()
  await devices(ref)
  await fails('MESSAGE_METHOD_UNKNOWN', xapi.call('VM.fly', ref))
  await fails('HANDLE_INVALID', xapi.call('VM.get_record', 'OpaqueRef:NULL'))
  await xapi.callAsync('VM.hard_shutdown', ref)
  await until('it is down', () => xapi.getObject(ref).power_state === 'Halted')
  await until('tasks are gone', () => all('task').every(it => it.status === 'pending'))
  await xapi.disconnect()
  console.log('follow: all is as expected')
  process.exit(0)
} catch (error) {
  console.error('follow:', error)
  process.exit(1)
}
