// The same task under two checkpoints: attempts of each, their conversations turn beside turn.

import { get } from "./api.js";
import { palette } from "./colour.js";
import { h, replace } from "./dom.js";
import { outcome } from "./episodes.js";
import { formatted, percent } from "./format.js";
import { empty, failed, into, loading, select } from "./parts.js";
import { href, remember } from "./route.js";

export async function besidePage(root, route, run) {
  const query = { task: route.query.task || "", a: route.query.a || "", b: route.query.b || "" };
  const body = h("div", {});
  const bar = h("form", { class: "filters", onsubmit: (event) => event.preventDefault() });
  const show = () => into(body, async () => {
    let answer = await get(["runs", run.id, "beside"], query);
    if (answer.checkpoints.length < 2) return empty("There is nothing to put side by side yet", "It needs two recorded steps, or two evaluations with episodes (", h("code", {}, "marft eval"), ").");
    if (!query.a || !query.b || !query.task || (answer.tasks.length && !answer.tasks.includes(query.task))) {
      query.a ||= answer.pair[0];
      query.b ||= answer.pair[1];
      if (query.a === query.b) query.b = answer.checkpoints.find((name) => name !== query.a);
      if (!query.task || !answer.tasks.includes(query.task)) answer = await get(["runs", run.id, "beside"], { a: query.a, b: query.b, task: query.task });
      if (answer.tasks.length && !answer.tasks.includes(query.task)) {
        query.task = answer.tasks[0];
        answer = await get(["runs", run.id, "beside"], query);
      }
    }
    controls(answer);
    remember(["run", run.id, "beside"], query);
    if (!answer.tasks.length) return empty("These two have no task in common", "Training draws other tasks in every step; evaluations ask the same ones. Choose another pair above.");
    return compared(answer, run);
  });
  const set = (name) => (value) => {
    query[name] = value;
    show();
  };
  const controls = (answer) => {
    const at = answer.tasks.indexOf(query.task);
    const turn = (way) => h("button", { type: "button", class: "icon", "aria-label": way < 0 ? "Task before" : "Task after", disabled: !answer.tasks[at + way], onclick: () => set("task")(answer.tasks[at + way]) }, way < 0 ? "‹" : "›");
    const tasks = h("input", { list: "tasks", value: query.task, size: 26, "aria-label": "Task", "data-search": true, onchange: () => set("task")(tasks.value) });
    replace(bar, select("Left", answer.checkpoints.map((name) => [name, name]), query.a, set("a")), select("Right", answer.checkpoints.map((name) => [name, name]), query.b, set("b")),
      h("label", { class: "field" }, h("span", {}, "Task"), tasks), h("datalist", { id: "tasks" }, answer.tasks.slice(0, 2000).map((task) => h("option", { value: task }))), turn(-1), turn(1),
      h("span", { class: "hint" }, `${at + 1 || "–"} of ${answer.tasks.length} in common`));
  };
  replace(root, h("div", { class: "page" }, h("h1", { class: "unseen" }, `The same task under two checkpoints of ${run.name}`), bar, body));
  await show();
  return {};
}

function compared(answer, run) {
  const colours = palette(run.agents.map((agent) => agent.role));
  const sides = [answer.a, answer.b].map((side) => ({ side, chosen: 0, episode: null }));
  const grid = h("div", { class: "two" });
  const draw = () => replace(grid, sides.map((one) => heading(one, (n) => ((one.chosen = n), fetchSide(one)))), task(sides), rows(sides, colours, run));
  const fetchSide = async (one) => {
    const summary = one.side.episodes[one.chosen];
    if (!summary) return;
    one.episode = null;
    draw();
    try {
      one.episode = await get(["runs", run.id, "episodes", String(summary.step), String(summary.index)]);
    } catch (error) {
      one.episode = { error, actions: [] };
    }
    draw();
  };
  sides.forEach(fetchSide);
  draw();
  return grid;
}

function heading({ side, chosen }, act) {
  const rewards = side.episodes.map((episode) => episode.reward).filter((reward) => reward !== null);
  const mean = rewards.reduce((sum, reward) => sum + reward, 0) / Math.max(1, rewards.length);
  const told = side.episodes.filter((episode) => episode.success !== null);
  return h("header", { class: "side-head" }, h("h2", {}, side.name), h("p", { class: "muted" }, side.episodes.length
    ? `mean reward ${formatted(rewards.length ? mean : null, ".2f")} of ${side.episodes.length}${told.length ? ` · solved ${percent(told.filter((episode) => episode.success).length / told.length)}` : ""}` : "no attempt at this task"),
  h("div", { class: "attempt-tabs", role: "group", "aria-label": `Attempts of ${side.name}` }, side.episodes.map((episode, n) => h("button", { type: "button", "aria-pressed": String(n === chosen), onclick: () => act(n) }, `#${n + 1} `, h("span", { class: "number" }, formatted(episode.reward, "+.2f"))))));
}

const task = (sides) => {
  const prompt = sides.map((one) => one.episode?.prompt).find(Boolean);
  return prompt ? h("div", { class: "observed both" }, h("span", { class: "label" }, "The task"), h("p", {}, prompt)) : null;
};

/** Turns of the same seat stand beside each other: those with the same id, in the order of either. */
function rows(sides, colours, run) {
  const ids = [...new Set(sides.flatMap((one) => (one.episode?.actions || []).map((action) => action.id)))];
  const place = (id) => Math.min(...sides.map((one) => one.episode?.actions.find((action) => action.id === id)?.index ?? Infinity));
  ids.sort((a, b) => place(a) - place(b));
  const cell = (one, id) => {
    const action = one.episode?.actions.find((other) => other.id === id);
    if (!one.side.episodes.length) return h("div", {});
    if (!one.episode) return h("div", {}, loading());
    return action ? said(action, colours(action.agent)) : h("div", { class: "absent" }, "not asked here");
  };
  const close = (one) => {
    const summary = one.side.episodes[one.chosen];
    if (!summary) return h("div", {});
    if (one.episode?.error instanceof Error) return failed(one.episode.error);
    return h("div", { class: "paid" }, outcome(summary), h("b", { class: "number" }, formatted(summary.reward, "+.2f")), h("a", { href: href(["run", run.id, "episodes", String(summary.step), String(summary.index)]) }, "Open this episode"));
  };
  return [ids.length ? ids.map((id) => sides.map((one) => cell(one, id))) : sides.map((one) => h("div", {}, one.side.episodes.length && !one.episode ? loading() : null)), sides.map(close)];
}

function said(action, colour) {
  return h("article", { class: "turn", style: { "--agent": colour } }, h("header", {}, h("b", { class: "who" }, action.agent), h("span", { class: "code muted" }, action.id), h("span", { class: "facts" }, h("span", { class: "fact" }, h("small", {}, "tokens"), h("span", { class: "number" }, action.tokens)))),
    h("div", { class: "said" }, h("p", {}, action.text.slice(action.thought) || "(nothing)")), action.calls.map((call) => h("p", { class: "code muted" }, `⚒ ${call.name || "unreadable"} → ${call.output.slice(0, 200)}`)));
}
