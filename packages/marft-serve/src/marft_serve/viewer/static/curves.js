// All curves of the chosen runs: filtered by name, in groups, each with what it means; agents of one metric in one chart.

import { catalogue, split } from "./api.js";
import { chart, sharing } from "./chart.js";
import { dash, palette, series } from "./colour.js";
import { h, later, onSight, replace, s } from "./dom.js";
import { empty } from "./parts.js";
import { Series } from "./series.js";

const FIRST = ["reward", "accuracy", "validation_accuracy", "validation_reward", "agents/kl", "agents/entropy", "agents/action_length", "agents/clip_fraction", "agents/gradient_norm", "reward_std"];

/** @param state {filter, smoothing, log}; @param onstate is told when the reader changes it */
export function curves(state, onstate) {
  const held = new Series();
  const shared = sharing({ smoothing: state.smoothing, log: state.log, onzoom: (span) => (reset.hidden = !span) });
  const groups = h("div", { class: "groups" });
  const reset = h("button", { type: "button", hidden: true, onclick: () => shared.zoom(null) }, "Show all steps");
  let [runs, known, cards, opened] = [[], null, new Map(), new Set(["Highlights"])];

  const changed = (changes) => {
    Object.assign(state, changes);
    onstate(state);
  };
  const filter = h("input", { type: "search", placeholder: "Filter metrics, e.g. kl|entropy", value: state.filter, "data-search": true, "aria-label": "Filter metrics by name",
    oninput: later(150, () => (changed({ filter: filter.value }), build())) });
  const amount = h("output", {}, state.smoothing.toFixed(2));
  const slider = h("input", { type: "range", min: 0, max: 0.99, step: 0.01, value: state.smoothing, "aria-label": "Smoothing", oninput: () => {
    amount.textContent = Number(slider.value).toFixed(2);
    shared.set({ smoothing: Number(slider.value) });
    changed({ smoothing: Number(slider.value) });
  } });
  const log = h("input", { type: "checkbox", checked: state.log, onchange: () => (shared.set({ log: log.checked }), changed({ log: log.checked })) });
  const node = h("div", { class: "curves-page" },
    h("div", { class: "bar" }, filter, h("label", { class: "field" }, h("span", {}, "Smoothing"), slider, amount),
      h("label", { class: "check" }, log, "Log scale"), reset, h("span", { class: "hint" }, "drag to zoom, double-click for all")),
    groups);

  /** One card a metric of the team, and one a metric of agents or policies. */
  const families = () => {
    const found = new Map();
    for (const run of runs) for (const name of held.of(run.id).names) {
      const { scope, base } = split(name);
      const key = scope ? `${scope}/${base}` : base;
      if (!found.has(key)) found.set(key, { key, base, scope, names: new Set() });
      found.get(key).names.add(name);
    }
    return [...found.values()];
  };
  const build = () => {
    cards.forEach((card) => card.close());
    cards = new Map();
    const all = families();
    const wanted = matcher(filter.value);
    const matching = all.filter((family) => wanted(family.key) || wanted(known(family.base).label) || [...family.names].some(wanted));
    if (!runs.length) return replace(groups, empty("No run is chosen", "Tick one or more runs to see their curves."));
    if (!matching.length) return replace(groups, empty(all.length ? "No metric has that name" : "No step is finished yet", all.length ? "Filters are words or regular expressions: kl, reward|accuracy, agents/actor." : "Curves appear with the first step."));
    return replace(groups, ordered(matching, filter.value, known).map(([title, families]) => group(title, families)));
  };
  const group = (title, families) => {
    const grid = h("div", { class: "grid-of-charts" });
    const section = h("details", { class: "group", open: Boolean(filter.value) || opened.has(title), ontoggle: () => {
      opened[section.open ? "add" : "delete"](title);
      if (section.open && !grid.childElementCount) grid.append(...families.map(card));
    } }, h("summary", {}, h("h3", {}, title), h("span", { class: "count" }, families.length)), grid);
    return section;
  };
  const card = (family) => {
    const entry = known(family.base);
    const own = chart({ title: entry.label, entry, shared });
    const wide = h("button", { type: "button", class: "icon", title: "Wider", "aria-label": `${entry.label} wider`, onclick: () => node.classList.toggle("wide") }, "⤢");
    const legend = h("div", { class: "legend" });
    const node = h("article", { class: "card" },
      h("header", {}, h("h4", { title: entry.advice || entry.meaning }, family.scope === "policies" ? `${entry.label} of policies` : family.scope ? `${entry.label} by agent` : entry.label), h("span", { class: "unit" }, [entry.unit, { up: "higher is better", down: "lower is better" }[entry.better]].filter(Boolean).join(" · ")), wide),
      h("p", { class: "meaning" }, entry.meaning, entry.advice ? h("em", {}, ` — ${entry.advice}`) : null), own.node, legend, h("code", { class: "path" }, family.key));
    const show = () => {
      const lines = linesOf(family, runs, held);
      own.show(lines);
      replace(legend, lines.length > 1 ? keysOf(lines, own.light) : []);
    };
    const forget = onSight(node, async () => {
      await Promise.allSettled(runs.map((run) => held.want(run.id, [...family.names])));
      show();
    });
    cards.set(family.key, { show, close: () => (forget(), own.close()) });
    return node;
  };
  return {
    node,
    async choose(now) {
      const before = runs.map((run) => run.id).join();
      runs = now;
      known ??= await catalogue();
      if (before === runs.map((run) => run.id).join() && cards.size) return;
      await Promise.allSettled(runs.map((run) => held.names(run.id)));
      build();
    },
    async refresh() {
      const fresh = await Promise.all(runs.map((run) => held.refresh(run.id)));
      if (!cards.size && runs.length) {
        await Promise.all(runs.map((run) => held.names(run.id)));
        if (families().length) build();
      }
      if (fresh.some(Boolean)) cards.forEach((card) => card.show());
    },
    close: () => cards.forEach((card) => card.close()),
  };
}

