// Small pieces that every page is made of: tags, tiles, states of loading, a button that copies.

import { h, replace } from "./dom.js";

export const tag = (text, kind = "") => h("span", { class: `tag ${kind}` }, text);

export const dot = (colour) => h("i", { class: "dot", style: { background: colour }, "aria-hidden": "true" });

export const tile = (label, value, more = "", help = "") =>
  h("div", { class: "tile", title: help }, h("span", { class: "label" }, label), h("strong", {}, value), more && h("span", { class: "more" }, more));

export const panel = (title, props, ...children) =>
  h("section", { class: `panel ${props.class || ""}`, "aria-label": title },
    h("header", {}, h("h2", {}, title), props.beside || null),
    children);

/** Nothing to see, and what one can do about it. */
export const empty = (title, ...words) => h("div", { class: "empty" }, h("strong", {}, title), h("p", {}, words));

export const loading = (words = "Loading") => h("div", { class: "loading", role: "status" }, h("i", {}), h("i", {}), h("i", {}), h("span", { class: "unseen" }, words));

export function failed(error, again) {
  return h("div", { class: "empty bad", role: "alert" }, h("strong", {}, "That did not work"), h("p", {}, error.message),
    again && h("button", { type: "button", onclick: again }, "Try again"));
}

/** Fills a node with what `make` resolves to, shows loading until then and the reason where it fails. */
export async function into(node, make) {
  replace(node, loading());
  try {
    replace(node, await make());
  } catch (error) {
    if (error.name !== "AbortError") replace(node, failed(error, () => into(node, make)));
  }
}

/** A button that copies a text, and says that it did. */
export function copier(text, label = "Copy") {
  const button = h("button", { type: "button", class: "copy", onclick: async () => {
    const done = await copied(text);
    button.textContent = done ? "Copied" : "Select and copy";
    setTimeout(() => (button.textContent = label), 1500);
  } }, label);
  return button;
}

async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    return false; // no permission: the command stands beside the button to be selected
  }
}

/** Radio buttons in a row. */
export function choice(label, options, chosen, act) {
  const name = `choice-${label.replace(/\W/g, "")}`;
  return h("fieldset", { class: "choice" }, h("legend", { class: "unseen" }, label),
    options.map(([value, text, help]) => h("label", { title: help },
      h("input", { type: "radio", name, value, checked: value === chosen, onchange: () => act(value) }), h("span", {}, text))));
}

/** A labelled select. */
export function select(label, options, chosen, act) {
  const node = h("select", { onchange: () => act(node.value) }, options.map(([value, text]) => h("option", { value }, text)));
  node.value = chosen;
  return h("label", { class: "field" }, h("span", {}, label), node);
}
