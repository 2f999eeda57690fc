// The episode browser: search, filters and order stand in the address; rows come as they are scrolled to.

import { get, runNow } from "./api.js";
import { palette } from "./colour.js";
import { h, later, replace } from "./dom.js";
import { count, formatted, plural, seconds } from "./format.js";
import { poll } from "./live.js";
import { dot, empty, failed, tag } from "./parts.js";
import { href, remember } from "./route.js";
import { virtualList } from "./virtual.js";

const ROW = 52;
const COLUMNS = [["step", "Step"], ["task", "Task"], ["", "Answer"], ["reward", "Reward"], ["", "Outcome"], ["", "Agents"], ["tokens", "Tokens"], ["seconds", "Time"]];
const FILTERS = ["step", "q", "agent", "task", "status", "success", "guard", "reward_min", "reward_max", "sort", "order"];

export const outcome = (episode) => {
  if (!["terminated", "truncated", "paused"].includes(episode.status)) return tag(episode.status.replace("_", " "), "bad");
  if (episode.success === true) return tag("solved", "good");
  return tag(episode.success === false ? "not solved" : episode.status, episode.success === false ? "poor" : "");
};

export function episodesPage(root, route, run) {
  const query = Object.fromEntries(FILTERS.map((name) => [name, route.query[name] || ""]));
  const colours = palette(run.agents.map((agent) => agent.role));
  const found = h("span", { class: "hint", role: "status" });
  const note = h("div", {});
  const span = rewardSpan();
  let reading = ""; // how far the server has come with indexing a long run
  const list = virtualList({
    row: ROW, label: "Episodes", link: (episode) => href(["run", run.id, "episodes", String(episode.step), String(episode.index)]),
    ask: async (offset, limit) => {
      const answer = await get(["runs", run.id, "episodes"], { ...query, sort: query.sort || "step", order: query.order || "desc", offset, limit });
      span.see(answer.episodes);
      reading = answer.indexed < answer.files ? ` in ${answer.indexed} of ${answer.files} steps; the others are being read` : "";
      return { total: answer.total, items: answer.episodes };
    },
    draw: (episode) => (episode ? cells(episode, colours, span) : h("span", { class: "ghost" })),
    onfail: (error) => replace(note, failed(error, () => search())),
  });
  const search = async () => {
    remember(["run", run.id, "episodes"], query);
    replace(note);
    const total = await list.again();
    found.textContent = plural(total, "episode") + reading;
    list.node.hidden = !total;
    const filtered = FILTERS.some((name) => query[name] && !["sort", "order"].includes(name));
    if (!total && !note.childElementCount) replace(note, filtered
      ? empty("No episode is like that", h("button", { type: "button", onclick: clear }, "Clear all filters"))
      : empty("No episodes are recorded yet", "training.record_episodes_every says which steps keep theirs; the first appears once such a step is finished."));
  };
  const soon = later(200, search);
  const set = (name, value) => {
    query[name] = value;
    soon();
  };
  const clear = () => {
    for (const name of FILTERS) if (!["sort", "order"].includes(name)) query[name] = "";
    show();
    search();
  };
  const [bar, heads] = [h("form", { class: "filters", role: "search", onsubmit: (event) => event.preventDefault() }), h("div", { class: "line heads" })];
  const show = () => {
    replace(bar, filters(query, set, run), h("button", { type: "button", class: "plain", onclick: clear }, "Clear"), found);
    replace(heads, COLUMNS.map(([key, title]) => heading(key, title, query, (changes) => (Object.assign(query, changes), show(), search()))));
  };
  show();
  replace(root, h("div", { class: "page full" }, h("h1", { class: "unseen" }, `Episodes of ${run.name}`), bar, h("div", { class: "table" }, heads, list.node), note));
  const begun = search();
  let known = run.recorded.length;
  const stop = poll(async () => {
    await begun; // which says whether all is read
    const now = await runNow(run.id);
    if (reading && !list.node.scrollTop) await search();
    if (now.recorded.length !== known) {
      known = now.recorded.length;
      if (list.node.hidden) search();
      else found.textContent = `${found.textContent.split(" · ")[0]} · new steps are recorded`;
    }
    return now.state === "training" || reading !== "";
  }, 3);
  return { close: () => (stop(), list.close()) };
}

