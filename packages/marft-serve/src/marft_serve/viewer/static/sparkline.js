// A curve as small as a word.

import { s } from "./dom.js";

export function sparkline(values, { width = 96, height = 24, colour = "var(--accent)", words = "" } = {}) {
  const known = values.filter((value) => value !== null && value !== undefined);
  const svg = s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": words });
  if (known.length < 2) return svg;
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const x = (n) => 2 + (n / (known.length - 1)) * (width - 6);
  const y = (value) => height - 3 - ((value - low) / (high - low || 1)) * (height - 6);
  const path = known.map((value, n) => `${n ? "L" : "M"}${x(n).toFixed(1)} ${y(value).toFixed(1)}`).join("");
  svg.append(s("path", { d: `${path}L${x(known.length - 1)} ${height}L2 ${height}Z`, fill: colour, class: "under" }),
    s("path", { d: path, stroke: colour, class: "line" }),
    s("circle", { cx: x(known.length - 1), cy: y(known.at(-1)), r: 2.2, fill: colour }));
  return svg;
}
