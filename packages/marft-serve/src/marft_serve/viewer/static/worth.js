// What `marft worth` found: every arm beside the team, and what the single actions of an episode contributed.

import { palette, tint } from "./colour.js";
import { h, replace, s } from "./dom.js";
import { table } from "./evaluated.js";
import { count, formatted, number, plural, signed } from "./format.js";
import { lanes } from "./lanes.js";
import { copier, dot, tag } from "./parts.js";

const WIDTH = 130;

/** @returns {node, close()} */
export function worthOf({ found, problem, command, page }, roles) {
  if (!found) return { node: asked(problem, command), close: () => {} };
  const pictures = found.shown?.length ? episodes(found.shown, roles) : { node: without(found, command), close: () => {} };
  return { close: pictures.close, node: [
    found.headline ? h("p", { class: "headline" }, `${found.headline}.`) : null,
    found.rows.length ? arms(found) : null,
    found.contributions.length ? shares(found.contributions) : null, pictures.node,
    h("p", { class: "hint" }, "More of it, with checkpoints together and notes: ", h("code", {}, page)),
  ] };
}

const asked = (problem, command) => [
  problem ? h("p", { class: "bad", role: "alert" }, problem) : h("p", { class: "muted" }, "Nobody has asked yet: this plays one agent alone, seats swapped, agents left out, messages changed and actions again, on held-out tasks."),
  h("p", { class: "ask" }, h("code", { class: "command" }, command), copier(command)),
];

/** An earlier version kept none, or no action was sampled again. */
const without = (found, command) => (found.shown === null && found.contributions.length
  ? [h("p", { class: "muted" }, "No episodes are drawn, for an earlier version kept none: ask again; what was played before is read."), asked("", command)[1]] : null);

const scaled = (measure) => (measure === "accuracy" ? { form: ".1%", times: 100, unit: "points" } : { form: ".3f", times: 1, unit: "" });
const within = (interval, form, times = 1) => (interval ? `${formatted(times * interval[0], form)} to ${formatted(times * interval[1], form)}` : "");

function arms({ rows, measure }) {
  const { form, times, unit } = scaled(measure);
  const [known, failed] = [(row) => row.values[measure], rows.some((row) => row.failed)];
  const ends = rows.flatMap((row) => known(row)?.difference_interval || (known(row)?.difference ?? []));
  const change = times === 1 ? "+.3f" : "+.1f";
  const headings = ["In the team's place", measure === "accuracy" ? "Accuracy" : "Reward", "95\u202f%", `Difference${unit ? `, ${unit}` : ""}`, "95\u202f%", "", "Tries", "Tokens", "Seconds", ...(failed ? ["Failed"] : [])];
  return table(headings, rows.map((row) => {
    const value = known(row);
    const beside = value?.difference ?? null;
    return [row.name, value ? formatted(value.value, form) : "", within(value?.interval, form), beside === null ? "" : formatted(times * beside, change),
      within(value?.difference_interval, change, times), beside === null ? "" : interval(value, Math.min(0, ...ends), Math.max(0, ...ends)),
      row.attempts, count(row.tokens), row.seconds === null ? "–" : formatted(row.seconds, ".1f"), ...(failed ? [row.failed] : [])];
  }));
}

/** A difference on the line that all of a table share, with 0 marked. */
function interval({ difference, difference_interval: ends }, low, high) {
  const at = (value) => 5 + ((value - low) / (high - low || 1)) * (WIDTH - 10);
  const [from, to] = ends || [difference, difference];
  const kind = from > 0 ? "plus" : to < 0 ? "minus" : "open";
  return s("svg", { class: `interval ${kind}`, width: WIDTH, height: 14, viewBox: `0 0 ${WIDTH} 14`, "aria-hidden": "true" },
    s("line", { class: "zero", x1: at(0), x2: at(0), y1: 0, y2: 14 }), s("line", { x1: at(from), x2: at(to), y1: 7, y2: 7 }), s("circle", { cx: at(difference), cy: 7, r: 3.2 }));
}

function shares(all) {
  const cells = (value, form) => (value ? [formatted(value.value, form), within(value.interval, form)] : ["", ""]);
  return [h("h3", {}, "Every action sampled again"), h("p", { class: "muted" }, "A contribution is the reward less what the same episode earned when that action was sampled again. Its mean is 0 but for chance: whether anything hangs on an agent is in the variance."),
    table(["Agent", "Actions", "Contribution", "95\u202f%", "Variance", "95\u202f%", "Own part", "95\u202f%"],
      all.map((one) => [one.agent, count(one.actions), ...cells(one.contribution, "+.3f"), ...cells(one.variance, ".3f"), ...cells(one.own, ".3f")]))];
}

/** One episode at a time, chosen by its button. */
function episodes(all, roles) {
  const most = Math.max(0, ...all.flatMap((one) => one.actions.map((action) => Math.abs(action.contribution ?? 0))));
  const [place, colours] = [h("div", { class: "contributed" }), palette(roles)];
  let close = () => {};
  const buttons = all.map((one, n) => h("button", { type: "button", onclick: () => show(n) }, one.task, h("small", {}, ` reward ${number(one.reward)}`)));
  const show = (n) => {
    close();
    const drawn = episode(all[n], [...roles, ...all[n].actions.map((action) => action.agent)], colours, most);
    close = drawn.close;
    buttons.forEach((button, at) => button.setAttribute("aria-pressed", String(at === n)));
    replace(place, drawn.node);
  };
  show(0);
  return { close: () => close(), node: [h("h3", {}, "Episodes in which most hung on one action"), h("div", { class: "attempt-tabs", role: "group", "aria-label": "Episode, with its reward" }, buttons), place] };
}

function episode(one, roles, colours, most) {
  const paint = { kind: "worth-lanes", fill: (action) => (action.contribution === null ? "var(--sunken)" : tint(action.contribution, most)), label: (action) => (action.contribution === null ? "" : signed(action.contribution)) };
  const rows = new Map(one.actions.map((action) => [action.id, line(action, colours, most)]));
  const view = lanes(one, [...new Set(roles)], colours, (id) => choose(id), paint);
  const choose = (id) => {
    view.select(id);
    rows.forEach((row, key) => row.classList.toggle("selected", key === id));
  };
  return { close: view.close, node: [h("p", { class: "muted pre" }, one.prompt),
    h("p", {}, `Reward ${number(one.reward)}, ${plural(one.actions.length, "action")} `, legend(most)), view.node, h("div", { class: "scroll" }, h("table", { class: "group-table" },
      h("thead", {}, h("tr", {}, ["Agent", "Contribution", "Sampled again, it earned", "It said"].map((text) => h("th", { scope: "col" }, text)))), h("tbody", {}, [...rows.values()])))] };
}

const line = (action, colours, most) => h("tr", {}, h("td", { class: "number" }, dot(colours(action.agent)), action.agent),
  h("td", { class: "number" }, action.contribution === null ? tag("not sampled again") : h("span", { class: "amount", style: { background: tint(action.contribution, most) } }, signed(action.contribution))),
  h("td", { class: "number" }, action.resampled.map((reward) => number(reward)).join(", ")), h("td", { class: "pre" }, action.text || "(nothing)"));

const legend = (most) => h("span", { class: "scale" }, h("small", {}, "worse than what it says otherwise"),
  h("i", { style: { background: `linear-gradient(90deg, ${tint(-most, most)}, var(--surface), ${tint(most, most)})` } }), h("small", {}, "better"));
