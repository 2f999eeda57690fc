// An episode on its time axis: a lane an agent, a bar an action, arrows for who saw whom, the critic's values below.

import { underWords } from "./colour.js";
import { append, h, onWidth, replace, s } from "./dom.js";
import { formatted, number, seconds } from "./format.js";
import { linear, scale } from "./ticks.js";
import { hideTip, showTip } from "./tip.js";

const [GUTTER, ROW, TOP, STRIP] = [118, 34, 24, 46];

/** When each action began and ended; where no clock ran (all at 0), by the order in which they were asked for. */
export function clock(actions) {
  const timed = actions.some((action) => action.ended > action.started);
  return { timed, of: (action) => (timed ? [action.started, action.ended] : [action.index, action.index + 0.85]), end: timed ? Math.max(...actions.map((action) => action.ended)) : actions.length };
}

/** What a bar says and how it is filled: the agent's colour, and the beginning of its words. */
export const plain = (colours) => ({ kind: "", fill: (action) => underWords(colours(action.agent)), label: null });

/**
 * @param paint {kind: a class, fill(action), label(action): a short text in place of words, or null}
 * @returns {node, select(id), close()}
 */
export function lanes(episode, roles, colours, choose, paint = plain(colours)) {
  const { actions } = episode;
  const times = clock(actions);
  const rows = roles.filter((role) => actions.some((action) => action.agent === role));
  const valued = actions.filter((action) => action.value !== null && action.value !== undefined);
  const height = TOP + rows.length * ROW + (valued.length ? STRIP : 6);
  const svg = s("svg", { class: `lanes ${paint.kind}`, role: "img", "aria-label": `${actions.length} actions of ${rows.length} agents over ${times.timed ? seconds(times.end) : "time"}` });
  const node = h("div", { class: "lanes-box" }, svg);
  const arrows = s("g", { class: "arrows" });
  let [bars, x, selected] = [new Map(), null, null];

  const draw = (width) => {
    x = scale([0, times.end || 1], [GUTTER, width - 14]);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    svg.setAttribute("height", height);
    bars = new Map(actions.map((action) => [action.id, bar(action, times, x, rows, paint, choose, point)]));
    replace(svg, defs(), steps(actions, times, x, height), axis(times, x, width, height),
      rows.map((role, n) => s("g", { class: "lane" }, s("line", { x1: GUTTER, x2: width - 14, y1: middle(n), y2: middle(n) }),
        s("text", { x: GUTTER - 12, y: middle(n) + 4, "text-anchor": "end" }, role.length > 15 ? `${role.slice(0, 14)}…` : role))),
      valued.length ? strip(valued, times, x, TOP + rows.length * ROW, width, colours) : [], [...bars.values()], arrows);
    point(selected);
  };
  const point = (id) => {
    const near = id ?? selected;
    const all = actions.flatMap((action) => action.sees.map((from) => [from, action.id])).filter(([from]) => bars.has(from));
    const shown = near ? all.filter((pair) => pair.includes(near)) : all.length <= 150 ? all : [];
    replace(arrows, shown.map(([from, to]) => arrow(spot(from), spot(to), !near ? "faint" : to === near ? "in" : "out")));
    const friends = new Set(near ? shown.flat() : []);
    bars.forEach((one, key) => {
      one.classList.toggle("selected", key === selected);
      one.classList.toggle("dim", near !== null && near !== undefined && key !== near && !friends.has(key));
    });
  };
  const spot = (id) => {
    const action = actions.find((one) => one.id === id);
    const [from, to] = times.of(action);
    return { from: x(from), to: Math.max(x(to), x(from) + 6), y: middle(rows.indexOf(action.agent)) };
  };
  const leave = onWidth(node, draw);
  return { node, close: leave, select: (id) => ((selected = id), x && point(id)) };
}

const middle = (row) => TOP + row * ROW + ROW / 2;

const defs = () => s("defs", {}, s("marker", { id: "saw", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 6, markerHeight: 6, orient: "auto", markerUnits: "userSpaceOnUse" }, s("path", { d: "M0 0 L8 4 L0 8 Z" })));

