import { describe, expect, it } from 'vitest';
import { barAt, geometry, laneAt, layout, neighbour, ticks, waits, zoomed, type View } from '../../src/model/timeline';
import { operation, step, trace } from './helpers';

const view: View = { from: 0, to: 1000, width: 1000 };
const all = { hideEnded: false, now: 1000, height: 30 };

describe('the timeline', () => {
  it('has a lane for each VM, the newest first', () => {
    const found = layout([operation(1, { vm: 'a' }), operation(2, { vm: 'b' }), operation(3, { vm: 'a', started_ns: 200, ended_ns: 300 })], new Map(), view, all);
    expect(found.lanes.map((it) => it.name)).toEqual(['a', 'b']);
    expect(found.lanes[0]?.operations).toEqual([1, 3]);
    expect(found.lanes[1]?.top).toBe(found.lanes[0]?.height);
  });

  it('leaves out what is not in view, and what has ended if that is hidden', () => {
    const list = [operation(1, { started_ns: 2000, ended_ns: 2100 }), operation(2), operation(3, { started_ns: 900, ended_ns: null })];
    expect(layout(list, new Map(), view, all).lanes.map((it) => it.operations[0])).toEqual([3, 2]);
    expect(layout(list, new Map(), view, { ...all, hideEnded: true }).lanes.map((it) => it.operations[0])).toEqual([3]);
  });

  it('draws the wait for a permit apart from the work', () => {
    const it1 = operation(1, { ended_ns: 500 });
    const traces = new Map([[1, trace(it1, [step({ ready_ns: 100, started_ns: 300, ended_ns: 500, waited_for: 'the limit of 16 for the host' })])]]);
    const bars = layout([it1], traces, view, all).lanes[0]?.bars;
    expect(bars).toMatchObject([
      { phase: 'waits', x: 100, width: 200, track: 0 },
      { phase: 'runs', x: 300, width: 200, track: 0, kind: 'memory' },
    ]);
  });

  it('puts steps of the same time on tracks of their own, as few as possible', () => {
    const it1 = operation(1, { ended_ns: 500 });
    const steps = [
      step({ started_ns: 0, ended_ns: 200 }),
      step({ ready_ns: 100, started_ns: 100, ended_ns: 300, stage: 'attach disks' }),
      step({ ready_ns: 200, started_ns: 200, ended_ns: 500 }),
    ];
    const lane = layout([it1], new Map([[1, trace(it1, steps)]]), view, all).lanes[0];
    expect(lane?.bars.map((it) => it.track)).toEqual([0, 1, 0]);
    expect(lane?.bars[1]?.kind).toBe('storage');
  });

  it('draws an operation as one bar while its steps are too short or not known', () => {
    const short = operation(1, { ended_ns: 2 });
    expect(layout([short], new Map([[1, trace(short, [step(), step()])]]), view, all).lanes[0]?.bars).toMatchObject([
      { step: -1, width: geometry.barMin, kind: 'operation' },
    ]);
  });

  it('draws an operation of which nothing is under way as waiting', () => {
    const open = operation(1, { ended_ns: null, waits_for: ['attach disk 51712'] });
    const bars = layout([open], new Map([[1, trace(open, [step({ ended_ns: 300 })])]]), view, all).lanes[0]?.bars;
    expect(bars?.map((it) => [it.phase, it.x, it.width, it.name])).toEqual([
      ['runs', 0, 300, 'build'],
      ['waits', 300, 700, 'attach disk 51712'],
    ]);
  });

  it('has what is in progress first', () => {
    const found = layout([operation(1, { ended_ns: null }), operation(2)], new Map(), view, all);
    expect(found.lanes.map((it) => it.operations[0])).toEqual([1, 2]);
  });

  it('draws what has not ended up to now', () => {
    const open = operation(1, { started_ns: 400, ended_ns: null });
    expect(layout([open], new Map(), view, { ...all, now: 900 }).lanes[0]?.bars[0]).toMatchObject({ x: 400, width: 500, isOpen: true });
  });

  it('has large bars if there is room for them', () => {
    expect(layout([operation(1)], new Map(), view, { ...all, height: 300 })).toMatchObject({ track: geometry.trackLarge, height: 30 });
    expect(layout([operation(1), operation(2)], new Map(), view, all)).toMatchObject({ track: geometry.track, height: 40 });
  });

  it('finds bars and lanes by their places', () => {
    const found = layout([operation(1, { vm: 'a' }), operation(2, { vm: 'b' })], new Map(), view, all);
    const second = found.lanes[1];
    expect(laneAt(found, (second?.top ?? 0) + 1)?.name).toBe('a');
    expect(laneAt(found, 1e6)).toBeNull();
    expect(barAt(found, 50, geometry.padding + 1)?.operation).toBe(2);
    expect(barAt(found, 500, geometry.padding + 1)).toBeNull();
  });

  it('is gone through by keys', () => {
    const found = layout([operation(1, { vm: 'a' }), operation(2, { vm: 'a', started_ns: 200, ended_ns: 300 }), operation(3, { vm: 'b' })], new Map(), view, all);
    expect(neighbour(found, null, 'down')).toBe(3);
    expect(neighbour(found, 3, 'down')).toBe(2);
    expect(neighbour(found, 2, 'left')).toBe(1);
    expect(neighbour(found, 1, 'left')).toBe(1);
    expect(neighbour(found, 1, 'up')).toBe(3);
  });

  it('zooms around a moment', () => {
    const near = zoomed({ from: 0, to: 1e9, width: 100 }, 0.5, 25e7);
    expect(near.to - near.from).toBe(5e8);
    expect((25e7 - near.from) / 5e8).toBeCloseTo(0.25);
  });

  it('has an axis of round times of day', () => {
    const found = ticks({ from: 0, to: 60e9, width: 600 }, 7e9);
    expect(found.every((it) => (it.at + 7e9) % it.step === 0)).toBe(true);
    expect(found.length).toBeGreaterThan(2);
    expect(ticks({ from: 0, to: 600e9, width: 600 })[0]?.step).toBe(120e9);
  });

  it('sums what was waited for', () => {
    const it1 = operation(1);
    const steps = [
      step({ ready_ns: 0, started_ns: 30, waited_for: 'a' }),
      step({ ready_ns: 0, started_ns: 50, waited_for: 'b' }),
      step({ ready_ns: 0, started_ns: 30, waited_for: 'a' }),
      step(),
    ];
    expect(waits(trace(it1, steps))).toEqual([
      { on: 'a', ns: 60 },
      { on: 'b', ns: 50 },
    ]);
  });
});
