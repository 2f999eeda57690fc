// What the server is asked. Answers are JSON; errors come as sentences.

export class Refused extends Error {
  /** @param status of the answer; 0 where there was none */
  constructor(sentence, status = 0) {
    super(sentence);
    this.status = status;
  }
}

/** GET /api/<path>; `signal` takes a question back. Raises Refused with the server's sentence. */
export async function get(path, query = {}, signal) {
  const given = Object.entries(query).filter(([, value]) => value !== "" && value !== null && value !== undefined);
  const search = new URLSearchParams(given).toString();
  const address = `/api/${path.map((part) => encodeURIComponent(part)).join("/")}${search ? `?${search}` : ""}`;
  let response;
  try {
    response = await fetch(address, { signal, headers: { Accept: "application/json" } });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused("The server does not answer. Is `marft view` still running?");
  }
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  const unknown = response.status === 401 || response.status === 403;
  const hint = "Open the address with ?token=… that `marft view` printed.";
  throw new Refused(body.error ? `${body.error}${unknown ? ` ${hint}` : ""}` : unknown ? hint : `Status ${response.status}`, response.status);
}

/** A run as it is now, by its name. Raises Refused where it is gone. */
export async function runNow(id) {
  const found = (await get(["runs"])).runs.find((one) => one.id === id);
  if (!found) throw new Refused(`There is no run “${id}” here any more`, 404);
  return found;
}

let metrics;

/** The catalogue, asked for once: a function from a metric's name to its entry. */
export async function catalogue() {
  metrics ??= get(["catalogue"]).then((answer) => answer.metrics, (error) => {
    metrics = undefined;
    throw error;
  });
  const entries = await metrics;
  const stars = Object.entries(entries).filter(([name]) => name.includes("*")).map(([name, entry]) => [star(name), entry]);
  return (name) => {
    const base = split(name).base;
    return entries[base] || stars.find(([pattern]) => pattern.test(base))?.[1] || { label: base, unit: "", format: ".3g", meaning: "" };
  };
}

const star = (name) => new RegExp(`^${name.split("*").map((part) => part.replace(/[.+?^${}()|[\]\\]/g, "\\$&")).join(".+")}$`);

/** agents/actor/kl → {scope: "agents", whose: "actor", base: "kl"}; a team's metric has scope "". */
export function split(name) {
  const match = /^(agents|policies)\/([^/]+)\/(.+)$/.exec(name);
  return match ? { scope: match[1], whose: match[2], base: match[3] } : { scope: "", whose: "", base: name };
}
