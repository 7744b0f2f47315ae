import { describe, expect, it } from 'vitest';
import { Mirror, devicesOf, operationsOf } from '../../src/model/store';
import { operation, vm } from './helpers';

const change = (key: string, object: unknown, name = 'vm') => ({ revision: 1, key, class: name, object });

describe('the mirror', () => {
  it('shows what arrives at first, as it arrives', () => {
    const mirror = new Mirror();
    mirror.reset();
    expect([...mirror.change([change('a', vm('a'))])]).toEqual(['vm']);
    expect(mirror.shown().vm.size).toBe(1);
    expect(mirror.isCurrent).toBe(false);
    expect(mirror.current('1')).toBe(true);
    expect(mirror.shown().vm.get('a')?.name).toBe('a');
  });

  it('replaces and removes objects by their keys', () => {
    const mirror = new Mirror();
    mirror.reset();
    mirror.change([change('a', vm('a')), change('b', vm('b'))]);
    mirror.current('1');
    mirror.change([change('a', vm('a', { state: 'paused' })), change('b', null)]);
    expect(mirror.current('2')).toBe(false);
    expect(mirror.shown().vm.get('a')?.state).toBe('paused');
    expect(mirror.shown().vm.has('b')).toBe(false);
    expect(mirror.cursor).toBe('2');
  });

  it('shows the old whole until the new one is complete', () => {
    const mirror = new Mirror();
    mirror.reset();
    mirror.change([change('a', vm('a')), change('b', vm('b'))]);
    mirror.current('1');
    mirror.reset();
    expect(mirror.cursor).toBeNull();
    expect(mirror.change([change('b', vm('b'))]).size).toBe(0);
    expect(mirror.shown().vm.size).toBe(2);
    expect(mirror.current('9')).toBe(true);
    expect([...mirror.shown().vm.keys()]).toEqual(['b']);
  });

  it('ignores classes of a later server', () => {
    const mirror = new Mirror();
    expect(mirror.change([change('x', {}, 'pool')]).size).toBe(0);
  });

  it('finds what belongs to a VM', () => {
    const mirror = new Mirror();
    mirror.change([
      change('u/vif/1', { vm: 'u', kind: 'vif', devid: 1, config: '', state: 'attached' }, 'device'),
      change('u/vif/0', { vm: 'u', kind: 'vif', devid: 0, config: '', state: 'attached' }, 'device'),
      change('other/vif/0', { vm: 'other', kind: 'vif', devid: 0, config: '', state: 'attached' }, 'device'),
      change('1', operation(1, { uuid: 'u' }), 'operation'),
      change('2', operation(2, { uuid: 'u' }), 'operation'),
    ]);
    expect(devicesOf(mirror.model, 'u').map((it) => it.devid)).toEqual([0, 1]);
    expect(operationsOf(mirror.model, 'u').map((it) => it.id)).toEqual([2, 1]);
  });
});
