import { describe, expect, it } from 'vitest';
import { actions, allows, canDo, warnings } from '../../src/model/actions';
import { deviceLines, xenbusState } from '../../src/model/devices';
import { bytes, duration } from '../../src/model/format';
import { failedLately, memoryUse } from '../../src/model/host';
import { byReason, isOver, progressWords } from '../../src/model/jobs';
import { kindOf } from '../../src/model/kinds';
import { merged } from '../../src/model/log';
import { Rates, interfaceLines, networkState, ratesByNetwork } from '../../src/model/networks';
import { remember } from '../../src/model/operations';
import { isOfHost, placesFor, tagWords } from '../../src/model/places';
import { failedLogInOf, formatRoute, logInWordsOf, parseRoute, tokenOf } from '../../src/model/route';
import { coverage, extended, moved, toggled } from '../../src/model/selection';
import { graphsOf } from '../../src/model/series';
import { ownerOf } from '../../src/model/storage';
import { scrollFor, windowOf } from '../../src/model/virtual';
import type { Device, StateChange, Traffic } from '../../src/model/types';
import { operation, vm } from './helpers';

const action = (name: string) => actions.find((it) => it.name === name)!;

describe('actions', () => {
  it('are offered by state and role', () => {
    expect(canDo(action('start'), vm('a', { state: 'down' }))).toBe(true);
    expect(canDo(action('start'), vm('a'))).toBe(false);
    expect(canDo(action('destroy'), vm('a', { state: 'stuck' }))).toBe(true);
    expect(allows('viewer', 'operator')).toBe(false);
    expect(allows('admin', 'operator')).toBe(true);
    expect(allows(undefined, 'viewer')).toBe(false);
  });
  it('say what is lost', () => {
    expect(warnings(action('pause'), [vm('a')])).toEqual([]);
    expect(warnings(action('destroy'), [vm('a')]).join(' ')).toMatch(/memory is lost.*Disks stay/);
    expect(warnings(action('destroy'), [vm('a'), vm('b', { defined: false })])[1]).toMatch(/^1 of them/);
    expect(warnings(action('destroy'), [vm('b', { defined: false })])[1]).toMatch(/^It is not defined/);
  });
});

describe('jobs', () => {
  const job = { id: 1, doing: 'Starting', total: 3, done: 1, isStopped: false, failures: [{ uuid: 'u', name: 'a', why: 'a: no memory' }] };
  it('are told in one line', () => {
    expect(progressWords(job)).toBe('Starting: 2 of 3, 1 failed');
    expect(isOver(job)).toBe(false);
    expect(isOver({ ...job, done: 2 })).toBe(true);
  });
  it('have what failed by its reason', () => {
    expect(byReason([...job.failures, { uuid: 'v', name: 'bb', why: 'bb: no memory' }, { uuid: 'w', name: 'c', why: 'other' }])).toEqual([
      { why: '…: no memory', names: ['a', 'bb'] },
      { why: 'other', names: ['c'] },
    ]);
  });
});

describe('words', () => {
  it('for sizes and times', () => {
    expect([0, 1023, 1024, 1536, 5 * 1024 ** 3].map(bytes)).toEqual(['0 B', '1023 B', '1 KiB', '1.5 KiB', '5 GiB']);
    expect(bytes(null)).toBe('–');
    expect([950, 1500, 2.5e6, 1.234e9, 75e9, 3700e9].map(duration)).toEqual(['950 ns', '1.50 µs', '2.50 ms', '1.23 s', '1 min 15 s', '1 h 1 min']);
  });
  it('for steps', () => {
    expect(['await backends', 'attach disks', 'build', 'record', 'create domain', 'join networks', 'insert CDs', 'new'].map(kindOf)).toEqual([
      'wait', 'storage', 'memory', 'store', 'domain', 'device', 'storage', 'other',
    ]);
  });
  it('for devices', () => {
    expect(xenbusState(4)).toBe('Connected');
    expect(xenbusState(null)).toBe('–');
    const device = { vm: 'u', kind: 'vbd', devid: 51712, config: '', state: 'attached' };
    const row = { vdev: 51712, backend_domid: 0, frontend_domid: 3, state: 4, backend_path: '' };
    expect(deviceLines([device], [row], [])[0]).toMatchObject({ frontend: 'Connected', backend: 'domain 0' });
    expect(deviceLines([{ ...device, frontend_state: 5, backend_state: 6 }], [], [])[0]).toMatchObject({ frontend: 'Closing', backend: 'Closed' });
  });
  it('for owners of VDIs', () => {
    expect(ownerOf('xylem/c0da1b88-c0aa-410c-9210-813fd25fb622/51712')?.vdev).toBe('51712');
    expect(ownerOf('client')).toBeNull();
  });
});

