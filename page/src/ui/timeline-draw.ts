// Draws the timeline's layout on a canvas.
import { stepKinds } from '../model/kinds';
import { geometry, ticks, type Bar, type Layout, type View } from '../model/timeline';

export interface Look {
  colours: Record<string, string>;
  text: string;
  muted: string;
  line: string;
  surface: string;
  raised: string;
  bad: string;
  focus: string;
  font: string;
}

export function lookOf(element: HTMLElement): Look {
  const style = getComputedStyle(element);
  const colour = (name: string): string => style.getPropertyValue(name).trim();
  const colours: Record<string, string> = { operation: colour('--step-operation') };
  for (const { kind } of stepKinds) colours[kind] = colour(`--step-${kind}`);
  return {
    colours,
    text: colour('--text'),
    muted: colour('--muted'),
    line: colour('--line'),
    surface: colour('--surface'),
    raised: colour('--raised'),
    bad: colour('--bad'),
    focus: colour('--focus'),
    font: `12px ${style.fontFamily}`,
  };
}

export interface Scene {
  layout: Layout;
  view: View;
  /** Of the lanes' names, at the left. */
  labels: number;
  axis: number;
  scrollTop: number;
  height: number;
  now: number;
  chosen: number | null;
  /** The time of day of 0, in nanoseconds. */
  zero: number;
}

export function draw(context: CanvasRenderingContext2D, scene: Scene, look: Look): void {
  const { view, labels, axis, height, scrollTop } = scene;
  const width = labels + view.width;
  context.clearRect(0, 0, width, height);
  context.font = look.font;
  context.textBaseline = 'middle';
  drawGrid(context, scene, look);
  context.save();
  context.beginPath();
  context.rect(0, axis, width, height - axis);
  context.clip();
  const hatch = hatchOf(context, look);
  for (const lane of scene.layout.lanes) {
    const top = lane.top - scrollTop + axis;
    if (top + lane.height < axis || top > height) continue;
    if (lane.operations.includes(scene.chosen ?? -1)) {
      context.fillStyle = look.raised;
      context.fillRect(0, top, width, lane.height - 1);
    }
    context.globalAlpha = 0.6;
    context.fillStyle = look.line;
    context.fillRect(0, Math.round(top + lane.height) - 1, width, 1);
    context.globalAlpha = 1;
    context.save();
    context.beginPath();
    context.rect(labels, top, view.width, lane.height);
    context.clip();
    for (const bar of lane.bars) drawBar(context, bar, { x: labels, y: top, track: scene.layout.track, isChosen: scene.chosen === bar.operation }, look, hatch);
    context.restore();
    context.fillStyle = lane.operations.includes(scene.chosen ?? -1) ? look.text : look.muted;
    context.textAlign = 'left';
    context.fillText(shortened(context, lane.name, labels - 18), 10, top + Math.min(lane.height / 2, 14));
  }
  context.restore();
  const x = labels + ((scene.now - view.from) / (view.to - view.from)) * view.width;
  if (x >= labels && x <= width) {
    context.fillStyle = look.focus;
    context.fillRect(Math.round(x), axis, 1, height - axis);
  }
}

function drawGrid(context: CanvasRenderingContext2D, scene: Scene, look: Look): void {
  const { view, labels, axis, height } = scene;
  context.fillStyle = look.raised;
  context.fillRect(0, 0, labels + view.width, axis);
  context.fillStyle = look.line;
  context.fillRect(0, axis - 1, labels + view.width, 1);
  context.fillRect(labels - 1, axis, 1, height - axis);
  context.textAlign = 'left';
  for (const { at, step } of ticks(view, scene.zero, Math.max(2, Math.floor(view.width / 130)))) {
    const x = Math.round(labels + ((at - view.from) / (view.to - view.from)) * view.width);
    context.fillStyle = look.line;
    context.fillRect(x, axis - 5, 1, height - axis + 5);
    context.fillStyle = look.muted;
    context.fillText(axisText(scene.zero + at, step), x + 4, axis / 2);
  }
}

