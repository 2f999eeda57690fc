// What a run's evaluations measured, with intervals, and metrics over trajectories, also by cohorts of tasks.

import { h } from "./dom.js";
import { formatted } from "./format.js";
import { empty, select } from "./parts.js";
import { href } from "./route.js";

/** `by` is the field whose cohorts the answer holds; `choose` asks for those of another, "" for none. */
export function evaluatedTables(answer, run, by, choose) {
  const { evaluations: all, trajectories, problems, fields, cohorts } = answer;
  return [
    problems.map((problem) => h("p", { class: "bad", role: "alert" }, problem)),
    all.length ? results(all, run) : empty("Not evaluated yet", h("code", {}, `marft eval ${run.path}`), " asks held-out tasks, before and after."),
    trajectories.length ? h("details", {}, h("summary", {}, "Metrics over trajectories"), measures(all, trajectories)) : null,
    fields.length ? select("By cohort", [["", "all tasks"], ...fields.map((field) => [field, field])], fields.includes(by) ? by : "", choose) : null,
    cohorts.length ? ofCohorts(all, cohorts) : null,
  ];
}

const within = (interval, format) => (interval ? `${formatted(interval[0], format)} to ${formatted(interval[1], format)}` : "");
const known = (value, format) => (value === null ? "" : formatted(value, format));

function results(all, run) {
  const ks = [...new Set(all.flatMap((one) => Object.keys(one.passes || {})))];
  const headings = ["Evaluation", "Tasks", "Accuracy", "95\u202f%", "Reward", "95\u202f%", ...ks.flatMap((k) => [k, "95\u202f%"])];
  return table(headings, all.map((one) => [
    one.episodes ? h("a", { href: href(["run", run.id, "episodes"], { step: one.name }) }, one.name) : one.name, one.tasks,
    known(one.accuracy, ".1%"), within(one.interval, ".1%"), known(one.reward, ".3f"), within(one.reward_interval, ".3f"),
    ...ks.flatMap((k) => (one.passes?.[k] ? [formatted(one.passes[k][0], ".1%"), within(one.passes[k][1], ".1%")] : ["", ""])),
  ]));
}

const line = (row) => [row.agent ? `\u2003${row.agent}` : row.label, ...row.cells];
const measures = (all, rows) => table(["", ...all.map((one) => one.name)], rows.map(line));

const ofCohorts = (all, cohorts) => table(["", ...all.map((one) => one.name)], cohorts.flatMap((cohort) => [
  [h("b", {}, cohort.name), ...cohort.tasks.map((tasks) => `${tasks} tasks`)], ...cohort.rows.map(line),
]));

export const table = (headings, rows) => h("div", { class: "scroll" }, h("table", { class: "group-table" },
  h("thead", {}, h("tr", {}, headings.map((heading) => h("th", { scope: "col" }, heading)))),
  h("tbody", {}, rows.map((row) => h("tr", {}, row.map((cell, n) => h("td", { class: n ? "number" : "" }, cell)))))));
