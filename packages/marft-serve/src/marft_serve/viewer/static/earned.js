// What an episode earned: by environment step and term, and beside the group's other attempts.

import { h, s } from "./dom.js";
import { formatted } from "./format.js";
import { href } from "./route.js";
import { scale } from "./ticks.js";

/** A table: a row a step, a column a term; the bar behind a number is its share of the largest. */
export function terms(transitions) {
  const all = [...new Set(transitions.flatMap((transition) => Object.keys(transition.terms)))];
  const given = (name) => transitions.some((transition) => transition.terms[name]);
  const names = all.filter((name) => given(name) || !all.some((other) => other.startsWith(`${name}/`))); // paid to agents alone
  const roles = [...new Set(transitions.flatMap((transition) => Object.keys(transition.agent_rewards)))];
  const most = Math.max(1e-9, ...transitions.flatMap((transition) => [transition.reward, ...Object.values(transition.terms), ...Object.values(transition.agent_rewards)]).map((value) => Math.abs(value ?? 0)));
  const cell = (value) => h("td", { class: "number" }, value === null || value === undefined ? h("span", { class: "muted" }, "·") : [
    h("i", { class: value < 0 ? "minus" : "plus", style: { width: `${(100 * Math.abs(value)) / most}%` } }), h("span", {}, formatted(value, "+.2f"))]);
  const sum = (pick) => transitions.reduce((total, transition) => total + (pick(transition) ?? 0), 0);
  const row = (title, of, kind = "") => h("tr", { class: kind }, h("th", { scope: "row" }, title), transitions.map((transition) => cell(of(transition))), transitions.length > 1 ? h("td", { class: "number sum" }, formatted(sum(of), "+.2f")) : null);
  return h("div", { class: "scroll" }, h("table", { class: "terms" },
    h("thead", {}, h("tr", {}, h("th", {}, "step"), transitions.map((transition) => h("th", { scope: "col" }, transition.step)), transitions.length > 1 ? h("th", { scope: "col" }, "Σ") : null)),
    h("tbody", {}, names.map((name) => row(name.replaceAll("_", " ").replace("/", " · "), (transition) => transition.terms[name])), row("team reward", (transition) => transition.reward, "total"),
      roles.map((role) => row(`${role} alone`, (transition) => transition.agent_rewards[role])))));
}

/** Declared truth of the steps, such as progress; empty where there is none. */
export function declared(transitions) {
  const told = transitions.flatMap((transition) => Object.entries(transition.declared || {}).filter(([, value]) => value !== null && value !== "" && !(Array.isArray(value) && !value.length)).map(([key, value]) => [transition.step, key, value]));
  if (!told.length) return null;
  return h("dl", { class: "declared" }, told.map(([step, key, value]) => [h("dt", {}, `step ${step} ${key.replaceAll("_", " ")}`), h("dd", { class: "number" }, typeof value === "object" ? JSON.stringify(value) : typeof value === "number" ? formatted(value, ".3g") : String(value))]));
}

/** All attempts of the group on one axis of reward; each is a link. */
export function attempts(group, run, here) {
  const known = group.rewards.filter((reward) => reward !== null);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const room = (high - low || 1) * 0.15;
  const x = scale([low - room, high + room], [10, 290]);
  const mean = known.reduce((sum, reward) => sum + reward, 0) / Math.max(1, known.length);
  return [
    s("svg", { class: "attempts", viewBox: "0 0 300 44", role: "img", "aria-label": `Rewards of ${group.rewards.length} attempts, mean ${formatted(mean, ".2f")}` },
      s("line", { x1: 10, x2: 290, y1: 20, y2: 20 }), s("line", { class: "mean", x1: x(mean), x2: x(mean), y1: 6, y2: 32 }), s("text", { x: x(mean), y: 43, "text-anchor": "middle" }, `mean ${formatted(mean, ".2f")}`),
      group.rewards.map((reward, n) => (reward === null ? null : s("circle", { cx: x(reward), cy: 20, r: same(group.episodes[n], here) ? 7 : 5, class: same(group.episodes[n], here) ? "here" : "" })))),
    h("ul", { class: "attempt-list" }, group.episodes.map(([step, index], n) => h("li", {}, h("a", { href: href(["run", run, "episodes", String(step), String(index)]), "aria-current": same([step, index], here) ? "page" : null },
      h("span", {}, `attempt ${n + 1}`), h("span", { class: "number" }, formatted(group.rewards[n], ".2f")))))),
  ];
}

const same = (pair, here) => String(pair[0]) === String(here[0]) && Number(pair[1]) === Number(here[1]);
