// The tokens of one action, coloured by one of their values; the pointer or the arrow keys tell all values of one.

import { SCALES, gradient, range, shade } from "./colour.js";
import { h, replace, s } from "./dom.js";
import { formatted } from "./format.js";
import { hideTip, showTip } from "./tip.js";

export const KINDS = Object.keys(SCALES);
const FORMATS = { advantage: "+.3f", log_prob: ".3f", entropy: ".3f", value: ".3f", difference: "+.5f" };
const MARKS = { tool: "a tool's answer: read, never trained", teammate: "a teammate wrote it", forced: "the grammar left nothing else" };

/** One scale for all actions of an episode, so that colours can be compared; told when it widens. */
export function sharedScale() {
  const kept = new Map(KINDS.map((kind) => [kind, []]));
  const views = new Set();
  return {
    add(answer, view) {
      for (const kind of KINDS) kept.get(kind).push(...(answer[kind] || []).filter((value) => value !== null));
      views.add(view);
    },
    span: (kind) => range(kind, kept.get(kind)),
    paint: (kind) => views.forEach((view) => view.paint(kind)),
  };
}

/** @param answer of /tokens; @returns {node, paint(kind)} */
export function tokenView(answer, scale) {
  const spans = answer.tokens.map((text, n) => {
    const mark = answer.marks[n];
    return h("span", { class: mark === "sampled" ? "token" : `token ${mark}`, "data-n": n }, shown(text));
  });
  const note = h("p", { class: "muted", hidden: true });
  const text = h("div", { class: "tokens", tabindex: "0", role: "group", "aria-label": "Tokens: left and right arrows tell their values" }, spans);
  const strip = h("div", {});
  let at = -1;
  const tell = (n, event) => {
    at = n;
    showTip(event || spans[n], about(answer, n));
    text.querySelector(".at")?.classList.remove("at");
    spans[n].classList.add("at");
  };
  text.addEventListener("pointerover", (event) => event.target.dataset.n && tell(Number(event.target.dataset.n), spans[event.target.dataset.n]));
  text.addEventListener("pointerleave", hideTip);
  text.addEventListener("blur", hideTip);
  text.addEventListener("keydown", (event) => {
    const way = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!way || !spans.length) return;
    event.preventDefault();
    tell(Math.max(0, Math.min(spans.length - 1, at + way)));
  });
  return {
    node: h("div", {}, text, strip, note),
    paint(kind) {
      const values = answer[kind];
      note.hidden = Boolean(values);
      note.textContent = values ? "" : `${SCALES[kind].label} of single tokens was not recorded in this step.`;
      const span = scale.span(kind);
      spans.forEach((node, n) => node.style.setProperty("background-color", shade(kind, values?.[n], span)));
      replace(strip, values ? valueStrip(values, span, kind) : []);
    },
  };
}

const shown = (text) => text.replace(/\n/g, "⏎\n").replace(/\t/g, "⇥\t") || "␀";

function about(answer, n) {
  return h("div", { class: "readings" }, h("b", { class: "code" }, JSON.stringify(answer.tokens[n])), h("span", { class: "muted" }, `${n + 1} of ${answer.tokens.length}`),
    MARKS[answer.marks[n]] ? [h("span", {}, answer.marks[n]), h("span", { class: "muted" }, MARKS[answer.marks[n]])] : null,
    KINDS.map((kind) => [h("span", {}, SCALES[kind].label), h("span", { class: "number" }, formatted(answer[kind]?.[n], FORMATS[kind]))]));
}

function valueStrip(values, span, kind) {
  const known = values.filter((value) => value !== null);
  if (known.length < 2 || !span) return [];
  const [low, high] = [Math.min(0, ...known), Math.max(0, ...known)];
  const y = (value) => 26 - (24 * (value - low)) / (high - low || 1);
  return s("svg", { class: "token-strip", style: { "max-width": `${values.length * 16}px` }, viewBox: `0 0 ${values.length} 28`, preserveAspectRatio: "none", role: "img", "aria-label": `${SCALES[kind].label} along the action` },
    values.map((value, n) => (value === null ? null : s("rect", { x: n + 0.08, width: 0.84, y: Math.min(y(0), y(value)), height: Math.max(0.8, Math.abs(y(value) - y(0))), class: SCALES[kind].kind === "diverging" ? (value < 0 ? "minus" : "plus") : "seq" }))));
}

/** What the colours mean. */
export function legend(kind, scale) {
  if (!kind) return [];
  const { label, low, high, help } = SCALES[kind];
  const span = scale.span(kind);
  return h("div", { class: "scale", title: help }, h("span", {}, low, span ? ` ${formatted(span[0], FORMATS[kind])}` : ""), h("i", { style: { background: gradient(kind) }, role: "img", "aria-label": `${label}: from ${low} to ${high}` }),
    h("span", {}, span ? `${formatted(span[1], FORMATS[kind])} ` : "", high), h("span", { class: "muted" }, help));
}
