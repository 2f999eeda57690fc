// Chooses one of the recorded steps: a slider over them, and buttons for the one before and after.

import { h, later } from "./dom.js";

export function stepper(steps, chosen, act, label = "Step") {
  let at = Math.max(0, steps.indexOf(chosen));
  const told = later(120, () => act(steps[at]));
  const output = h("output", {}, String(steps[at] ?? "–"));
  const slider = h("input", { type: "range", min: 0, max: Math.max(0, steps.length - 1), step: 1, "aria-label": label, oninput: () => move(Number(slider.value)) });
  const move = (to) => {
    at = Math.max(0, Math.min(steps.length - 1, to));
    slider.value = at;
    slider.setAttribute("aria-valuetext", `step ${steps[at]}`);
    output.textContent = String(steps[at] ?? "–");
    told();
  };
  slider.value = at;
  slider.setAttribute("aria-valuetext", `step ${steps[at]}`);
  return h("div", { class: "stepper" }, h("span", { class: "label" }, label),
    h("button", { type: "button", class: "icon", "aria-label": "Step before", onclick: () => move(at - 1) }, "‹"), slider,
    h("button", { type: "button", class: "icon", "aria-label": "Step after", onclick: () => move(at + 1) }, "›"), output);
}
