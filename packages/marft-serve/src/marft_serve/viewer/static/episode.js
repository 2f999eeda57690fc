// One episode: the time axis, the conversation, and what it earned.

import { get } from "./api.js";
import { palette, SCALES } from "./colour.js";
import { h, onSight, replace } from "./dom.js";
import { attempts, declared, terms } from "./earned.js";
import { outcome } from "./episodes.js";
import { count, formatted, plural, seconds } from "./format.js";
import { pageKeys } from "./keys.js";
import { lanes } from "./lanes.js";
import { choice, copier, empty, panel, tag, tile } from "./parts.js";
import { go, href, remember } from "./route.js";
import { KINDS, legend, sharedScale, tokenView } from "./tokens.js";
import { turn } from "./turn.js";

export async function episodePage(root, route, run) {
  const [, , , step, index] = route.path;
  const address = ["runs", run.id, "episodes", step, index];
  const episode = await get(address);
  const path = ["run", run.id, "episodes", step, index];
  const roles = [...new Set([...run.agents.map((agent) => agent.role), ...episode.actions.map((action) => action.agent)])];
  const colours = palette(roles);
  const ids = [...episode.actions].sort((a, b) => a.index - b.index).map((action) => action.id);
  let selected = ids.includes(route.query.action) ? route.query.action : null;
  let kind = KINDS.includes(route.query.colour) ? route.query.colour : "";

  const save = () => remember(path, { action: selected, colour: kind });
  const choose = (id, scroll = true) => {
    if (!turns.has(id)) return;
    turns.get(selected)?.node.classList.remove("selected");
    selected = id;
    const { node } = turns.get(id);
    node.classList.add("selected");
    if (scroll) node.scrollIntoView({ block: "center", behavior: calm() ? "auto" : "smooth" });
    if (!node.contains(document.activeElement)) node.focus({ preventScroll: true });
    time.select(id);
    save();
  };
  const context = { address, colours, choose, glance: (id) => time.select(id ?? selected) };
  const turns = new Map(ids.map((id) => [id, turn(episode.actions.find((action) => action.id === id), context)]));
  const time = lanes(episode, roles, colours, choose);
  const colouring = colourer(address, turns);
  const guide = h("div", {});
  const paint = (now) => {
    kind = now;
    save();
    colouring.paint(kind, () => replace(guide, legend(kind, colouring.scale)));
    replace(guide, legend(kind, colouring.scale));
  };
  const options = [["", "Text", "The texts, without colours"], ...KINDS.map((one) => [one, SCALES[one].label, SCALES[one].help])];
  replace(root, h("div", { class: "page" }, header(episode, run, step, index),
    episode.actions.length ? panel("Time axis", { class: "time", beside: h("span", { class: "muted" }, "a bar is an action, a dot in it a tool; arrows: who saw whom") }, time.node) : null,
    h("div", { class: "columns" },
      h("div", { class: "conversation" }, h("div", { class: "bar sticky" }, h("span", { class: "label" }, "Tokens by"), choice("Colour tokens by", options, kind, paint), guide), conversation(episode, turns)),
      h("aside", { class: "beside", "aria-label": "What it earned" }, around(episode, run, [step, index])))));
  if (kind) paint(kind);
  if (selected) choose(selected);

  const move = (way) => {
    if (!ids.length) return;
    const here = ids.indexOf(selected);
    choose(ids[Math.max(0, Math.min(ids.length - 1, here < 0 ? (way > 0 ? 0 : ids.length - 1) : here + way))]);
  };
  const attempt = (way) => {
    const all = episode.group?.episodes || [];
    const here = all.findIndex(([s, i]) => String(s) === step && String(i) === index);
    const next = all[here + way];
    if (here >= 0 && next) go(["run", run.id, "episodes", String(next[0]), String(next[1])], { colour: kind });
  };
  const arrows = (way) => (event) => (event.target.closest(".tokens, .choice, input") ? false : move(way));
  const leave = pageKeys({ j: () => move(1), k: () => move(-1), ArrowDown: arrows(1), ArrowUp: arrows(-1), "[": () => attempt(-1), "]": () => attempt(1),
    p: () => turns.get(selected)?.prompt(), c: () => turns.get(selected)?.node.querySelector("footer .copy")?.click() });
  return { close: () => (leave(), time.close(), colouring.close()) };
}

const calm = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

