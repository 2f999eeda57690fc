// A list of any length, of which only what is seen is asked for and drawn.

import { h, replace } from "./dom.js";

const PAGE = 100;

/**
 * @param ask async (offset, limit) → {total, items}
 * @param draw (item, index) → the content of a row; an item that is not here yet is null
 * @param link (item) → its address, which Enter opens once the item is here; a row is a link, so a click needs nothing
 */
export function virtualList({ row, ask, draw, link, label, onfail }) {
  const inside = h("div", { class: "inside" });
  const node = h("div", { class: "virtual", tabindex: "0", role: "listbox", "aria-label": label, "data-list": true }, inside);
  let [total, active, pages, asked, turn] = [0, 0, new Map(), new Set(), 0];
  let opening = false; // Enter was pressed on a row that is still being fetched

  const item = (index) => pages.get(Math.floor(index / PAGE))?.[index % PAGE] ?? null;
  const fetchPage = async (page) => {
    if (asked.has(page)) return;
    asked.add(page);
    const mine = turn;
    try {
      const answer = await ask(page * PAGE, PAGE);
      if (mine !== turn) return;
      pages.set(page, answer.items);
      total = answer.total;
      paint();
      open();
    } catch (error) {
      if (mine === turn && error.name !== "AbortError") asked.delete(page), onfail(error);
    }
  };
  const paint = () => {
    inside.style.height = `${total * row}px`;
    const from = Math.max(0, Math.floor(node.scrollTop / row) - 6);
    const to = Math.min(total, Math.ceil((node.scrollTop + (node.clientHeight || 600)) / row) + 6);
    const rows = [];
    for (let index = from; index < to; index += 1) {
      const here = item(index);
      if (!here) fetchPage(Math.floor(index / PAGE));
      const line = h("a", { class: `line ${index === active ? "active" : ""}`, role: "option", id: `line-${index}`, tabindex: "-1", "aria-selected": index === active ? "true" : "false",
        href: here ? link(here) : null, style: { transform: `translateY(${index * row}px)`, height: `${row}px` } }, draw(here, index));
      rows.push(line);
    }
    replace(inside, rows);
    node.setAttribute("aria-activedescendant", `line-${active}`);
  };
  const open = () => {
    if (opening && item(active)) (opening = false), (location.hash = link(item(active)));
  };
  const move = (to) => {
    opening = false;
    active = Math.max(0, Math.min(total - 1, to));
    const top = active * row;
    if (top < node.scrollTop) node.scrollTop = top;
    else if (top + row > node.scrollTop + node.clientHeight) node.scrollTop = top + row - node.clientHeight;
    paint();
  };
  node.addEventListener("scroll", () => requestAnimationFrame(paint), { passive: true });
  node.addEventListener("keydown", (event) => {
    const seen = Math.max(1, Math.floor(node.clientHeight / row) - 1);
    const way = { ArrowDown: 1, j: 1, ArrowUp: -1, k: -1, PageDown: seen, PageUp: -seen, Home: -total, End: total }[event.key];
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (way) event.preventDefault(), move(active + way);
    else if (event.key === "Enter") event.preventDefault(), (opening = true), open();
  });
  const observer = new ResizeObserver(() => total && paint());
  observer.observe(node);
  return {
    node,
    /** Begins anew: other filters, another order. */
    async again() {
      [pages, asked, active] = [new Map(), new Set(), 0];
      turn += 1;
      opening = false;
      node.scrollTop = 0;
      await fetchPage(0);
      paint();
      return total;
    },
    close: () => observer.disconnect(),
  };
}