function drawBar(
  context: CanvasRenderingContext2D,
  bar: Bar,
  at: { x: number; y: number; track: number; isChosen: boolean },
  look: Look,
  hatch: CanvasPattern | string,
): void {
  const y = at.y + geometry.padding + bar.track * (at.track + geometry.gap);
  // Far away ends would lose their precision.
  const from = Math.max(-10, bar.x);
  const width = Math.min(bar.x + bar.width, 20000) - from;
  const x = at.x + from;
  const height = at.track;
  if (bar.phase === 'waits') {
    context.fillStyle = hatch;
    context.fillRect(x, y + 2, width, height - 4);
    context.fillStyle = look.muted;
    context.fillRect(x, y + 1, width, 1);
    context.fillRect(x, y + height - 2, width, 1);
    if (height >= geometry.trackLarge && width > 60) drawName(context, bar.name, x, at.x, width, y + height / 2, look.text, look.surface);
    return;
  }
  const colour = bar.failed ? look.bad : (look.colours[bar.kind] ?? look.muted);
  context.fillStyle = colour;
  context.fillRect(x, y, width, height);
  if (bar.isOpen) {
    context.fillStyle = look.text;
    context.fillRect(x + width - 2, y - 1, 2, height + 2);
  }
  if (height >= geometry.trackLarge && width > 24) {
    drawName(context, bar.name, x, at.x, width, y + height / 2, inkOn(colour));
  }
  if (at.isChosen) {
    context.fillStyle = look.focus;
    context.fillRect(x, y + height - 2, width, 2);
  }
}

/** In the part of a bar that is in view. */
function drawName(
  context: CanvasRenderingContext2D,
  name: string,
  x: number,
  edge: number,
  width: number,
  middle: number,
  ink: string,
  under?: string,
): void {
  const left = Math.max(x, edge);
  const room = Math.min(x + width, context.canvas.clientWidth) - left - 10;
  if (room < 14) return;
  const text = shortened(context, name, room);
  context.textAlign = 'left';
  if (under !== undefined) {
    context.fillStyle = under;
    context.fillRect(left + 3, middle - 7, context.measureText(text).width + 4, 14);
  }
  context.fillStyle = ink;
  context.fillText(text, left + 5, middle + 0.5);
}

/** Black or white, what is read better on a colour. */
function inkOn(colour: string): string {
  const [r = 0, g = 0, b = 0] = [1, 3, 5].map((at) => Number.parseInt(colour.slice(at, at + 2), 16));
  return r * 0.299 + g * 0.587 + b * 0.114 > 118 ? '#0b0f0d' : '#ffffff';
}

function hatchOf(context: CanvasRenderingContext2D, look: Look): CanvasPattern | string {
  const tile = document.createElement('canvas');
  tile.width = tile.height = 5;
  const inner = tile.getContext('2d');
  if (!inner) return look.line;
  inner.strokeStyle = look.muted;
  inner.lineWidth = 1;
  for (const shift of [-5, 0, 5]) {
    inner.beginPath();
    inner.moveTo(shift, 5);
    inner.lineTo(shift + 5, 0);
    inner.stroke();
  }
  return context.createPattern(tile, 'repeat') ?? look.line;
}

function shortened(context: CanvasRenderingContext2D, text: string, width: number): string {
  if (context.measureText(text).width <= width) return text;
  let end = Math.min(text.length, Math.ceil(width / 4));
  while (end > 1 && context.measureText(`${text.slice(0, end)}…`).width > width) end -= 1;
  return `${text.slice(0, end)}…`;
}

/** The axis: the time of day, with as many digits of a second as the step has. */
function axisText(ns: number, step: number): string {
  const second = Math.floor(ns / 1e9);
  const clock = new Date((dayStart() + second) * 1000).toLocaleTimeString('en-GB');
  if (step >= 1e9) return clock;
  const digits = Math.min(6, Math.ceil(-Math.log10(step / 1e9)));
  return clock.slice(digits > 3 ? 6 : 3) + ((ns - second * 1e9) / 1e9).toFixed(digits).slice(1);
}

/** Seconds of the day's begin, for which times are small enough to be exact. */
export function dayStart(): number {
  return Math.floor(Date.now() / 86_400_000) * 86_400;
}
