"""How the page asks the server: again and again, less often where nobody answers, and what it says of each answer."""

from __future__ import annotations

import pytest

from tests.browser.conftest import Seen
from tests.browser.test_modules import run

pytestmark = pytest.mark.slow

POLL = """(async () => {
  const node = document.createElement("span"), waits = [], real = window.setTimeout, said = [];
  m.startLive(node);
  window.setTimeout = (act, wait) => waits.push([act, wait]);
  const outcomes = [...given];
  const stop = m.poll(async () => {
    const one = outcomes.shift();
    if (typeof one === "boolean") return one;
    throw Object.assign(new Error("why"), one === "taken back" ? { name: "AbortError" } : { status: one });
  }, 2);
  while (outcomes.length) {
    const [act] = waits.pop() || [];
    if (!act) break;
    await act();
    said.push([node.dataset.state, node.textContent, node.title, waits.at(-1)?.[1]]);
  }
  window.setTimeout = real;
  stop();
  return [...said, [node.dataset.state, node.textContent]];
})()"""


def test_it_asks_less_and_less_often_until_it_is_answered_and_says_why(seen: Seen) -> None:
    lost, again = "lost", ", trying again"
    said = run(seen, "live", POLL, [True, 500, 0, 404, 401, True, 500, False, "taken back", True])
    assert [tuple(one[:3]) for one in said[:8]] == [
        ("live", "Live", ""), (lost, f"No answer to this{again}", "why"), (lost, f"No connection{again}", "why"),
        (lost, "It is gone, looking again", "why"), (lost, "Let in no more", "why"), ("live", "Live", ""),
        (lost, f"No answer to this{again}", "why"), ("still", "Up to date", ""),
    ]  # fmt: skip
    assert [one[3] for one in said[:8]] == [2000, 4000, 8000, 16_000, 30_000, 2000, 4000, 10_000]
    assert said[8][:2] == ["still", "Up to date"]
    assert len(said) == 10, "what was taken back is asked no more"
    assert said[-1] == [None, ""]


HIDE = """(async () => {
  const node = document.getElementById("live"), hide = (hidden) => {
    Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
    document.dispatchEvent(new Event("visibilitychange"));
  };
  let asked = 0;
  const settle = () => new Promise((done) => setTimeout(done, 30));
  const stop = m.poll(async () => { asked += 1; return true; }, 60);
  await settle();
  hide(true);
  const said = [[asked, node.textContent]];
  hide(false);
  await settle();
  said.push([asked, node.textContent]);
  stop();
  hide(true);
  hide(false);
  await settle();
  return [...said, [asked, node.textContent]];
})()"""


def test_it_rests_while_nobody_looks_and_asks_at_once_when_somebody_does(seen: Seen) -> None:
    assert run(seen, "live", HIDE, None) == [[1, "Paused"], [2, "Live"], [2, ""]]


GET = """(async () => {
  const real = window.fetch, said = [];
  for (const [status, body] of given) {
    window.fetch = async () => { if (!status) throw new TypeError("no"); return new Response(body, { status }); };
    said.push(await m.get(["runs"]).then((answer) => answer, (error) => [error.message, error.status]));
  }
  window.fetch = async () => new Response('{"runs": [{"id": "a", "name": "b"}]}');
  said.push(await m.runNow("a"), await m.runNow("b").catch((error) => [error.message, error.status]));
  window.fetch = real;
  return said;
})()"""


def test_what_the_server_refuses_is_said_in_its_words_or_else_in_ours(seen: Seen) -> None:
    hint = "Open the address with ?token=… that `marft view` printed."
    given = [[200, '{"a": 1}'], [404, '{"error": "There is none."}'], [401, '{"error": "No token."}'], [403, ""], [500, "<b>"],
             [0, ""]]  # fmt: skip
    assert run(seen, "api", GET, given) == [
        {"a": 1}, ["There is none.", 404], [f"No token. {hint}", 401], [hint, 403], ["Status 500", 500],
        ["The server does not answer. Is `marft view` still running?", 0], {"id": "a", "name": "b"},
        ["There is no run “b” here any more", 404],
    ]  # fmt: skip


CATALOGUE = """(async () => {
  const real = window.fetch, said = [];
  let asked = 0;
  window.fetch = async () => {
    asked += 1;
    const metrics = { kl: { label: "KL" }, "rewards/*": { label: "term" } };
    return asked === 1 ? new Response("", { status: 500 }) : new Response(JSON.stringify({ metrics }));
  };
  await m.catalogue().catch((error) => said.push(error.status));
  const of = await m.catalogue();
  await m.catalogue();
  window.fetch = real;
  return [...said, asked, ...["agents/a/kl", "rewards/x", "rewards", "agents/a/rewards/x", "mine"].map((name) => of(name).label)];
})()"""


def test_the_catalogue_is_asked_for_once_and_again_where_that_failed(seen: Seen) -> None:
    assert run(seen, "api", CATALOGUE, None) == [500, 2, "KL", "term", "rewards", "term", "mine"]
