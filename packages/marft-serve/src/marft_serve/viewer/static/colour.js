// Colours that tell agents, runs and values apart for everybody; the palettes stand in viewer.css, light and dark.

const MANY = 8;

/** The colour of the n-th series, as a CSS value. */
export const series = (index) => `var(--c${((index % MANY) + MANY) % MANY})`;

/** Dashes for a second property of a line (its agent, where colour is its run). */
export const dash = (index) => ["", "6 3", "2 3", "8 3 2 3", "1 3", "10 4", "4 2", "12 3 3 3"][index % MANY];

/** Roles to colours in the order of the team; a stranger gets the next. */
export function palette(roles) {
  const known = [...roles];
  return (role) => {
    if (!known.includes(role)) known.push(role);
    return series(known.indexOf(role));
  };
}

export const SCALES = {
  advantage: { label: "Advantage", kind: "diverging", low: "worse than expected", high: "better", help: "What the update was told of this token: above 0 it is made likelier." },
  log_prob: { label: "Log-prob", kind: "sequential", low: "sure (0)", high: "surprising", help: "Log-probability at the sampling temperature; a coloured token was unlikely." },
  entropy: { label: "Entropy", kind: "sequential", low: "decided", high: "open", help: "How spread the distribution was that the token was sampled from, in nats." },
  value: { label: "Value", kind: "sequential", low: "low", high: "high", help: "What the critic expected from here on." },
  difference: { label: "Learner − engine", kind: "diverging", low: "engine likelier", high: "learner likelier", help: "The learner's log-prob before the update minus the one it was sampled with; far from 0 the two disagree." },
};

/** The range that the colours of some values span: symmetric around 0 where the scale is diverging. */
export function range(kind, values) {
  const known = values.filter((value) => value !== null && Number.isFinite(value));
  if (!known.length) return null;
  if (SCALES[kind].kind === "diverging") {
    const most = quantile(known.map(Math.abs), 0.98) || 1e-9;
    return [-most, most];
  }
  if (kind === "log_prob") return [0, Math.min(-1e-9, quantile(known, 0.02))];
  const low = kind === "value" ? quantile(known, 0.02) : 0;
  return [low, Math.max(low + 1e-9, quantile(known, 0.98))];
}

function quantile(values, share) {
  const sorted = [...values].sort((a, b) => a - b);
  return sorted[Math.round(share * (sorted.length - 1))];
}

/** A background for one value; "" where there is none. */
export function shade(kind, value, span) {
  if (value === null || value === undefined || !span) return "";
  if (SCALES[kind].kind === "diverging") {
    const part = Math.min(1, Math.abs(value) / span[1]);
    return laid(value >= 0 ? "--pos" : "--neg", part);
  }
  const part = Math.max(0, Math.min(1, (value - span[0]) / (span[1] - span[0])));
  return laid("--seq", part);
}

/** A colour as thick as `part` of the thickest that text can still be read on, which each theme has its own of. */
const laid = (name, part) => `rgb(var(${name}) / calc(var(--deep) * ${part.toFixed(3)}))`;

/** The same for a shape: nothing shines through. `most` is the largest distance from 0. */
export function tint(value, most) {
  const part = most ? Math.min(1, Math.abs(value) / most) : 0;
  return `color-mix(in srgb, rgb(var(${value >= 0 ? "--pos" : "--neg"})) ${(55 * part).toFixed(1)}%, var(--surface))`;
}

/** A series' colour as words can be read on it, which are light in the light theme and dark in the dark one. */
export const underWords = (colour) => `color-mix(in srgb, ${colour} 78%, var(--text))`;

/** The CSS gradient of a scale's legend. */
export function gradient(kind) {
  if (SCALES[kind].kind === "diverging") {
    return `linear-gradient(90deg, ${laid("--neg", 1)}, transparent 50%, ${laid("--pos", 1)})`;
  }
  return `linear-gradient(90deg, transparent, ${laid("--seq", 1)})`;
}
