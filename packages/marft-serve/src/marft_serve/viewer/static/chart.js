// One picture of curves over steps: axes, a crosshair that tells all values, zoom by dragging.

import { append, h, onWidth, replace, s } from "./dom.js";
import { formatted } from "./format.js";
import { hideTip, showTip } from "./tip.js";
import { label, linear, logarithmic, scale } from "./ticks.js";

const EDGE = { left: 52, right: 14, top: 10, bottom: 24 };

/** Exponential moving average without the pull to 0 at the start; nulls stay. */
export function smoothed(values, weight) {
  if (!weight) return values;
  let [sum, mass] = [0, 0];
  return values.map((value) => {
    if (value === null || value === undefined) return null;
    [sum, mass] = [weight * sum + (1 - weight) * value, weight * mass + (1 - weight)];
    return sum / mass;
  });
}

/**
 * @param shared what charts of a page have in common: {smoothing, log, span: null|[low, high], at: step, listen(act)}
 * @returns {node, show(lines), light(test), close()}; a line is {name, colour, dash, steps: [], values: []}
 */
export function chart({ title, entry, shared, height = 190 }) {
  const picture = s("svg", { class: "curves", tabindex: "0", role: "img", "aria-label": `${title}. Left and right arrows read values, Escape shows all steps.` });
  const node = h("div", { class: "chart" }, picture);
  let lines = [];
  let width = 0;
  let axes = null;
  let grabbed = null;

  const redraw = () => {
    if (!width) return;
    axes = plan(lines, shared, width, height);
    picture.setAttribute("viewBox", `0 0 ${width} ${height}`);
    picture.setAttribute("height", height);
    replace(picture, axes ? draw(lines, axes, shared, entry.format, width, height) : nothing(width, height, lines, shared));
    point();
  };
  const cross = s("g", { class: "cross" });
  const point = () => {
    replace(cross);
    if (!axes || shared.at === null || shared.at < axes.span[0] || shared.at > axes.span[1]) return;
    append(cross, s("line", { x1: axes.x(shared.at), x2: axes.x(shared.at), y1: EDGE.top, y2: height - EDGE.bottom }));
    for (const reading of readings(lines, shared, axes)) {
      append(cross, s("circle", { cx: axes.x(reading.step), cy: axes.y(reading.value), r: 3.5, fill: reading.colour }));
    }
    picture.append(cross);
  };
  const tell = (event) => {
    const found = readings(lines, shared, axes).sort((a, b) => b.value - a.value);
    if (!found.length) return hideTip();
    return showTip(event, h("div", { class: "readings" }, h("b", {}, `Step ${shared.at}`),
      found.slice(0, 16).map((reading) => [h("span", {}, h("i", { class: "dot", style: { background: reading.colour } }), reading.name),
        h("span", { class: "number" }, `${formatted(reading.value, entry.format)} ${entry.unit || ""}`)])));
  };
  const nearest = (event) => {
    const box = picture.getBoundingClientRect();
    return Math.round(axes.x.invert(((event.clientX - box.left) / box.width) * width));
  };
  picture.addEventListener("pointermove", (event) => {
    if (!axes) return;
    const step = closest(lines, nearest(event), axes.span);
    if (grabbed !== null) picture.querySelector(".brush")?.replaceWith(brush(axes, grabbed, nearest(event), height));
    if (step !== shared.at) shared.move(step);
    tell(event);
  });
  picture.addEventListener("pointerleave", () => {
    if (grabbed !== null) return;
    shared.move(null);
    hideTip();
  });
  picture.addEventListener("pointerdown", (event) => {
    if (!axes || event.button) return;
    grabbed = nearest(event);
    picture.setPointerCapture(event.pointerId);
    picture.append(brush(axes, grabbed, grabbed, height));
  });
  picture.addEventListener("pointerup", (event) => {
    if (grabbed === null) return;
    const span = [grabbed, nearest(event)].sort((a, b) => a - b);
    grabbed = null;
    picture.querySelector(".brush")?.remove();
    if (span[1] - span[0] >= 1 && axes.x(span[1]) - axes.x(span[0]) > 6) shared.zoom(span);
  });
  picture.addEventListener("dblclick", () => shared.zoom(null));
  picture.addEventListener("keydown", (event) => {
    const way = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (event.key === "Escape") return hideTip(), shared.zoom(null);
    if (!way || !axes) return undefined;
    event.preventDefault();
    const steps = [...new Set(lines.flatMap((line) => line.steps))].filter((step) => step >= axes.span[0] && step <= axes.span[1]).sort((a, b) => a - b);
    const here = shared.at === null ? (way > 0 ? -1 : steps.length) : steps.indexOf(closest(lines, shared.at, axes.span));
    shared.move(steps[Math.max(0, Math.min(steps.length - 1, here + way))]);
    return tell(node);
  });
  picture.addEventListener("blur", hideTip);
  const leave = [onWidth(node, (now) => ((width = now), redraw())), shared.listen({ redraw, point })];
  /** Dims the lines that a test is false of; null shows all. */
  const light = (test) => picture.querySelectorAll(".series").forEach((group, n) => group.classList.toggle("dimmed", Boolean(test && !test(lines[n]))));
  return { node, light, show: (now) => ((lines = now), redraw()), close: () => leave.forEach((end) => end()) };
}

