// Scales of an axis, and ticks at numbers that people count in.

import { number } from "./format.js";

/** Round ticks inside [low, high]: 1, 2 or 5 times a power of ten apart. */
export function linear(low, high, about = 5) {
  const rough = (high - low) / Math.max(1, about);
  if (!(rough > 0)) return [low];
  const power = 10 ** Math.floor(Math.log10(rough));
  const unit = [1, 2, 5, 10].find((factor) => factor * power >= rough) * power;
  const ticks = [];
  for (let n = Math.ceil(low / unit - 1e-9); n * unit <= high + unit * 1e-9; n += 1) ticks.push(Number((n * unit).toPrecision(12)));
  return ticks;
}

/** Powers of ten inside [low, high]; with few of them, 2 and 5 times as well. */
export function logarithmic(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const factors = last - first <= 2 ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil((last - first) / 6));
  const ticks = [];
  for (let power = first; power <= last; power += every) {
    for (const factor of factors) {
      const tick = factor * 10 ** power;
      if (tick >= low * 0.999 && tick <= high * 1.001) ticks.push(tick);
    }
  }
  return ticks.length > 1 ? ticks : [low, high];
}

/** Maps [low, high] to [from, to]; with `log` by logarithm. */
export function scale([low, high], [from, to], log = false) {
  const place = log ? Math.log : (value) => value;
  const [a, b] = [place(low), place(high)];
  const width = b - a || 1;
  const map = (value) => from + ((place(value) - a) / width) * (to - from);
  map.invert = (pixel) => {
    const value = a + ((pixel - from) / (to - from)) * width;
    return log ? Math.exp(value) : value;
  };
  return map;
}

/** The text of a tick: a share in percent, all else short. */
export function label(value, format = "") {
  if (format.endsWith("%")) return `${number(value * 100)} %`;
  if (Math.abs(value) >= 1e4) return `${number(value / (Math.abs(value) >= 1e6 ? 1e6 : 1e3))}${Math.abs(value) >= 1e6 ? "M" : "k"}`;
  return number(value);
}
