// One action as a turn of the conversation: what was said and called, what it saw, what it was worth, how to go on from it.

import { get } from "./api.js";
import { h, replace } from "./dom.js";
import { count, formatted, percent, seconds } from "./format.js";
import { copier, failed, loading, tag } from "./parts.js";

const LONG = 1800;

/**
 * @param context {address: of the episode in the API, colours, choose(id)}
 * @returns {node, body, prompt(): toggles it, said(): shows the text, coloured(tokens): shows tokens in its place}
 */
export function turn(action, context) {
  const colour = context.colours(action.agent);
  const body = h("div", { class: "said" }, words(action));
  const prompt = h("div", { class: "prompt", hidden: true });
  const ask = h("button", { type: "button", "aria-expanded": "false", onclick: () => toggle() }, `Prompt (${count(action.prompt_tokens)} tokens)`);
  const toggle = async () => {
    prompt.hidden = !prompt.hidden;
    ask.setAttribute("aria-expanded", String(!prompt.hidden));
    if (prompt.hidden || prompt.childElementCount) return;
    replace(prompt, loading("Loading the prompt"));
    try {
      replace(prompt, promptOf(await get([...context.address, "prompt"], { action: action.id }), context));
    } catch (error) {
      replace(prompt, failed(error));
    }
  };
  const node = h("article", { class: "turn", tabindex: "-1", id: `turn-${action.id}`, style: { "--agent": colour }, "aria-label": `${action.agent}, action ${action.id}`,
    onclick: (event) => !event.target.closest("button, a, code, summary, .prompt") && context.choose(action.id, false) },
    h("header", {}, h("b", { class: "who" }, action.agent), action.policy !== action.agent ? h("span", { class: "muted" }, action.policy) : null, h("span", { class: "code muted" }, action.id),
      h("span", { class: "facts" }, facts(action))),
    sees(action, context), action.restarted ? h("p", { class: "muted" }, `Rendered anew: ${action.restarted}`) : null,
    body, action.choice ? choices(action.choice) : null,
    h("footer", {}, ask, action.play_again ? [h("code", { class: "command", title: "Play again from here: everything after this action is sampled anew" }, action.play_again), copier(action.play_again, "Copy play again")] : null),
    prompt);
  return { node, body, prompt: toggle, said: () => replace(body, words(action)), coloured: (tokens) => replace(body, tokens, action.calls.map(call)) };
}

function words(action) {
  const [thought, rest] = [action.text.slice(0, action.thought), action.text.slice(action.thought)];
  const before = (action.before || []).map((text, round) => [long(text), action.calls.filter((one) => one.round === round).map(call)]);
  const late = action.calls.filter((one) => !action.before?.length || one.round >= action.before.length).map(call);
  return [before, thought && h("details", { class: "thought" }, h("summary", {}, `Thought, ${count(thought.length)} characters that nobody is told`), h("p", {}, thought)), long(rest || "(nothing)"), late];
}

function long(text) {
  if (text.length <= LONG) return h("p", {}, text);
  const node = h("p", {}, text.slice(0, LONG));
  const more = h("button", { type: "button", class: "plain", onclick: () => (replace(node, text), more.remove()) }, `Show all ${count(text.length)} characters`);
  return [node, more];
}

function facts(action) {
  const fact = (label, value, help, kind = "") => h("span", { title: help, class: `fact ${kind}` }, h("small", {}, label), h("span", { class: "number" }, value));
  const known = (value) => value !== null && value !== undefined;
  return [
    known(action.advantage) ? fact("advantage", formatted(action.advantage, "+.2f"), "mean over its decisions", action.advantage < 0 ? "minus" : "plus") : null,
    known(action.value) ? fact("value", formatted(action.value, ".2f"), "what the critic expected") : null,
    known(action.log_prob) ? fact("log-prob", formatted(action.log_prob, ".2f"), "mean over its decisions, at the sampling temperature") : null,
    known(action.entropy) ? fact("entropy", formatted(action.entropy, ".2f"), "mean, in nats") : null,
    known(action.difference) ? fact("learner − engine", formatted(action.difference, "+.1e"), "mean difference of log-probs") : null,
    known(action.agent_reward) ? fact("own reward", formatted(action.agent_reward, "+.2f"), "of this agent alone, in the environment step") : null,
    fact("tokens", count(action.tokens), "that it sampled"), action.ended > action.started ? fact("time", seconds(action.ended - action.started), `from ${seconds(action.started)} on`) : null,
    action.finish === "length" ? tag("cut off", "warn") : null, action.truncated_tokens ? tag(`${count(action.truncated_tokens)} prompt tokens cut`, "warn") : null,
  ];
}

function sees(action, context) {
  const link = (id) => h("button", { type: "button", class: "saw", style: { "--agent": context.colours(id.split("/")[1] || id) }, onclick: () => context.choose(id), onpointerenter: () => context.glance(id), onpointerleave: () => context.glance(null) }, id);
  if (!action.sees.length && !action.continues.length) return null;
  return h("p", { class: "sees" }, action.sees.length ? [h("small", {}, "saw"), action.sees.map(link)] : null, action.continues.length ? [h("small", {}, "remembers"), action.continues.map(link)] : null);
}

function choices(choice) {
  return h("ol", { class: "options" }, choice.options.map((option, n) => {
    const chance = Math.exp(choice.log_probs[n] ?? -Infinity);
    return h("li", { class: n === choice.chosen ? "chosen" : "" }, h("i", { style: { width: `${100 * chance}%` } }), h("span", {}, option), h("span", { class: "number" }, percent(chance)));
  }));
}

function call(one) {
  return h("details", { class: `call ${one.error ? "wrong" : ""}`, open: one.error || one.output.length < 300 },
    h("summary", {}, h("span", { class: "glyph", "aria-hidden": "true" }, "⚒"), h("b", { class: "code" }, one.name || "unreadable call"), one.error ? tag("failed", "bad") : null, h("span", { class: "muted number" }, seconds(one.seconds))),
    h("pre", {}, pretty(one.arguments)), h("pre", { class: "output" }, one.output || "(empty)"));
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text; // as the agent wrote it
  }
}

function promptOf(answer, context) {
  const [parts, known] = [[], [...answer.spans].sort((a, b) => a.start - b.start)];
  let at = 0;
  for (const span of known) {
    if (span.start < at) continue;
    parts.push(answer.text.slice(at, span.start));
    const seen = span.of.startsWith("action ") ? span.of.slice(7) : "";
    parts.push(h("span", { class: `of ${seen ? "action" : span.of.split(" ")[0]}`, title: span.of, style: seen ? { "--agent": context.colours(seen.split("/")[1]) } : null }, answer.text.slice(span.start, span.end)));
    at = span.end;
  }
  parts.push(answer.text.slice(at));
  const kinds = [...new Set(known.map((span) => (span.of.startsWith("action ") ? "seen actions" : span.of)))];
  return [h("div", { class: "prompt-head" }, h("span", { class: "muted" }, kinds.length ? `Marked: ${kinds.join(", ")}` : `${count(answer.tokens)} tokens`), copier(answer.text, "Copy prompt")), h("pre", {}, parts)];
}