function plan(lines, shared, width, height) {
  const steps = lines.flatMap((line) => [line.steps[0], line.steps.at(-1)]).filter((step) => step !== undefined);
  if (!steps.length) return null;
  const span = shared.span || [Math.min(...steps), Math.max(...steps)];
  if (span[0] === span[1]) span[1] += 1;
  const [sure, raw] = [[], []];
  for (const line of lines) {
    line.smooth = smoothed(line.values, shared.smoothing);
    line.steps.forEach((step, n) => {
      if (step < span[0] || step > span[1]) return;
      for (const [value, into] of [[line.smooth[n], sure], [line.values[n], raw]]) {
        if (value !== null && value !== undefined && !(shared.log && value <= 0)) into.push(value);
      }
    });
  }
  if (shared.smoothing) sure.push(...between(raw)); // a lone spike does not flatten what is smooth
  let low = sure.reduce((least, value) => Math.min(least, value), Infinity);
  let high = sure.reduce((most, value) => Math.max(most, value), -Infinity);
  if (low > high) return null;
  if (shared.log) [low, high] = low === high ? [low / 2, high * 2] : [low / 1.1, high * 1.1];
  else {
    const room = (high - low || Math.abs(high) || 1) * 0.06;
    [low, high] = [low >= 0 && low - room < 0 ? low : low - room, high + room];
    if (low > 0 && low < 0.25 * high) low = 0;
  }
  const bottom = height - EDGE.bottom;
  return { span, low, high, x: scale(span, [EDGE.left, width - EDGE.right]), y: scale([low, high], [bottom, EDGE.top], shared.log) };
}

function draw(lines, axes, shared, format, width, height) {
  const across = shared.log ? logarithmic(axes.low, axes.high) : linear(axes.low, axes.high, Math.floor(height / 45));
  const along = linear(axes.span[0], axes.span[1], Math.max(2, Math.floor(width / 90))).filter(Number.isInteger);
  const bottom = height - EDGE.bottom;
  const clip = `clip${(draw.made = (draw.made || 0) + 1)}`;
  return [
    s("clipPath", { id: clip }, s("rect", { x: EDGE.left, y: EDGE.top - 4, width: Math.max(0, width - EDGE.left - EDGE.right + 4), height: bottom - EDGE.top + 7 })),
    s("g", { class: "grid" }, across.map((tick) => [
      s("line", { x1: EDGE.left, x2: width - EDGE.right, y1: axes.y(tick), y2: axes.y(tick) }),
      s("text", { x: EDGE.left - 8, y: axes.y(tick) + 4, "text-anchor": "end" }, label(tick, format))])),
    s("g", { class: "grid" }, along.map((tick) => s("text", { x: axes.x(tick), y: height - 6, "text-anchor": "middle" }, label(tick)))),
    s("g", { "clip-path": `url(#${clip})` },
      shared.smoothing ? lines.map((line) => stroke(line, line.values, axes, shared.log, "raw")) : [],
      lines.map((line) => s("g", { class: "series" }, stroke(line, line.smooth, axes, shared.log, "line")))),
  ];
}