describe('the host', () => {
  it('gives its memory to VMs and to others', () => {
    const host = { name: 'h', kernel: 'k', xen_version: '4.17.0', cpus: 16, memory_mib: 100, memory_free_mib: 40, booted_unix_ms: 0 };
    const row = { name: null, uuid: '', kind: 'pv', mem_max_kib: 0, vcpus_online: 1, cpu_time_ns: 0, started_unix_s: null };
    expect(memoryUse(host, [{ ...row, domid: 0, mem_kib: 10, managed: false }, { ...row, domid: 1, mem_kib: 20, managed: true }])).toMatchObject({
      totalKib: 102400, freeKib: 40960, domain0Kib: 10, managedKib: 20, foreignKib: 0,
    });
  });
  it('has the latest failures first', () => {
    const list = [operation(1, { failure: 'x', ended_ns: 5 }), operation(2), operation(3, { failure: 'y', ended_ns: 9 })];
    expect(failedLately(list, 5).map((it) => it.id)).toEqual([3, 1]);
  });
});

describe('networks', () => {
  const vif = (of: string, devid: number, network?: string): Device => ({
    vm: `${of}-uuid`, kind: 'vif', devid, config: `mac=00:16:3e:00:00:0${devid}`, state: 'attached', ...(network === undefined ? {} : { network }),
  });
  const counted = (received: number, sent: number): Traffic => ({
    age_ns: 0, vifs: [{ domid: 1, devid: 0, received_bytes: received, sent_bytes: sent }],
  });
  const vms = new Map([['a-uuid', vm('a')], ['b-uuid', vm('b', { domid: null })]]);
  const devices = [vif('b', 0, 'br0'), vif('a', 1, 'br1'), vif('a', 0, 'br0'), vif('a', 2)];
  it('are there, up or not', () => {
    const network = { name: 'br0', kind: 'bridge', exists: true, up: true, mtu: 1500, ports: [], interfaces: 0 };
    expect([network, { ...network, up: false }, { ...network, exists: false }].map(networkState)).toEqual(['up', 'down', 'not there']);
  });
  it('have rates from two looks, and none from counters that begin anew', () => {
    const rates = new Rates();
    rates.take(counted(1000, 10), 5000);
    expect(rates.of(1, 0)).toBeUndefined();
    rates.take(counted(3000, 30), 7000);
    expect(rates.of(1, 0)).toEqual({ received: 1000, sent: 10 });
    // Two readers of one look.
    rates.take(counted(3000, 30), 7100);
    expect(rates.of(1, 0)).toEqual({ received: 1000, sent: 10 });
    expect(ratesByNetwork(devices, vms, rates)).toEqual(new Map([['br0', { received: 1000, sent: 10 }]]));
    expect(interfaceLines(devices, vms, rates, 'br0', []).map((it) => [it.vm?.name, it.rate?.sent])).toEqual([['a', 10], ['b', undefined]]);
    rates.take(counted(5, 0), 9000);
    expect(rates.of(1, 0)).toBeUndefined();
  });
  it('are searched by what interfaces say', () => {
    const found = (words: string[]) => interfaceLines(devices, vms, new Rates(), undefined, words).map((it) => `${it.vm?.name}${it.device.devid}`);
    expect(found([])).toEqual(['a0', 'a1', 'a2', 'b0']);
    expect(found(['br0'])).toEqual(['a0', 'b0']);
    expect(found(['a', '0:01'])).toEqual(['a1']);
  });
});

describe('operations that were seen', () => {
  it('are kept when the server forgets them, unless they had not ended', () => {
    const first = remember(new Map(), [operation(1), operation(2, { ended_ns: null })]);
    expect([...remember(first, [operation(3)]).keys()].sort()).toEqual([1, 3]);
  });
});

describe('addresses', () => {
  it('name views and filters', () => {
    expect(parseRoute('#/vm/a%2Fb?tab=x')).toEqual({ path: ['vm', 'a/b'], params: { tab: 'x' } });
    expect(formatRoute(['vms'], { q: 'a b' })).toBe('#/vms?q=a+b');
    expect(parseRoute(formatRoute(['vms'], { q: 'ä&=' })).params.q).toBe('ä&=');
    expect(parseRoute('').path).toEqual([]);
    expect(parseRoute('#/%zz').path).toEqual(['%zz']);
  });
  it('may have a token, which is no view', () => {
    expect(tokenOf('#token=abc')).toBe('abc');
    expect(tokenOf('#/token=abc')).toBeNull();
    expect(parseRoute('#token=abc').path).toEqual([]);
  });
});

