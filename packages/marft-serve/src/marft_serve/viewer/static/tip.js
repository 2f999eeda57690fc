// The one tooltip: beside the pointer or an element, inside the window.

import { replace } from "./dom.js";

const node = () => document.getElementById("tip");

/** @param at a pointer event, or an element to stand under */
export function showTip(at, ...children) {
  const tip = node();
  replace(tip, ...children);
  tip.hidden = false;
  const box = at instanceof Element ? at.getBoundingClientRect() : { left: at.clientX + 14, bottom: at.clientY + 14, top: at.clientY - 6 };
  const { offsetWidth: width, offsetHeight: height } = tip;
  const left = Math.max(8, Math.min(box.left, innerWidth - width - 8));
  const below = box.bottom + 6 + height < innerHeight;
  tip.style.left = `${left}px`;
  tip.style.top = `${below ? box.bottom + 6 : Math.max(8, box.top - height - 8)}px`;
}

export function hideTip() {
  node().hidden = true;
}
