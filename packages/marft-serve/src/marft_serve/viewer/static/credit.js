// The credit audit of a step: who was compared with whom, what of it taught nothing, and where the gradient went.

import { get } from "./api.js";
import { palette } from "./colour.js";
import { h, s, replace } from "./dom.js";
import { bytes, count, formatted, percent } from "./format.js";
import { histogram } from "./histogram.js";
import { listKeys } from "./keys.js";
import { dot, empty, into, panel, tag, tile } from "./parts.js";
import { href, remember } from "./route.js";
import { stepper } from "./stepper.js";
import { scale } from "./ticks.js";

export async function creditPage(root, route, run) {
  const { steps } = await get(["runs", run.id, "steps"]);
  if (!steps.length) return void replace(root, h("div", { class: "page" }, empty("No episodes are recorded yet", "The audit reads recorded episodes: training.record_episodes_every says which steps keep theirs.")));
  const recorded = steps.map((one) => one.step);
  const known = steps.filter((one) => one.credit).map((one) => one.step);
  let step = route.query.step ? Number(route.query.step) : known.at(-1) ?? recorded.at(-1);
  const body = h("div", { class: "sections" });
  const show = () => {
    remember(["run", run.id, "credit"], { step });
    return into(body, async () => audit(await get(["runs", run.id, "credit"], { step }), run));
  };
  replace(root, h("div", { class: "page" }, h("div", { class: "head row" }, h("h1", {}, "Credit audit"), stepper(recorded, step, (chosen) => ((step = chosen), show()))), body));
  show();
  return { close: listKeys(body, ".group-row") };
}

function audit(credit, run) {
  const colours = palette(run.agents.map((agent) => agent.role));
  const attempts = credit.groups.reduce((sum, group) => sum + group.episodes.length, 0);
  return [
    h("div", { class: "tiles" }, tile("Groups", count(credit.groups.length), `${count(attempts)} attempts`),
      tile("Taught nothing", share(credit.zero_advantages), "decisions of advantage 0", "No decision is pushed whose advantage is exactly 0"),
      tile("Equal groups", share(credit.zero_share), "groups without variance", "Everybody in the group earned the same: an advantage that compares its attempts is 0 for all of them; a critic's need not be"),
      tile("Credit recorded", credit.recorded ? bytes(credit.bytes) : "no", credit.recorded ? "for this step" : "episodes alone")),
    credit.recorded ? h("div", { class: "pair" },
      panel("Share of the gradient, by agent", {}, shares(credit.gradient_share, colours)), panel("Advantages, by agent", {}, histograms(credit.advantages, colours)))
      : empty("Credit of this step was not recorded", "Groups below come from the episodes. Advantages are kept where training.record_credit is on, as it is by default, and episodes are recorded."),
    panel("Groups", { beside: h("span", { class: "muted" }, "rewards of the attempts at one task; most varied first") }, groups(credit, run)),
  ];
}

const share = (value) => (value === null || value === undefined ? "–" : percent(value));

function shares(share, colours) {
  const known = Object.entries(share || {}).filter(([, value]) => value !== null);
  if (!known.length) return empty("Not known", "No gradient was recorded for this step.");
  return [h("div", { class: "stack", role: "img", "aria-label": known.map(([role, value]) => `${role} ${percent(value)}`).join(", ") }, known.map(([role, value]) => h("i", { title: `${role} ${percent(value)}`, style: { width: `${100 * value}%`, background: colours(role) } }))),
    h("ul", { class: "share-list" }, known.map(([role, value]) => h("li", {}, dot(colours(role)), h("span", {}, role), h("b", { class: "number" }, percent(value)))))];
}

function histograms(advantages, colours) {
  const known = Object.entries(advantages || {}).filter(([, one]) => one.counts.length);
  if (!known.length) return empty("Not known", "No advantage was recorded for this step.");
  const most = Math.max(...known.flatMap(([, one]) => [Math.abs(one.edges[0]), Math.abs(one.edges.at(-1))]));
  return h("div", { class: "histograms" }, known.map(([role, one]) => h("figure", {}, h("figcaption", {}, dot(colours(role)), role, h("span", { class: "muted number" }, ` ${count(one.counts.reduce((a, b) => a + b, 0))} decisions`)),
    histogram(one, { colour: colours(role), words: `Advantages of ${role}`, span: [-most, most] }))));
}

function groups(credit, run) {
  const rewards = credit.groups.flatMap((group) => group.rewards).filter((reward) => reward !== null);
  if (!rewards.length) return empty("No group", "No episode of this step was scored.");
  const [low, high] = [Math.min(...rewards), Math.max(...rewards)];
  const x = scale([low, high === low ? low + 1 : high], [8, 232]);
  const sorted = [...credit.groups].sort((a, b) => b.std - a.std);
  const strip = (group) => s("svg", { class: "attempts small", viewBox: "0 0 240 22", role: "img", "aria-label": `rewards ${group.rewards.map((reward) => formatted(reward, ".2f")).join(", ")}` },
    s("line", { x1: 8, x2: 232, y1: 11, y2: 11 }), s("line", { class: "mean", x1: x(group.mean), x2: x(group.mean), y1: 3, y2: 19 }),
    group.rewards.map((reward) => (reward === null ? null : s("circle", { cx: x(reward), cy: 11, r: 4.5 }))));
  const row = (group) => h("tr", { class: `group-row ${group.zero ? "zero" : ""}` },
    h("td", {}, h("a", { class: "code", href: href(["run", run.id, "episodes", ...group.episodes[0].map(String)]) }, group.key)), h("td", {}, strip(group)),
    h("td", { class: "number" }, formatted(group.mean, ".2f")), h("td", { class: "number" }, `± ${formatted(group.std, ".2f")}`), h("td", {}, group.zero ? tag("no variance", "warn") : null),
    h("td", {}, h("div", { class: "links" }, group.episodes.map(([step, index], n) => h("a", { href: href(["run", run.id, "episodes", String(step), String(index)]), title: `reward ${formatted(group.rewards[n], ".2f")}` }, n + 1)))));
  return h("div", { class: "scroll" }, h("table", { class: "group-table" }, h("thead", {}, h("tr", {}, ["Task", `Rewards, ${formatted(low, ".2f")} to ${formatted(high, ".2f")}`, "Mean", "Deviation", "", "Attempts"].map((title) => h("th", { scope: "col" }, title)))), h("tbody", {}, sorted.map(row))));
}
