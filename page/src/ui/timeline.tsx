import { createEffect, createSignal, onCleanup, onMount } from 'solid-js';
import { nowNs, seen, traces, unixMsOf, wantTrace } from '../api/operations';
import { barAt, geometry, laneAt, layout, neighbour, panned, zoomed, type Layout, type View } from '../model/timeline';
import type { Operation } from '../model/types';
import { isNarrow } from './media';
import { isDark } from './theme';
import { dayStart, draw, lookOf, type Look } from './timeline-draw';

const axisHeight = 26;
const frameMs = 50;

export interface TimelineProps {
  operations: readonly Operation[];
  hideEnded: boolean;
  isFollowing: boolean;
  span: number;
  chosen: number | null;
  onFollow: (isFollowing: boolean) => void;
  onSpan: (ns: number) => void;
  onChoose: (id: number) => void;
  onHideEnded: () => void;
  onHover: (words: string) => void;
  /** Called once, with what brings an operation into view. */
  ref: (fit: (operation: Operation) => void) => void;
  describe: (operation: number, step: number) => string;
}

/** The operations' bars. What it shows is also in the table below it. */
export function Timeline(props: TimelineProps) {
  let scroller: HTMLDivElement | undefined;
  let canvas: HTMLCanvasElement | undefined;
  const [size, setSize] = createSignal({ width: 800, height: 300 });
  const labels = (): number => (isNarrow() ? 84 : 130);
  let view: View = { from: 0, to: props.span, width: 600 };
  let shown: Layout = { lanes: [], height: 0, track: geometry.track };
  let look: Look | undefined;

  const follow = (): void => {
    const now = nowNs();
    const width = Math.max(50, size().width - labels());
    view = props.isFollowing ? { from: now - props.span * 0.97, to: now + props.span * 0.03, width } : { ...view, width };
  };
  const [spaceHeight, setSpaceHeight] = createSignal(0);
  const paint = (): void => {
    const context = canvas?.getContext('2d');
    if (!canvas || !context || !scroller) return;
    follow();
    const height = Math.max(0, size().height - axisHeight);
    shown = layout(props.operations, traces(), view, { hideEnded: props.hideEnded, now: nowNs(), height });
    setSpaceHeight(Math.max(shown.height, height));
    want();
    const scale = devicePixelRatio || 1;
    const [w, h] = [Math.round(size().width * scale), Math.round(size().height * scale)];
    if (canvas.width !== w || canvas.height !== h) {
      canvas.width = w;
      canvas.height = h;
    }
    context.setTransform(scale, 0, 0, scale, 0, 0);
    look ??= lookOf(canvas);
    draw(
      context,
      {
        layout: shown,
        view,
        labels: labels(),
        axis: axisHeight,
        scrollTop: scroller.scrollTop,
        height: size().height,
        now: nowNs(),
        chosen: props.chosen,
        zero: (unixMsOf(0) - dayStart() * 1000) * 1e6,
      },
      look,
    );
  };
  /** Steps are read once they are wide enough to be seen. */
  const want = (): void => {
    const scale = view.width / (view.to - view.from);
    const all = seen();
    const top = scroller?.scrollTop ?? 0;
    for (const lane of shown.lanes) {
      if (lane.top + lane.height < top || lane.top > top + size().height) continue;
      for (const id of lane.operations) {
        const operation = all.get(id);
        if (operation && ((operation.ended_ns ?? nowNs()) - operation.started_ns) * scale >= geometry.stepsFrom) wantTrace(operation);
      }
    }
  };

  onMount(() => {
    const observer = new ResizeObserver(() => {
      if (scroller) setSize({ width: scroller.clientWidth, height: scroller.clientHeight });
    });
    if (scroller) observer.observe(scroller);
    let last = 0;
    let frame = requestAnimationFrame(function tick(at) {
      frame = requestAnimationFrame(tick);
      if (at - last < frameMs) return;
      last = at;
      paint();
    });
    scroller?.addEventListener('wheel', onWheel, { passive: false });
    onCleanup(() => {
      cancelAnimationFrame(frame);
      observer.disconnect();
    });
  });
  createEffect(() => {
    isDark();
    look = undefined;
  });

  const setView = (next: View): void => {
    props.onFollow(false);
    view = next;
    props.onSpan(next.to - next.from);
  };
  const zoom = (factor: number, around?: number): void => {
    const next = zoomed(view, factor, around ?? (view.from + view.to) / 2);
    if (props.isFollowing) props.onSpan(next.to - next.from);
    else setView(next);
  };
  const pan = (share: number): void => setView(panned(view, share * (view.to - view.from)));
  const fit = (operation: Operation): void => {
    const end = operation.ended_ns ?? nowNs();
    const margin = Math.max(2e5, (end - operation.started_ns) * 0.1);
    setView({ ...view, from: operation.started_ns - margin, to: end + margin });
    requestAnimationFrame(() => reveal(operation.id));
  };
  const reveal = (id: number): void => {
    const lane = shown.lanes.find((it) => it.operations.includes(id));
    if (!lane || !scroller) return;
    const height = size().height - axisHeight;
    if (lane.top < scroller.scrollTop) scroller.scrollTop = lane.top;
    else if (lane.top + lane.height > scroller.scrollTop + height) scroller.scrollTop = lane.top + lane.height - height;
  };
  props.ref(fit);

  const place = (event: MouseEvent): { x: number; y: number } => {
    const box = canvas?.getBoundingClientRect() ?? new DOMRect();
    return { x: event.clientX - box.left - labels(), y: event.clientY - box.top - axisHeight + (scroller?.scrollTop ?? 0) };
  };
  const onWheel = (event: WheelEvent): void => {
    const isZoom = event.ctrlKey || event.metaKey;
    if (!isZoom && Math.abs(event.deltaX) <= Math.abs(event.deltaY) && !event.shiftKey) return;
    event.preventDefault();
    const at = place(event).x / view.width;
    if (isZoom) zoom(Math.exp(event.deltaY / 300), view.from + at * (view.to - view.from));
    else pan((event.deltaX || event.deltaY) / view.width);
  };
  let drag: { x: number; from: View; moved: boolean } | null = null;
  const onDown = (event: PointerEvent): void => {
    if (event.button === 0) drag = { x: event.clientX, from: view, moved: false };
  };
  const onMove = (event: PointerEvent): void => {
    if (drag && (drag.moved || Math.abs(event.clientX - drag.x) > 4)) {
      if (!drag.moved) canvas?.setPointerCapture(event.pointerId);
      drag.moved = true;
      setView(panned(drag.from, (-(event.clientX - drag.x) / view.width) * (view.to - view.from)));
      return;
    }
    const { x, y } = place(event);
    const bar = y >= 0 ? barAt(shown, x, y) : null;
    props.onHover(bar ? props.describe(bar.operation, bar.step) : (laneAt(shown, y)?.name ?? ''));
  };
  const onUp = (event: PointerEvent): void => {
    const wasDragged = drag?.moved ?? false;
    drag = null;
    if (wasDragged || event.button !== 0) return;
    const { x, y } = place(event);
    const bar = barAt(shown, x, y);
    const id = bar?.operation ?? (x < 0 ? laneAt(shown, y)?.operations.at(-1) : undefined);
    if (id !== undefined) props.onChoose(id);
  };
  const arrows: Record<string, 'up' | 'down' | 'left' | 'right'> = {
    ArrowUp: 'up',
    ArrowDown: 'down',
    ArrowLeft: 'left',
    ArrowRight: 'right',
  };
  const onKey = (event: KeyboardEvent): void => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const direction = arrows[event.key];
    const chosen = props.chosen === null ? undefined : seen().get(props.chosen);
    if (direction && event.shiftKey && (direction === 'left' || direction === 'right')) pan(direction === 'left' ? -0.2 : 0.2);
    else if (direction) {
      const next = neighbour(shown, props.chosen, direction);
      if (next !== null) {
        props.onChoose(next);
        reveal(next);
      }
    } else if (event.key === '+' || event.key === '=') zoom(0.5);
    else if (event.key === '-') zoom(2);
    else if (event.key === ' ') props.onFollow(!props.isFollowing);
    else if ((event.key === 'Enter' || event.key === 'f') && chosen) fit(chosen);
    else if (event.key === 'h') props.onHideEnded();
    else return;
    event.preventDefault();
  };
  return (
    <div
      ref={scroller}
      class="timeline"
      role="group"
      tabindex="0"
      aria-label="Timeline. Arrows choose an operation, Enter shows all of it, plus and minus zoom, Shift with an arrow scrolls, Space pauses, h hides what has ended. The table below has the same."
      onKeyDown={onKey}
    >
      <div class="timeline-space" style={{ height: `${spaceHeight() + axisHeight}px` }}>
        <canvas
          ref={canvas}
          aria-hidden="true"
          style={{ width: `${size().width}px`, height: `${size().height}px` }}
          onPointerDown={onDown}
          onPointerMove={onMove}
          onPointerUp={onUp}
          onPointerLeave={() => props.onHover('')}
        />
      </div>
    </div>
  );
}