function matcher(text) {
  if (!text) return () => true;
  try {
    const pattern = new RegExp(text, "i");
    return (name) => pattern.test(name);
  } catch {
    return (name) => name.toLowerCase().includes(text.toLowerCase()); // half a regular expression
  }
}

function ordered(families, filter, known) {
  if (filter) return [["Found", families]];
  const first = FIRST.map((key) => families.find((family) => family.key === key)).filter(Boolean);
  const groups = new Map([["Highlights", first.length ? first : families.slice(0, 6)]]);
  for (const family of families) {
    const title = known(family.base).group || "Others";
    groups.set(title, [...(groups.get(title) || []), family]);
  }
  return [...groups];
}

function linesOf(family, runs, held) {
  const whose = [...new Set([...family.names].map((name) => split(name).whose))];
  const one = runs.length === 1;
  const agents = runs[0]?.agents.map((agent) => agent.role) || [];
  const colours = palette(family.scope === "policies" ? [] : agents);
  return runs.flatMap((run) => [...family.names].filter((name) => held.of(run.id).names.includes(name)).map((name) => {
    const who = split(name).whose;
    const title = [one && who ? "" : run.name, who].filter(Boolean).join(" · ");
    const colour = one ? (who ? colours(who) : series(run.colour)) : series(run.colour);
    return { name: title, run: one ? "" : run.name, who, colour, dash: one || !who ? "" : dash(whose.indexOf(who)), ...held.get(run.id, name) };
  }));
}

/** The legend: colours alone, or colours of runs and, after them, dashes of agents. */
function keysOf(lines, light) {
  const key = (name, colour, dashes, test) => h("span", { onpointerenter: () => light(test), onpointerleave: () => light(null) }, s("svg", { class: "key", viewBox: "0 0 20 4", width: 20, height: 4, "aria-hidden": "true" }, s("line", { x1: 0, x2: 20, y1: 2, y2: 2, stroke: colour, "stroke-dasharray": dashes || null })), name);
  const first = (pick) => [...new Map(lines.filter(pick).map((line) => [pick(line), line])).values()];
  const [runs, agents] = [first((line) => line.run), first((line) => line.who)];
  if (runs.length && agents.length > 1) return [runs.map((line) => key(line.run, line.colour, "", (other) => other.run === line.run)), agents.map((line) => key(line.who, "var(--muted)", line.dash, (other) => other.who === line.who))];
  return lines.map((line) => key(line.name, line.colour, line.dash, (other) => other.name === line.name));
}