function header(episode, run, step, index) {
  return h("div", { class: "head" }, h("div", { class: "title" }, h("a", { class: "back", href: href(["run", run.id, "episodes"], { step: /^\d+$/.test(step) ? step : "" }) }, "‹ Episodes"),
    h("h1", {}, episode.task, h("small", {}, ` #${episode.sample}`)), outcome(episode), episode.guards.map((guard) => tag(guard.replaceAll("_", " "), "warn")),
    h("a", { class: "quiet", href: href(["run", run.id, "beside"], { task: episode.task }) }, "Under two checkpoints")),
  episode.fork ? h("p", { class: "muted" }, `Played again from ${episode.fork.at} of ${episode.fork.origin}`) : null,
  episode.error ? h("div", { class: "empty bad" }, h("strong", {}, "It could not be scored"), h("pre", {}, episode.error)) : null,
  h("div", { class: "tiles" }, tile("Reward", formatted(episode.reward, "+.2f"), `attempt ${episode.sample + 1} at the task`), tile("Took", seconds(episode.seconds), plural(episode.transitions.length, "environment step")),
    tile("Wrote", count(episode.tokens), `tokens in ${plural(episode.actions.length, "action")}`), tile("Episode", `${step} / ${index}`, "step / index")));
}

function conversation(episode, turns) {
  if (!episode.actions.length) return empty("No action was taken", "The environment failed before anybody was asked.");
  const many = Math.max(...episode.actions.map((action) => action.step)) + 1;
  return Array.from({ length: many }, (_, step) => {
    const own = [...turns.entries()].filter(([id]) => Number(id.split("/")[0]) === step);
    const transition = episode.transitions.find((one) => one.step === step) || episode.transitions[step];
    if (!own.length && !transition) return null;
    return h("section", { class: "env-step", "aria-label": `Environment step ${step}` },
      h("div", { class: "observed" }, h("span", { class: "label" }, step ? `Step ${step}: the environment` : "The environment"), h("p", {}, transition?.observation ?? episode.prompt)),
      own.map(([, one]) => one.node),
      transition ? h("div", { class: "paid" }, h("span", {}, `Step ${step} earned`), h("b", { class: `number ${transition.reward < 0 ? "minus" : "plus"}` }, formatted(transition.reward, "+.2f")),
        Object.entries(transition.terms).filter(([, value]) => value).map(([name, value]) => h("span", { class: "muted" }, `${name.replaceAll("_", " ")} ${formatted(value, "+.2f")}`))) : null);
  });
}

function around(episode, run, here) {
  return [
    panel("The task", {}, h("p", { class: "pre" }, episode.prompt), episode.answer ? h("p", {}, h("span", { class: "label" }, "The team answered "), h("span", { class: "pre" }, episode.answer)) : null),
    episode.transitions.length ? panel("Rewards by term", {}, terms(episode.transitions), declared(episode.transitions)) : null,
    episode.group && episode.group.episodes.length > 1 ? panel("The group's attempts", {}, attempts(episode.group, run.id, here)) : null,
    episode.actions[0]?.play_again ? panel("Play it again", {}, h("p", { class: "muted" }, "Everything from the first action on is sampled anew; each action below has its own command."), h("code", { class: "command block" }, episode.actions[0].play_again), copier(episode.actions[0].play_again)) : null,
  ];
}

/** Fetches the tokens of the turns that come into sight and colours them, all on one scale. */
function colourer(address, turns) {
  const scale = sharedScale();
  const views = new Map();
  let [kind, told, watched] = ["", () => {}, []];
  const view = async (id, one) => {
    try {
      if (!views.has(id)) {
        const answer = await get([...address, "tokens"], { action: id });
        const made = tokenView(answer, scale);
        views.set(id, made);
        scale.add(answer, made);
      }
      if (!kind) return;
      one.coloured(views.get(id).node);
      scale.paint(kind);
      told();
    } catch (error) {
      if (kind) one.body.append(h("p", { class: "muted" }, error.message));
    }
  };
  return {
    scale,
    paint(now, tell) {
      [kind, told] = [now, tell];
      watched.forEach((end) => end());
      watched = [];
      if (!kind) return turns.forEach((one) => one.said());
      turns.forEach((one, id) => watched.push(onSight(one.node, () => view(id, one))));
      return scale.paint(kind);
    },
    close: () => watched.forEach((end) => end()),
  };
}
