// One run: how it stands, what its guards said, its team as it really worked, and its curves.

import { get, runNow } from "./api.js";
import { palette } from "./colour.js";
import { curves } from "./curves.js";
import { h, later, replace } from "./dom.js";
import { evaluatedTables } from "./evaluated.js";
import { ago, count, number, percent, seconds } from "./format.js";
import { graph } from "./graph.js";
import { poll } from "./live.js";
import { dot, empty, into, panel, tag, tile } from "./parts.js";
import { href, remember } from "./route.js";
import { stepper } from "./stepper.js";
import { worthOf } from "./worth.js";

export function runPage(root, route, first) {
  let run = { ...first, colour: 0 };
  const state = { filter: route.query.metrics || "", smoothing: Number(route.query.smooth ?? 0) || 0, log: route.query.log === "1" };
  let [step, by] = [route.query.step || "", route.query.by || ""];
  const save = later(200, () => remember(["run", run.id], { step, by, metrics: state.filter, smooth: state.smoothing || "", log: state.log ? "1" : "" }));
  const pictures = curves(state, save);
  const [head, said, team] = [h("div", {}), h("div", {}), h("div", { class: "panel-body" })];
  const [evaluated, worth] = [h("div", { class: "panel-body evaluated" }), h("div", { class: "panel-body worth" })];
  const beside = h("span", {});
  replace(root, h("div", { class: "page" }, head, said, panel("The team as it worked", { beside, class: "team-panel" }, team),
    panel("Evaluations", {}, evaluated), panel("Is the team worth it?", {}, worth), h("h2", { class: "over" }, "Curves"), pictures.node));

  const showTeam = () => into(team, async () => {
    if (!run.recorded.length) return empty("No episodes are recorded yet", "The graph is drawn from recorded episodes: training.record_episodes_every says which steps keep them.");
    return teamOf(await get(["runs", run.id, "team"], { step }), run);
  });
  const showEvaluated = () => into(evaluated, async () => evaluatedTables(await get(["runs", run.id, "evaluations"], { by }), run, by, (field) => {
    by = field;
    save();
    showEvaluated().then(() => evaluated.querySelector("select")?.focus()); // which was drawn anew
  }));
  const showSteps = () => {
    const steps = run.recorded;
    replace(beside, steps.length > 1 ? stepper(steps, step === "" ? steps.at(-1) : Number(step), (chosen) => {
      step = String(chosen);
      save();
      showTeam();
    }) : []);
  };
  let drawn = "";
  const showState = () => {
    const now = JSON.stringify([run, ago(run.updated)]);
    if (now === drawn) return; // what has the focus stays
    drawn = now;
    replace(head, header(run));
    replace(said, run.guards.length ? warnings(run.guards) : []);
  };
  showState();
  showSteps();
  showTeam();
  showEvaluated();
  let leave = () => {};
  const showWorth = () => into(worth, async () => {
    const drawn = worthOf(await get(["runs", run.id, "worth"]), run.agents.map((agent) => agent.role));
    leave();
    leave = drawn.close;
    return drawn.node;
  });
  showWorth();
  const stop = poll(async () => {
    const [before, tested, asked] = [run.recorded.length, run.evaluations.length, run.worth];
    run = { ...(await runNow(run.id)), colour: 0 };
    showState();
    if (run.recorded.length !== before) {
      showSteps();
      if (step === "") showTeam();
    }
    if (run.evaluations.length !== tested) showEvaluated();
    if (run.worth !== asked) showWorth();
    await pictures.choose([run]);
    await pictures.refresh();
    return run.state === "training";
  });
  return { close: () => (stop(), leave(), pictures.close()) };
}

/** Newest first; many fold away. */
function warnings(guards) {
  const line = (guard) => h("li", {}, h("b", {}, guard.name.replaceAll("_", " ")), h("span", { class: "number" }, `step ${guard.step}`), guard.sentence);
  const [newest, older] = [[...guards].reverse().slice(0, 3), [...guards].reverse().slice(3)];
  return h("div", { class: "guards", role: "note" }, h("h3", {}, "What the guards said"), h("ul", {}, newest.map(line)),
    older.length ? h("details", {}, h("summary", {}, `${older.length} earlier`), h("ul", {}, older.map(line))) : null);
}

function header(run) {
  const done = run.steps ? run.step / run.steps : 0;
  return h("div", { class: "head" },
    h("div", { class: "title" }, h("h1", {}, run.name), tag(run.state, run.state), h("span", { class: "muted" }, `${run.algorithm} at ${run.level} level · ${run.path} · ${ago(run.updated)}`)),
    h("div", { class: "tiles" },
      tile("Steps", `${run.step} of ${run.steps}`, [h("span", { class: "progress wide" }, h("i", { style: { width: `${100 * Math.min(1, done)}%` } })), left(run)]),
      tile("Reward", number(run.last.reward), "mean of the last step"),
      "accuracy" in run.last ? tile("Accuracy", percent(run.last.accuracy), "of the last step") : null,
      "validation_accuracy" in run.last && run.last.validation_accuracy !== null ? tile("Validation", percent(run.last.validation_accuracy), "accuracy") : null,
      "seconds" in run.last ? tile("A step takes", seconds(run.last.seconds)) : null,
      h("a", { class: "tile link", href: href(["run", run.id, "episodes"]) }, h("span", { class: "label" }, "Recorded"), h("strong", {}, count(run.recorded.length)), h("span", { class: "more" }, "steps · look at episodes →"))));
}

/** How long a run that trains still takes, if steps stay as the last one was. */
const left = (run) => (run.state === "training" && run.last.seconds ? h("span", { class: "more" }, `about ${seconds(run.last.seconds * Math.max(0, run.steps - run.step))} left`) : null);

function teamOf(team, run) {
  const colours = palette(team.agents.map((agent) => agent.role));
  return h("div", { class: "team-view" }, h("div", { class: "scroll" }, graph(team)),
    h("div", { class: "seats" }, h("p", { class: "muted" }, `${team.organization}, step ${team.step}: an edge says in how many of its actions an agent saw another.`),
      team.agents.map((agent) => h("details", { class: "seat-card" },
        h("summary", {}, dot(colours(agent.role)), h("b", {}, agent.role), agent.answers ? tag("answers") : null, agent.trained ? null : tag("frozen"),
          h("span", { class: "muted number" }, `${count(agent.actions)} actions · ${count(agent.tokens)} tokens`)),
        h("p", {}, agent.instructions || "No instructions."),
        h("p", {}, h("a", { href: href(["run", run.id, "episodes"], { agent: agent.role }) }, "Its episodes"), ` · policy ${agent.policy}`)))));
}
