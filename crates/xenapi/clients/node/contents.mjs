// Sends the contents of a VDI and fetches them again, by the client of npm, xen-api.
//
// Usage: node contents.mjs URL USER PASSWORD FOLDER
//
// The host is simulated (xylemd-sim --disks FOLDER), on this machine, and USER is an admin. Ends at the first expectation that
// does not hold.
import assert from 'node:assert/strict'
import { randomBytes } from 'node:crypto'
import { readFile, writeFile } from 'node:fs/promises'
import { join } from 'node:path'
import { Readable } from 'node:stream'
import { buffer } from 'node:stream/consumers'
import { createClient } from 'xen-api'

const [url, user, password, folder] = process.argv.slice(2)
const BYTES = (9 << 20) + 512
const END_MS = 60_000

const ok = what => console.log(`ok: ${what}`)
setTimeout(() => {
  console.error('contents: it takes too long')
  process.exit(1)
}, END_MS).unref()

const xapi = createClient({ url, auth: { user, password }, allowUnauthorized: true })

// With zeros at its begin, in its midst and at its end.
const data = Buffer.alloc(BYTES)
randomBytes(2 << 20).copy(data, (1 << 20) + 7)
randomBytes(1 << 20).copy(data, 6 << 20)

const stream = (bytes, length) => {
  const parts = []
  for (let at = 0; at < bytes.length; at += 65536) parts.push(bytes.subarray(at, at + 65536))
  const made = Readable.from(parts)
  return Object.assign(made, { length })
}
const task = async () => xapi.call('task.create', 'contents', 'of a trial')
const put = async (vdi, body, query = {}) =>
  xapi.putResource(body, '/import_raw_vdi/', { query: { format: 'raw', vdi, ...query }, task: await task() })
const get = async (vdi, query = {}) => {
  const response = await xapi.getResource('/export_raw_vdi/', { query: { format: 'raw', vdi, ...query }, task: await task() })
  const bytes = await buffer(response.body ?? response)
  await response.task
  return bytes
}

try {
  await xapi.connect()
  await xapi.objectsFetched
  const sr = Object.values(xapi.objects.all).find(it => it.$type === 'SR')
  const vdi = await xapi.call('VDI.create', {
    SR: sr.$ref, virtual_size: BYTES, name_label: 'contents', type: 'user', sharable: false, read_only: false, other_config: {},
  })
  const file = join(folder, `${sr.name_label}:${await xapi.call('VDI.get_location', vdi)}`)
  await writeFile(file, Buffer.alloc(BYTES, 9))

  const result = await put(vdi, stream(data, BYTES))
  assert.ok(String(result).includes(vdi), `the task's result is ${result}`)
  assert.ok(data.equals(await readFile(file)))
  ok('a stream is imported')
  assert.ok(data.equals(await get(vdi)))
  ok('and exported again')
  const uuid = await xapi.call('VDI.get_uuid', vdi)
  const begin = randomBytes(5000)
  await put(uuid, begin)
  begin.copy(data)
  assert.ok(data.equals(await get(uuid)))
  ok('a part of it, from memory')
  const unknown = randomBytes(3 << 20)
  await put(vdi, stream(unknown))
  unknown.copy(data)
  assert.ok(data.equals(await get(vdi)))
  ok('a stream of no known length')

  await assert.rejects(get(vdi, { format: 'qcow2' }))
  await assert.rejects(put(vdi, Buffer.alloc(BYTES + 1)))
  await assert.rejects(get(vdi, { vdi: 'OpaqueRef:NULL' }))
  assert.ok(data.equals(await get(vdi)))
  ok('what cannot be is refused')
  // It looks first whether it may send a stream.
  const tasks = Object.values(await xapi.call('task.get_all_records'))
  assert.deepEqual(tasks.filter(it => it.name_label === 'Importing raw VDI'), [])
  ok('what it only tries leaves no task')
  await xapi.call('VDI.destroy', vdi)
  await xapi.disconnect()
  console.log('contents: all is as expected')
  process.exit(0)
} catch (error) {
  console.error('contents:', error)
  process.exit(1)
}
