// All runs: a list to choose from, and the curves of those that are chosen.

import { get } from "./api.js";
import { series } from "./colour.js";
import { curves } from "./curves.js";
import { h, later, replace } from "./dom.js";
import { ago, number, signed } from "./format.js";
import { listKeys } from "./keys.js";
import { poll } from "./live.js";
import { empty, failed, loading, tag } from "./parts.js";
import { href, remember } from "./route.js";
import { sparkline } from "./sparkline.js";

export function runsPage(root, route) {
  const state = { filter: route.query.metrics || "", smoothing: Number(route.query.smooth ?? 0) || 0, log: route.query.log === "1" };
  let chosen = route.query.runs?.split(",").filter(Boolean) || null;
  let runs = [];
  let rewards = new Map();
  const save = later(200, () => remember(["runs"], { runs: chosen?.join(","), metrics: state.filter, smooth: state.smoothing || "", log: state.log ? "1" : "", q: search.value }));
  const pictures = curves(state, save);
  const list = h("div", { class: "runs-list", role: "list" }, loading("Loading runs"));
  const search = h("input", { type: "search", placeholder: "Find a run", "aria-label": "Find a run", value: route.query.q || "", oninput: later(100, () => (show(), save())) });
  replace(root, h("div", { class: "split" },
    h("aside", { class: "side", "aria-label": "Runs" }, h("div", { class: "bar" }, search), list), h("div", { class: "main" }, pictures.node)));
  const leave = listKeys(list, ".run");

  const toggle = (id) => {
    chosen = chosen.includes(id) ? chosen.filter((one) => one !== id) : [...chosen, id];
    save();
    show();
    pictures.choose(selected());
  };
  const selected = () => runs.filter((run) => chosen.includes(run.id));
  let drawn = "";
  const show = () => {
    const now = JSON.stringify([runs.map((run) => [run, ago(run.updated)]), chosen, search.value, [...rewards]]);
    if (now === drawn) return; // what has the focus, or is pointed at, stays
    drawn = now;
    const words = search.value.toLowerCase();
    const found = runs.filter((run) => `${run.name} ${run.algorithm} ${run.level} ${run.state}`.toLowerCase().includes(words));
    const focused = list.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    if (!runs.length) replace(list, empty("No runs here yet", "Start one with ", h("code", {}, "marft train demo"), "; it appears here while it trains."));
    else if (!found.length) replace(list, empty("No run is called that", "Names, algorithms and states are searched."));
    else replace(list, found.map((run) => row(run, chosen.includes(run.id), rewards.get(run.id), toggle)));
    if (focused) list.querySelector(`[data-key="${CSS.escape(focused)}"]`)?.focus();
  };
  const refresh = async () => {
    runs = (await get(["runs"])).runs;
    runs.forEach((run, n) => (run.colour = n));
    chosen ??= runs.slice(0, 3).map((run) => run.id);
    await Promise.all(runs.slice(0, 40).filter((run) => !rewards.has(run.id) || run.state === "training").map(async (run) => {
      const answer = await get(["runs", run.id, "metrics"], { names: "reward", points: 60 });
      rewards.set(run.id, answer.series.reward || []);
    }));
    show();
    await pictures.choose(selected());
    await pictures.refresh();
    return runs.some((run) => run.state === "training");
  };
  const stop = poll(async () => {
    try {
      return await refresh();
    } catch (error) {
      if (!runs.length) replace(list, failed(error));
      throw error;
    }
  });
  return { close: () => (stop(), leave(), pictures.close()) };
}

function row(run, ticked, rewards, toggle) {
  const done = run.steps ? Math.min(1, run.step / run.steps) : 0;
  return h("div", { class: `run ${ticked ? "ticked" : ""}`, role: "listitem" },
    h("label", { class: "tick", title: `Show the curves of ${run.name}` },
      h("input", { type: "checkbox", checked: ticked, "data-key": run.id, "aria-label": `Curves of ${run.name}`, onchange: () => toggle(run.id) }),
      h("i", { class: "swatch", style: { "--swatch": series(run.colour) } })),
    h("div", { class: "about" },
      h("a", { class: "name", "data-key": `${run.id}/`, href: href(["run", run.id]) }, run.name),
      h("div", { class: "meta" }, tag(run.state, run.state), `${run.algorithm} · ${run.level} · ${run.agents.length} agents`),
      h("div", { class: "meta" }, h("span", { class: "progress", role: "progressbar", "aria-valuenow": run.step, "aria-valuemax": run.steps, "aria-label": `Progress of ${run.name}` }, h("i", { style: { width: `${100 * done}%` } })),
        h("span", { class: "number" }, `${run.step}/${run.steps}`), h("span", {}, ago(run.updated))),
      run.guards.length ? h("div", { class: "warned", title: run.guards.map((guard) => `step ${guard.step}: ${guard.sentence}`).join("\n") }, `⚠ ${run.guards.at(-1).sentence}`) : null),
    h("div", { class: "earned" }, h("strong", { class: "number" }, number(run.last.reward)), h("span", { class: "label" }, "reward"),
      sparkline(rewards || [], { width: 84, colour: series(run.colour), words: change(rewards) })));
}

function change(rewards) {
  const known = (rewards || []).filter((value) => value !== null);
  return known.length > 1 ? `reward ${signed(known.at(-1) - known[0])} since the first step` : "";
}