function heading(key, title, query, act) {
  if (!key) return h("span", {}, title);
  const sorted = (query.sort || "step") === key;
  const next = sorted && query.order !== "asc" ? "asc" : "desc";
  return h("button", { type: "button", class: `sort ${sorted ? "sorted" : ""}`, "aria-label": `Sort by ${title.toLowerCase()}, ${next === "asc" ? "lowest" : "highest"} first`,
    onclick: () => act({ sort: key, order: next }) }, title, sorted ? h("i", { "aria-hidden": "true" }, query.order === "asc" ? " ↑" : " ↓") : null);
}

function filters(query, set, run) {
  const field = (label, name, props = {}) => h("label", { class: "field" }, h("span", {}, label), h("input", { value: query[name], oninput: (event) => set(name, event.target.value), ...props }));
  const pick = (label, name, options) => {
    const node = h("select", { onchange: () => set(name, node.value) }, [["", "any"], ...options].map(([value, text]) => h("option", { value }, text)));
    if (query[name] && !options.some(([value]) => value === query[name])) node.append(h("option", { value: query[name] }, query[name]));
    node.value = query[name];
    return h("label", { class: `field ${query[name] ? "set" : ""}` }, h("span", {}, label), node);
  };
  const same = (values) => values.map((value) => [String(value), String(value).replaceAll("_", " ")]);
  return [
    h("input", { type: "search", class: "grow", placeholder: "Search prompts, texts, tasks", "aria-label": "Search episodes", "data-search": true, value: query.q, oninput: (event) => set("q", event.target.value) }),
    pick("Step", "step", same([...[...run.recorded].reverse(), ...run.evaluations])), pick("Agent", "agent", same(run.agents.map((agent) => agent.role))),
    field("Task", "task", { size: 8, placeholder: "any" }),
    pick("Solved", "success", [["true", "yes"], ["false", "no"]]), pick("Status", "status", same(["terminated", "truncated", "paused", "failed", "timed_out"])),
    pick("Guard", "guard", same([...new Set(run.guards.map((guard) => guard.name).filter((name) => name !== "rolled_back_to"))])),
    h("label", { class: "field" }, h("span", {}, "Reward"), ["reward_min", "reward_max"].map((name, n) => [n ? h("span", {}, "to") : null,
      h("input", { type: "number", step: "any", class: "short", "aria-label": n ? "Highest reward" : "Lowest reward", value: query[name], oninput: (event) => set(name, event.target.value) })])),
  ];
}

function rewardSpan() {
  let [low, high] = [0, 1e-9];
  return {
    see: (episodes) => episodes.forEach(({ reward }) => reward !== null && ([low, high] = [Math.min(low, reward), Math.max(high, reward)])),
    bar: (reward) => {
      const place = (value) => (100 * (value - low)) / (high - low);
      const [from, to] = [place(Math.min(0, reward ?? 0)), place(Math.max(0, reward ?? 0))];
      return h("span", { class: "meter", "aria-hidden": "true" }, h("i", { class: reward < 0 ? "minus" : "", style: { left: `${from}%`, width: `${reward ? Math.max(1, to - from) : 0}%` } }));
    },
  };
}

function cells(episode, colours, span) {
  return [
    h("span", { class: "number" }, episode.step), h("span", { class: "code", title: episode.task }, episode.task, h("small", {}, ` #${episode.sample}`)),
    h("span", { class: "preview" }, episode.error || episode.preview), h("span", { class: "reward" }, h("b", { class: "number" }, formatted(episode.reward, ".2f")), span.bar(episode.reward)),
    h("span", { class: "tags" }, outcome(episode), episode.fork ? tag("fork") : null, episode.guards.map((guard) => tag(guard.replaceAll("_", " "), "warn"))),
    h("span", { class: "dots", title: episode.agents.join(", ") }, episode.agents.slice(0, 8).map((role) => dot(colours(role))), h("small", {}, `${episode.actions}`)),
    h("span", { class: "number" }, count(episode.tokens)), h("span", { class: "number" }, seconds(episode.seconds)),
  ];
}
