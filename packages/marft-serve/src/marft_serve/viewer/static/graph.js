// The team as it really worked: agents are nodes, an edge says how often one was seen by another.

import { palette } from "./colour.js";
import { h, s } from "./dom.js";
import { count, percent } from "./format.js";
import { hideTip, showTip } from "./tip.js";

const [WIDE, HIGH, GAP_X, GAP_Y] = [132, 54, 92, 38];

/** Columns by the longest way of forward edges (forward: as the team is listed), rows in order; two who see each other are
 * peers, and push nobody on. */
export function layers(agents, edges) {
  const place = new Map(agents.map((agent, n) => [agent.role, n]));
  const column = agents.map(() => 0);
  const mutual = (edge) => edges.some((other) => other.from === edge.to && other.to === edge.from && Math.max(other.count, edge.count) < 3 * Math.min(other.count, edge.count));
  const forward = edges.filter((edge) => place.get(edge.from) < place.get(edge.to) && !mutual(edge));
  forward.sort((a, b) => place.get(a.from) - place.get(b.from));
  for (const edge of forward) column[place.get(edge.to)] = Math.max(column[place.get(edge.to)], column[place.get(edge.from)] + 1);
  return column;
}

export function graph(team) {
  const edges = team.edges.filter((edge) => edge.count > 0 && [edge.from, edge.to].every((role) => team.agents.some((agent) => agent.role === role)));
  const column = layers(team.agents, edges);
  const columns = Math.max(0, ...column) + 1;
  const rows = Math.max(...Array.from({ length: columns }, (_, c) => column.filter((other) => other === c).length));
  const back = edges.some((edge) => columnOf(team, column, edge.to) < columnOf(team, column, edge.from));
  const skips = edges.some((edge) => Math.abs(columnOf(team, column, edge.to) - columnOf(team, column, edge.from)) > 1);
  const head = skips || edges.some((edge) => edge.from === edge.to) ? 46 : 20;
  const peers = edges.some((edge) => edge.from !== edge.to && columnOf(team, column, edge.from) === columnOf(team, column, edge.to));
  const side = peers ? 74 : 20;
  const [width, height] = [columns * (WIDE + GAP_X) - GAP_X + side + 20, rows * (HIGH + GAP_Y) - GAP_Y + 20 + head + (back ? 56 : 0)];
  const colours = palette(team.agents.map((agent) => agent.role));
  const spots = new Map(team.agents.map((agent, n) => {
    const peers = team.agents.filter((_, other) => column[other] === column[n]);
    const tall = peers.length * (HIGH + GAP_Y) - GAP_Y;
    const top = head + (rows * (HIGH + GAP_Y) - GAP_Y - tall) / 2;
    return [agent.role, { x: side + column[n] * (WIDE + GAP_X), y: top + peers.indexOf(agent) * (HIGH + GAP_Y), column: column[n] }];
  }));
  const words = edges.map((edge) => `${edge.to} saw ${edge.from} ${edge.count} times`).join("; ");
  const svg = s("svg", { class: "team", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `The team. ${words}` });
  svg.style.maxWidth = `${Math.round(width * 1.15)}px`;
  svg.style.minWidth = `${Math.min(width, 6000) * 0.75}px`; // a large team is scrolled through, not shrunk
  svg.append(s("defs", {}, s("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 7, refY: 4, markerWidth: 11, markerHeight: 11, orient: "auto", markerUnits: "userSpaceOnUse" }, s("path", { d: "M0 0 L8 4 L0 8 Z" }))));
  const lines = edges.map((edge) => connection(edge, spots, height, colours));
  const nodes = team.agents.map((agent) => seat(agent, spots.get(agent.role), colours(agent.role), (role) => {
    lines.forEach((line, n) => line.classList.toggle("dim", role !== null && edges[n].from !== role && edges[n].to !== role));
  }));
  svg.append(...lines, ...nodes);
  return svg;
}

const columnOf = (team, column, role) => column[team.agents.findIndex((agent) => agent.role === role)];

function connection(edge, spots, height, colours) {
  const [a, b] = [spots.get(edge.from), spots.get(edge.to)];
  const middle = HIGH / 2;
  let [path, at] = ["", { x: 0, y: 0 }];
  if (b.column > a.column) {
    const [x1, y1, x2, y2] = [a.x + WIDE, a.y + middle, b.x - 2, b.y + middle];
    const between = [...spots.values()].filter((spot) => spot.column > a.column && spot.column < b.column).map((spot) => spot.y);
    const peak = Math.min(...between) - 14; // over all that stand between the two
    const bend = (peak - 0.125 * (y1 + y2)) / 0.75;
    const [c1, c2] = between.length ? [bend, bend] : [y1, y2];
    const reach = between.length ? GAP_X : GAP_X / 1.6;
    path = `M${x1} ${y1} C${x1 + reach} ${c1} ${x2 - reach} ${c2} ${x2} ${y2}`;
    at = { x: (x1 + x2) / 2, y: 0.125 * (y1 + y2) + 0.375 * (c1 + c2) };
  } else if (a !== b && a.column === b.column) {
    const [y1, y2] = [a.y + middle, b.y + middle + (a.y < b.y ? -12 : 12)];
    const left = a.x - (a.y < b.y ? 34 : 64); // there and back do not lie on each other
    path = `M${a.x} ${y1 + (a.y < b.y ? 12 : -12)} C${left} ${y1} ${left} ${y2} ${b.x - 2} ${y2}`;
    at = { x: 0.25 * a.x + 0.75 * left, y: (y1 + y2) / 2 + (a.y < b.y ? -3 : 19) };
  } else if (a === b) {
    const [x1, x2, high] = [a.x + WIDE - 52, a.x + WIDE - 20, a.y - 32];
    path = `M${x1} ${a.y} C${x1 - 10} ${high} ${x2 + 10} ${high} ${x2} ${a.y - 2}`;
    at = { x: x1 - 22, y: a.y };
  } else {
    const [x1, x2, low] = [a.x + WIDE / 2, b.x + WIDE / 2, height - 26];
    path = `M${x1} ${a.y + HIGH} C${x1} ${low + 14} ${x2} ${low + 14} ${x2} ${b.y + HIGH + 2}`;
    at = { x: (x1 + x2) / 2, y: 0.125 * (a.y + b.y + 2 * HIGH) + 0.75 * (low + 14) };
  }
  const tell = (event) => showTip(event, h("div", {}, h("b", {}, `${edge.to} saw ${edge.from}`), h("p", {}, `${count(edge.count)} times, in ${percent(edge.share)} of its actions`)));
  return s("g", { class: "edge", onpointermove: tell, onpointerleave: hideTip },
    s("path", { d: path, class: "reach" }),
    s("path", { d: path, stroke: colours(edge.from), "stroke-width": (1 + 2.2 * Math.min(1, edge.share)).toFixed(2), "marker-end": "url(#arrow)" }),
    s("text", { x: at.x, y: at.y - 5, "text-anchor": "middle" }, percent(edge.share)));
}

function seat(agent, spot, colour, light) {
  const short = agent.role.length > 15 ? `${agent.role.slice(0, 14)}…` : agent.role;
  const more = [agent.trained === false ? "frozen" : agent.policy === agent.role ? "" : agent.policy, agent.answers ? "answers" : ""].filter(Boolean).join(" · ");
  return s("g", { class: `seat ${agent.trained ? "" : "frozen"}`, transform: `translate(${spot.x} ${spot.y})`, onpointerenter: () => light(agent.role), onpointerleave: () => light(null) },
    s("title", {}, `${agent.role}: ${agent.instructions || "no instructions"}`),
    s("rect", { width: WIDE, height: HIGH, rx: 10 }), s("rect", { width: 5, height: HIGH - 20, x: 9, y: 10, rx: 2.5, class: "mark", fill: colour }),
    s("text", { x: 24, y: more ? 23 : 32, class: "role" }, short), more && s("text", { x: 24, y: 40, class: "more" }, more));
}