function bar(action, times, x, rows, paint, choose, point) {
  const [from, to] = times.of(action);
  const width = Math.max(6, x(to) - x(from) - 1);
  const y = middle(rows.indexOf(action.agent)) - 10;
  const words = spoken(action);
  const about = h("div", { class: "about-bar" }, h("b", {}, action.id), h("p", { class: "muted" }, times.timed ? `${seconds(to - from)} from ${seconds(from)}` : `action ${action.index + 1}`, ` · ${action.tokens} tokens`),
    h("p", {}, words.length > 180 ? `${words.slice(0, 180)}…` : words));
  const group = s("g", { class: "act", tabindex: "-1", onclick: () => choose(action.id), onpointerenter: (event) => (point(action.id), showTip(event, about)), onpointerleave: () => (point(null), hideTip()) },
    s("rect", { x: x(from), y, width, height: 20, rx: 4, fill: paint.fill(action) }));
  if (paint.label) return labelled(group, paint.label(action), x(from) + width / 2, y, width);
  const fits = Math.floor((width - 8) / 6.2);
  if (fits > 5) append(group, s("text", { x: x(from) + 6, y: y + 14 }, words.replace(/\s+/g, " ").slice(0, fits)));
  for (const call of action.calls.slice(0, 3)) append(group, s("circle", { cx: x(to) - 6 - 8 * action.calls.indexOf(call), cy: y + 10, r: 3, class: call.error ? "tool wrong" : "tool" }));
  return group;
}

const spoken = (action) => (action.choice ? action.choice.options[action.choice.chosen] : action.text.slice(action.thought));

/** With a short text inside, or above where there is no room. */
const labelled = (group, label, center, y, width) => append(group, s("text", { x: center, y: label.length * 6.4 < width ? y + 14 : y - 3, "text-anchor": "middle", class: label.length * 6.4 < width ? "" : "above" }, label));

function arrow(a, b, kind) {
  const [x1, x2] = [Math.min(a.to, Math.max(b.from, a.from)), b.from];
  const down = b.y > a.y ? 10 : b.y < a.y ? -10 : 0;
  const bow = Math.max(14, Math.min(60, Math.abs(x2 - x1) / 2));
  const path = down ? `M${x1 - 2} ${a.y + down} C${x1 + bow} ${a.y + down * 1.5} ${x2 - bow} ${b.y - down * 0.4} ${x2 - 1} ${b.y}`
    : `M${x1 - 2} ${a.y - 10} C${x1 + 8} ${a.y - 26} ${x2 - 8} ${b.y - 26} ${x2} ${b.y - 11}`;
  return s("path", { d: path, class: kind, "marker-end": kind === "faint" ? null : "url(#saw)" });
}

function steps(actions, times, x, height) {
  const many = Math.max(0, ...actions.map((action) => action.step)) + 1;
  if (many < 2 || many > 60) return [];
  return Array.from({ length: many }, (_, step) => {
    const own = actions.filter((action) => action.step === step).map(times.of);
    if (!own.length) return null;
    const [from, to] = [Math.min(...own.map((time) => time[0])), Math.max(...own.map((time) => time[1]))];
    return s("rect", { class: step % 2 ? "step odd" : "step", x: x(from) - 3, y: TOP - 4, width: Math.max(4, x(to) - x(from) + 6), height: height - TOP + 4, rx: 6 });
  });
}

function axis(times, x, width, height) {
  const ticks = linear(0, times.end || 1, Math.max(2, Math.floor((width - GUTTER) / 90)));
  return s("g", { class: "grid" }, ticks.map((tick) => [s("line", { x1: x(tick), x2: x(tick), y1: TOP - 6, y2: height }),
    s("text", { x: x(tick), y: TOP - 11, "text-anchor": "middle" }, times.timed ? `${number(tick)} s` : `#${tick}`)]));
}

function strip(actions, times, x, top, width, colours) {
  const values = actions.map((action) => action.value);
  const [low, high] = [Math.min(...values), Math.max(...values)];
  const y = scale([low, high === low ? low + 1 : high], [top + STRIP - 8, top + 10]);
  const sorted = [...actions].sort((a, b) => times.of(a)[0] - times.of(b)[0]);
  const path = (role) => sorted.filter((action) => action.agent === role).map((action, n) => `${n ? "L" : "M"}${x(times.of(action)[0]).toFixed(1)} ${y(action.value).toFixed(1)}`).join("");
  const roles = [...new Set(sorted.map((action) => action.agent))];
  return s("g", { class: "strip" }, s("line", { x1: GUTTER, x2: width - 14, y1: top + 2, y2: top + 2 }), s("text", { x: GUTTER - 12, y: top + 22, "text-anchor": "end" }, "value"),
    s("text", { x: GUTTER - 12, y: top + 36, "text-anchor": "end", class: "small" }, `${formatted(low, ".2f")} … ${formatted(high, ".2f")}`),
    roles.map((role) => s("path", { d: path(role), stroke: colours(role) })), sorted.map((action) => s("circle", { cx: x(times.of(action)[0]), cy: y(action.value), r: 3.2, fill: colours(action.agent) }, s("title", {}, `${action.id}: ${formatted(action.value, ".3f")}`))));
}
