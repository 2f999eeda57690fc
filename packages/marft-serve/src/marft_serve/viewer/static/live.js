// Polling that rests while nobody looks, and says what it does.

import { replace, h } from "./dom.js";

let indicator;
let current; // the poll of the page that is shown

export function startLive(node) {
  indicator = node;
  document.addEventListener("visibilitychange", () => current?.wake());
}

const LOST = { 401: "Let in no more", 404: "It is gone, looking again" }; // by the status of the answer

function tell(state, text, why = "") {
  indicator.dataset.state = state;
  indicator.title = why;
  replace(indicator, h("i", { "aria-hidden": "true" }), text);
}

/**
 * Asks again and again, while the page is seen.
 * @param act async; says whether anything may still change: false ends it
 * @param every seconds between one answer and the next question
 * @returns a function that ends it
 */
export function poll(act, every = 2) {
  let timer = 0;
  let ended = false;
  let failures = 0;
  const turn = async () => {
    clearTimeout(timer);
    if (ended || document.hidden) return;
    try {
      const more = await act();
      if (ended) return;
      failures = 0;
      if (more === false) tell("still", "Up to date");
      else tell("live", "Live");
      timer = setTimeout(turn, (more === false ? 5 : 1) * every * 1000);
    } catch (error) {
      if (ended || error.name === "AbortError") return;
      failures += 1;
      tell("lost", LOST[error.status] || (error.status ? "No answer to this, trying again" : "No connection, trying again"), error.message);
      timer = setTimeout(turn, Math.min(30, every * 2 ** failures) * 1000);
    }
  };
  current = {
    wake: () => {
      if (ended) return;
      if (document.hidden) tell("still", "Paused");
      else turn();
    },
  };
  timer = setTimeout(turn, 0);
  return () => {
    ended = true;
    clearTimeout(timer);
    current = undefined;
    replace(indicator);
    delete indicator.dataset.state;
  };
}
