// Curves of several runs, kept and added to: only what is new is asked for again.

import { get } from "./api.js";

const POINTS = 400;

export class Series {
  constructor() {
    this.runs = new Map(); // run → {names: [all], kept: name → {steps, values}, asked: Set}
  }

  of(run) {
    if (!this.runs.has(run)) this.runs.set(run, { names: [], kept: new Map() });
    return this.runs.get(run);
  }

  /** Which metrics a run has. */
  async names(run) {
    const answer = await get(["runs", run, "metrics"], {});
    this.of(run).names = answer.names;
    return answer.names;
  }

  /** Fetches some metrics of a run whole, those that are not here. */
  async want(run, names) {
    const held = this.of(run);
    const missing = names.filter((name) => !held.kept.has(name) && held.names.includes(name));
    if (missing.length) this.keep(held, missing, await get(["runs", run, "metrics"], { names: missing.join(","), points: POINTS }));
  }

  /** Asks for the steps after the last one; says whether there were any. */
  async refresh(run) {
    const held = this.of(run);
    const names = [...held.kept.keys()];
    if (!names.length) return false;
    const last = Math.max(-1, ...names.map((name) => held.kept.get(name).steps.at(-1) ?? -1));
    const answer = await get(["runs", run, "metrics"], { names: names.join(","), since: last, points: POINTS });
    const fresh = answer.steps.some((step) => step > last);
    if (!fresh) return false;
    const most = Math.max(...names.map((name) => held.kept.get(name).steps.length));
    if (most + answer.steps.length > 2 * POINTS) {
      held.kept.clear();
      await this.want(run, names);
    } else this.keep(held, names, answer);
    return true;
  }

  keep(held, names, answer) {
    for (const name of names) {
      const series = held.kept.get(name) || { steps: [], values: [] };
      answer.steps.forEach((step, n) => {
        if (step <= (series.steps.at(-1) ?? -Infinity)) return; // two answers may overlap
        series.steps.push(step);
        series.values.push(answer.series[name]?.[n] ?? null);
      });
      held.kept.set(name, series);
    }
  }

  get(run, name) {
    return this.runs.get(run)?.kept.get(name) || { steps: [], values: [] };
  }
}
