// The keyboard: what each key does is said in one place, and shown by `?`.

import { h } from "./dom.js";

const SHOWN = [
  ["/", "Search or filter"], ["?", "These keys"], ["j  k  or  ↓  ↑", "Next, previous in a list or a conversation"],
  ["Enter", "Open what is selected"], ["←  →", "Read a chart, go along tokens"], ["p", "Prompt of the selected action"],
  ["c", "Copy its “play again”"], ["[  ]", "Previous, next attempt of the group"], ["g r", "All runs"], ["g e", "Episodes of this run"], ["g c", "Credit of this run"], ["g s", "Side by side"], ["Esc", "Close, show all steps"],
];

const writing = (node) => node?.closest("textarea, select, [contenteditable], input:not([type=checkbox]):not([type=radio]):not([type=range])");

/** Keys that hold on every page. @param jump told the letter after g */
export function startKeys(button, jump) {
  const dialog = h("dialog", { class: "keys", "aria-label": "Keys" }, h("h2", {}, "Keys"),
    h("dl", {}, SHOWN.map(([keys, does]) => [h("dt", {}, keys.split("  ").map((key) => (key === "or" ? " or " : h("kbd", {}, key)))), h("dd", {}, does)])),
    h("form", { method: "dialog" }, h("button", { class: "primary" }, "Close")));
  document.body.append(dialog);
  let leader = 0;
  button.addEventListener("click", () => dialog.showModal());
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (writing(event.target)) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (event.key === "?") dialog.open ? dialog.close() : dialog.showModal();
    else if (event.key === "/") {
      const field = document.querySelector("#page [data-search], #page input[type=search]");
      if (field) event.preventDefault(), field.focus(), field.select();
    } else if (event.key === "g") leader = Date.now();
    else if (Date.now() - leader < 1200) (leader = 0), jump(event.key);
  });
}

/** Arrow keys and j, k move the focus over the items of a list; returns what ends that. */
export function listKeys(list, items) {
  const move = (event) => {
    const way = { ArrowDown: 1, ArrowUp: -1, j: 1, k: -1 }[event.key];
    if (!way || event.ctrlKey || event.metaKey || event.altKey || writing(event.target)) return;
    if (document.activeElement !== document.body && !list.contains(document.activeElement)) return;
    const all = [...list.querySelectorAll(items)];
    const here = all.findIndex((item) => item.contains(document.activeElement));
    const next = all[Math.max(0, Math.min(all.length - 1, here < 0 ? 0 : here + way))];
    if (!next) return;
    event.preventDefault();
    (next.matches("a, button, [tabindex]") ? next : next.querySelector("a, [tabindex]"))?.focus();
  };
  document.addEventListener("keydown", move);
  return () => document.removeEventListener("keydown", move);
}

/** Keys of one page: {key: act}; returns what ends that. */
export function pageKeys(acts) {
  const press = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || writing(event.target) || document.querySelector("dialog[open]")) return;
    const act = acts[event.key];
    if (act && act(event) !== false) event.preventDefault();
  };
  document.addEventListener("keydown", press);
  return () => document.removeEventListener("keydown", press);
}
