import { describe, expect, it } from 'vitest';
import { countStates, everything, fromParams, select, toParams } from '../../src/model/filter';
import { vm } from './helpers';

const vms = [
  vm('web-10', { domid: 3, uuid: 'aaaa' }),
  vm('web-2', { state: 'paused', domid: 9, uuid: 'bbbb' }),
  vm('db', { state: 'stuck', domid: null, uuid: 'cccc', config: { kind: 'pvh', memory_mib: 64, memory_max_mib: 64, vcpus: 1, vcpus_max: 1 } }),
];
const names = (query: Partial<typeof everything>) => select(vms, { ...everything, ...query }).map((it) => it.name);

describe('the list of VMs', () => {
  it('has numbers in names in their order', () => expect(names({})).toEqual(['db', 'web-2', 'web-10']));
  it('has only what all words are in', () => {
    expect(names({ text: 'WEB 1' })).toEqual(['web-10']);
    expect(names({ text: 'web paused' })).toEqual(['web-2']);
    expect(names({ text: 'aaa' })).toEqual(['web-10']);
    expect(names({ text: 'pvh' })).toEqual(['db']);
    expect(names({ text: '9' })).toEqual(['web-2']);
    expect(names({ text: 'none' })).toEqual([]);
  });
  it('has only the chosen states', () => expect(names({ states: ['paused', 'stuck'] })).toEqual(['db', 'web-2']));
  it('is sorted, what needs a look first', () => {
    expect(names({ sort: 'state' })).toEqual(['db', 'web-2', 'web-10']);
    expect(names({ sort: 'domid', descending: true })).toEqual(['db', 'web-2', 'web-10']);
    expect(names({ sort: 'memory', descending: true })[0]).toBe('db');
  });
  it('is named by its address', () => {
    const query = { text: 'web x', states: ['paused', 'down'], sort: 'memory' as const, descending: true };
    expect(fromParams(toParams(query))).toEqual(query);
    expect(toParams(everything)).toEqual({});
    expect(fromParams({ sort: 'nonsense' })).toEqual(everything);
  });
  it('is counted by state', () => expect([...countStates(vms)]).toEqual([['stuck', 1], ['paused', 1], ['running', 1]]));
});
