// How values are spread: bars over edges, with 0 marked.

import { s } from "./dom.js";
import { count, formatted } from "./format.js";
import { linear, scale } from "./ticks.js";

export function histogram({ edges, counts }, { colour, words, span, width = 320, height = 120 }) {
  const svg = s("svg", { class: "histogram", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": words });
  const most = Math.max(1, ...counts);
  const [low, high] = span || [edges[0], edges.at(-1)];
  const x = scale([low, high], [8, width - 8]);
  const y = scale([0, most], [height - 20, 8]);
  svg.append(s("line", { class: "base", x1: 8, x2: width - 8, y1: height - 20, y2: height - 20 }));
  counts.forEach((many, n) => {
    if (!many) return;
    svg.append(s("rect", { x: x(edges[n]) + 0.5, y: y(many), width: Math.max(1, x(edges[n + 1]) - x(edges[n]) - 1), height: height - 20 - y(many), fill: colour, rx: 1.5 },
      s("title", {}, `${formatted(edges[n], ".2f")} to ${formatted(edges[n + 1], ".2f")}: ${count(many)}`)));
  });
  if (low < 0 && high > 0) svg.append(s("line", { class: "zero", x1: x(0), x2: x(0), y1: 4, y2: height - 20 }));
  for (const tick of linear(low, high, 5)) svg.append(s("text", { x: x(tick), y: height - 6, "text-anchor": "middle" }, formatted(tick, ".3g")));
  return svg;
}
