// Which page is shown: by the hash, so that the server knows one page alone.

import { get } from "./api.js";
import { besidePage } from "./beside.js";
import { creditPage } from "./credit.js";
import { h, replace } from "./dom.js";
import { episodePage } from "./episode.js";
import { episodesPage } from "./episodes.js";
import { startKeys } from "./keys.js";
import { startLive } from "./live.js";
import { empty, failed, loading } from "./parts.js";
import { go, href, parse } from "./route.js";
import { runPage } from "./run.js";
import { runsPage } from "./runs.js";
import { startTheme } from "./theme.js";
import { hideTip } from "./tip.js";

const TABS = [["", "Overview"], ["episodes", "Episodes"], ["credit", "Credit"], ["beside", "Side by side"]];
const PAGES = { "": runPage, credit: creditPage, beside: besidePage };
const root = document.getElementById("page");
let shown = null; // {place, page}

async function show() {
  const route = parse();
  const place = route.path.join("/");
  hideTip();
  if (shown?.place === place && shown.page?.moved?.(route)) return;
  shown?.page?.close?.();
  const mine = (shown = { place, page: null });
  const [first = "runs", id, part = ""] = route.path;
  frame(first === "run" ? id : null, part);
  delete root.dataset.shows;
  replace(root, loading());
  scrollTo(0, 0);
  try {
    const page = await open(first, id, part, route);
    if (shown !== mine) return void page?.close?.();
    mine.page = page;
    root.dataset.shows = place;
  } catch (error) {
    if (shown === mine) replace(root, failed(error, () => ((shown = null), show())));
  }
}

async function open(first, id, part, route) {
  if (first === "runs") return runsPage(root, route);
  if (first !== "run" || !id) return void replace(root, empty("There is no such page", h("a", { href: "#/runs" }, "All runs")));
  const run = (await get(["runs"])).runs.find((one) => one.id === id);
  if (!run) return void replace(root, empty(`There is no run “${id}” here`, "It may have been removed, or `marft view` was given other folders. ", h("a", { href: "#/runs" }, "All runs")));
  if (part === "episodes") return route.path.length > 3 ? episodePage(root, route, run) : episodesPage(root, route, run);
  const make = PAGES[part];
  return make ? make(root, route, run) : void replace(root, empty("There is no such page", h("a", { href: href(["run", id]) }, id)));
}

function frame(id, part) {
  document.title = id ? `${id} · MARFT` : "Runs · MARFT";
  replace(document.getElementById("crumbs"), h("a", { href: "#/runs", "aria-current": id ? null : "page" }, "Runs"),
    id ? [h("span", { "aria-hidden": "true" }, "/"), h("a", { href: href(["run", id]) }, id)] : []);
  replace(document.getElementById("tabs"), id ? TABS.map(([name, text]) =>
    h("a", { href: href(["run", id, name].filter(Boolean)), "aria-current": name === part ? "page" : null }, text)) : []);
}

startTheme(document.getElementById("theme"));
startLive(document.getElementById("live"));
startKeys(document.getElementById("help"), (key) => {
  const { path } = parse();
  const part = { e: "episodes", c: "credit", s: "beside", o: "" }[key];
  if (key === "r") go(["runs"]);
  else if (part !== undefined && path[0] === "run") go(["run", path[1], part].filter(Boolean));
});
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash is the page's address
  root.focus();
});
addEventListener("hashchange", show);
show();