function stroke(line, values, axes, log, kind) {
  const points = line.steps.map((step, n) => [step, values[n]])
    .filter(([, value]) => value !== null && value !== undefined && !(log && value <= 0));
  const path = points.map(([step, value], n) => `${n ? "L" : "M"}${axes.x(step).toFixed(1)} ${axes.y(value).toFixed(1)}`).join("");
  const dots = kind === "line" && points.length <= 12
    ? points.map(([step, value]) => s("circle", { cx: axes.x(step), cy: axes.y(value), r: 2.4, fill: line.colour })) : [];
  return [s("path", { d: path, class: kind, stroke: line.colour, "stroke-dasharray": line.dash || null }), dots];
}

function nothing(width, height, lines, shared) {
  const words = lines.length && shared.log ? "nothing above 0 for a log scale" : "not recorded yet";
  return s("text", { x: width / 2, y: height / 2, "text-anchor": "middle", class: "nothing" }, words);
}

function brush(axes, from, to, height) {
  const [left, right] = [axes.x(from), axes.x(to)].sort((a, b) => a - b);
  return s("rect", { class: "brush", x: left, width: right - left, y: EDGE.top, height: height - EDGE.bottom - EDGE.top });
}

function closest(lines, step, span) {
  let best = null;
  for (const line of lines) {
    for (const other of line.steps) {
      if (other < span[0] || other > span[1]) continue;
      if (best === null || Math.abs(other - step) < Math.abs(best - step)) best = other;
    }
  }
  return best;
}

function readings(lines, shared, axes) {
  if (!axes || shared.at === null) return [];
  return lines.map((line) => {
    const n = nearestKnown(line, shared.at, (axes.span[1] - axes.span[0]) * 0.03);
    const value = n < 0 ? null : line.smooth[n];
    return value === null || (shared.log && value <= 0) ? null : { ...line, step: line.steps[n], value };
  }).filter(Boolean);
}

/** The place of the known value that is nearest to a step: lines are thinned out, and some metrics come every few steps. */
function nearestKnown(line, step, reach) {
  let best = -1;
  line.steps.forEach((other, n) => {
    const value = line.smooth?.[n];
    if (value === null || value === undefined || Math.abs(other - step) > Math.max(reach, 0.5)) return;
    if (best < 0 || Math.abs(other - step) < Math.abs(line.steps[best] - step)) best = n;
  });
  return best;
}

/** The values at 3 and 97 percent of all. */
function between(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted.length ? [sorted[Math.floor(0.03 * (sorted.length - 1))], sorted[Math.ceil(0.97 * (sorted.length - 1))]] : [];
}

/** What the charts of a page share: crosshair, zoom, smoothing and the kind of scale. */
export function sharing({ smoothing = 0, log = false, onzoom = () => {} } = {}) {
  const charts = new Set();
  const all = (what) => charts.forEach((one) => one[what]());
  return {
    smoothing, log, span: null, at: null,
    listen(one) {
      charts.add(one);
      return () => charts.delete(one);
    },
    move(step) {
      this.at = step;
      all("point");
    },
    zoom(span) {
      this.span = span;
      all("redraw");
      onzoom(span);
    },
    set(changes) {
      Object.assign(this, changes);
      all("redraw");
    },
  };
}