describe('selection', () => {
  const keys = ['a', 'b', 'c', 'd'];
  it('is of single lines and of ranges', () => {
    expect([...toggled(new Set(['a']), 'a')]).toEqual([]);
    expect([...extended(new Set(), keys, 'c', 'a')]).toEqual(['a', 'b', 'c']);
    expect([...extended(new Set(), keys, null, 'b')]).toEqual(['b']);
    expect([...extended(new Set(), keys, 'a', 'gone')]).toEqual([]);
    expect(coverage(new Set(['a']), keys)).toBe('some');
    expect(coverage(new Set(keys), keys)).toBe('all');
  });
  it('is moved by keys', () => {
    expect(moved('ArrowDown', -1, 4, 2)).toBe(0);
    expect(moved('ArrowDown', 3, 4, 2)).toBe(3);
    expect(moved('PageUp', 3, 4, 2)).toBe(1);
    expect(moved('End', 0, 4, 2)).toBe(3);
    expect(moved('x', 0, 4, 2)).toBeNull();
  });
});

describe('a long list', () => {
  it('has only what is in view in the document', () => {
    expect(windowOf(3200, 320, 32, 1000, 2)).toEqual({ first: 98, end: 112 });
    expect(windowOf(0, 320, 32, 3)).toEqual({ first: 0, end: 3 });
    expect(windowOf(99999, 320, 32, 10)).toEqual({ first: 10, end: 10 });
  });
  it('is scrolled no more than is needed', () => {
    expect(scrollFor(0, 100, 320, 32)).toBe(0);
    expect(scrollFor(5, 100, 320, 32)).toBe(100);
    expect(scrollFor(20, 100, 320, 32)).toBe(352);
  });
});

describe('the log', () => {
  const change = (revision: number): StateChange => ({ revision, unix_ms: 0, vm: '', uuid: '', domid: null, before: '', after: '', reason: '' });
  it('has each change once, the latest first', () => {
    const known = merged([], [change(1), change(2)]);
    expect(merged(known, [change(2), change(3)]).map((it) => it.revision)).toEqual([3, 2, 1]);
    expect(merged(known, [])).toBe(known);
  });
});

describe('graphs', () => {
  it('have the series that belong together', () => {
    const found = graphsOf({ from: 0, step: 5, series: { cpu: [], disk_read: [], disk_written: [], load: [] } });
    expect(found.map((it) => [it.title, it.series.length])).toEqual([['CPU', 1], ['Disks', 2], ['load', 1]]);
  });
  it('say what is moved on which device', () => {
    const found = graphsOf({ from: 0, step: 5, series: { memory: [], vbd_xvda_read: [], vbd_xvda_write: [], vif_0_rx: [], vif_0_tx: [] } });
    expect(found.map((it) => [it.title, it.unit, it.series.map((one) => one.label)])).toEqual([
      ['Memory', 'bytes', ['memory']],
      ['Disks', 'rate', ['xvda read', 'xvda written']],
      ['Network', 'rate', ['vif 0 received', 'vif 0 sent']],
    ]);
  });
});

describe('a client that is limited to VMs with a tag', () => {
  const session = { who: 'ann', role: 'admin' as const, expires_unix_s: 0 };
  it('has no views of the host', () => {
    expect(placesFor(session).map((it) => it.label)).toContain('Store');
    expect(placesFor(null)).toEqual(placesFor(session));
    expect(placesFor({ ...session, tags: ['a'] }).map((it) => it.label)).toEqual(['VMs', 'Operations']);
    expect(['', 'storage', 'networks', 'store', 'limits', 'log', 'create', 'edit'].every(isOfHost)).toBe(true);
    expect(['vms', 'vm', 'operations', 'nowhere'].some(isOfHost)).toBe(false);
    expect([['a'], ['a', 'b']].map(tagWords)).toEqual(['the tag a', 'one of the tags a, b']);
  });
});

describe('a log-in that has failed elsewhere', () => {
  it('is told in our words, whatever the address says', () => {
    expect(failedLogInOf('#log-in=stale')).toBe('stale');
    expect(failedLogInOf('#/vms')).toBeNull();
    expect(parseRoute('#log-in=stale')).toEqual({ path: [], params: {} });
    expect(logInWordsOf('stale')).toMatch(/took too long/);
    expect(logInWordsOf('<b>evil</b>')).toBe('The log-in with OpenID Connect has failed.');
  });
});
