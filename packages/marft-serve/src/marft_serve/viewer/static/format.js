// Numbers with units, as the catalogue's Python formats say.

const MINUS = "−";

/** A number in a Python format such as ".2f", "+.3f", ".0%", ".1e", ".3g", ",.0f". */
export function formatted(value, format = ".3g") {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const [, sign, comma, digits, kind] = /^([+]?)(,?)(?:\.(\d+))?([fge%d]?)$/.exec(format) || ["", "", "", "3", "g"];
  const places = digits === undefined ? 0 : Number(digits);
  let text;
  if (kind === "%") text = `${(value * 100).toFixed(places)}\u202f%`;
  else if (kind === "e") text = value.toExponential(places);
  else if (kind === "f" || kind === "d") text = grouped(value.toFixed(places), comma || Math.abs(value) >= 1e5);
  else text = general(value, places || 3);
  const zero = /^-?[0.]+(\u202f%)?$/.test(text); // once it is rounded
  return (sign && value > 0 && !zero ? "+" : "") + text.replace(/^-/, zero ? "" : MINUS);
}

function grouped(text, wanted) {
  if (!wanted) return text;
  const [whole, rest] = text.split(".");
  return whole.replace(/\B(?=(\d{3})+$)/g, "\u202f") + (rest ? `.${rest}` : "");
}

function general(value, digits) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(digits - 1).replace(/\.?0+e/, "e");
  const text = value.toPrecision(digits);
  return (text.includes("e") ? String(Math.round(value)) : text).replace(/(\.\d*?)0+$/, "$1").replace(/\.$/, "");
}

export const number = (value, digits = 3) => formatted(value, `.${digits}g`);
export const signed = (value, places = 2) => formatted(value, `+.${places}f`);
export const percent = (value) => formatted(value, ".0%");
export const count = (value) => (value === null || value === undefined ? "–" : grouped(String(Math.round(value)), true));

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 0.001) return value ? `${Math.round(value * 1e6)} µs` : "0 s";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 120) return `${value.toFixed(value < 10 ? 2 : 1)} s`;
  if (value < 7200) return `${Math.round(value / 60)} min`;
  return value < 172800 ? `${(value / 3600).toFixed(1)} h` : `${Math.round(value / 86400)} d`;
}

export function ago(time) {
  const past = Math.max(0, Date.now() / 1000 - time);
  return past < 10 ? "just now" : `${seconds(past).replace(/\.\d+/, "")} ago`;
}

export function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let power = 0;
  while (value >= 1000 && power < 4) [value, power] = [value / 1000, power + 1];
  return `${power ? value.toFixed(value < 10 ? 1 : 0) : value} ${units[power]}`;
}

export const plural = (many, word, words = `${word}s`) => `${count(many)} ${many === 1 ? word : words}`;
