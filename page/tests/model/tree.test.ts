import { describe, expect, it } from 'vitest';
import { accessOf, asPath, changesOf, domidOf, rowsOf, touched, type Below, type StoreNode } from '../../src/model/tree';

const node = (path: string, value = '', children = 0): StoreNode => ({ path, value, permissions: ['n0'], children });
const below = (...nodes: StoreNode[]): Below => ({ nodes, hasMore: false });
const known = new Map([
  ['/local', below(node('/local/domain', '', 2), node('/local/pool'))],
  ['/local/domain', below(node('/local/domain/0', '', 1), node('/local/domain/10', '', 3))],
]);

describe('the store', () => {
  it('shows what is below nodes that are open', () => {
    const rows = rowsOf('/local', known).map((row) => [row.depth, row.name, row.isOpen]);
    expect(rows).toEqual([
      [0, 'domain', true],
      [1, '0', false],
      [1, '10', false],
      [0, 'pool', false],
    ]);
    expect(rowsOf('/local/domain/0', known)).toEqual([]);
  });
  it('reads again what a change may have changed', () => {
    expect([...touched(['/local/domain/10', '/local/domain/10/x', '/vm'], known)]).toEqual(['/local/domain']);
    expect([...touched(['/local/domain'], known)]).toEqual(['/local/domain', '/local']);
  });
  it('marks what came and what is another', () => {
    const before = [node('/a'), node('/b', 'x')];
    expect(changesOf(before, [node('/a'), node('/b', 'y'), node('/c')])).toEqual(['/b', '/c']);
    expect(changesOf(before, [{ ...node('/a'), permissions: ['r0'] }])).toEqual(['/a']);
  });
  it('takes absolute paths alone', () => {
    expect(['/', '/local/', ' /vm/a-b_c@d ', 'local', '/a//b', '/a b', ''].map(asPath)).toEqual([
      '/', '/local', '/vm/a-b_c@d', null, null, null, null,
    ]);
    expect(['/local/domain/7/device', '/local/domain/7', '/vm/7', '/local/domain/7x'].map(domidOf)).toEqual([7, 7, null, null]);
  });
  it('says who owns a node and who else may use it', () => {
    expect(accessOf(['n3', 'r0', 'b5'])).toEqual({ owner: '3', others: '', some: ['0 may read', '5 may read and write'] });
    expect(accessOf(['r0']).others).toBe('read');
  });
});
