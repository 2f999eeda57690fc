"""Endpoints that are busy, slow, broken or malicious: real sockets, the real client, a server that misbehaves."""

from __future__ import annotations

import asyncio
import json
import time
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from marft.agents.game import Attempt
from marft.agents.play import play
from marft.common.errors import EpisodeFailedError
from marft.common.types import JointAction, Observation, Task
from marft.common.usage import Usage
from marft.config.interfaces.organization import Agents, Organization
from marft.inference.endpoints.limits import RateLimit
from marft.inference.endpoints.responses import parse_body, parse_response
from tests.endpoint import KEY, Reply, error, says, serving
from tests.fakes import Script, ends
from tests.nights import BY_NIGHT, NIGHT
from tests.remotely import ask, asking, play_many, remote_game, teammates


def test_a_busy_server_is_asked_again_after_the_time_it_names() -> None:
    replies = [error(429, **{"Retry-After": "0.3"}), error(503, **{"Retry-After": "0.2"}), says("at last")]
    with serving(lambda body, n: replies[n]) as server, asking(server, max_retries=2) as endpoint:
        done = ask(teammates(endpoint))
    assert (done.text, done.usage.retries) == ("at last", 2)
    waits = np.diff(server.times)
    assert 0.3 <= waits[0] < 0.6
    assert 0.2 <= waits[1] < 0.5


def test_what_fails_in_the_end_loses_its_own_episodes_alone() -> None:
    def answer(body: dict[str, Any], n: int) -> Reply:
        return error(500, "out of order") if "task 1" in body["messages"][0]["content"] else says("fine")

    with serving(answer) as server, asking(server, max_retries=1) as endpoint:
        script = replace_reset(Script([ends()]))
        episodes = play_many(replace(remote_game(endpoint), environment=script), 3)
    assert [episode.status for episode in episodes] == ["terminated", "failed", "terminated"]
    assert "'teacher' (http://127.0.0.1" in episodes[1].error
    assert "500, after 1 retries" in episodes[1].error
    assert "out of order" in episodes[1].error
    assert len(server.requests) == 4


def replace_reset(script: Script) -> Any:
    """The script, with each task's own prompt as its first observation."""

    class Named:
        def start(self, task: Task, seed: int) -> Any:
            session = script.start(task, seed)

            async def reset() -> Observation:
                return Observation(task.prompt)

            session.reset = reset  # type: ignore[method-assign]
            return session

    return Named()


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize("how", ["hang", "drip"])
def test_a_server_that_never_ends_times_out_its_own_episodes_alone(how: str) -> None:
    def answer(body: dict[str, Any], n: int) -> Reply:
        return Reply(**{how: True}) if "task 0" in body["messages"][0]["content"] else says("fine")

    with serving(answer) as server, asking(server, timeout_seconds=0.8, max_retries=3) as endpoint:
        began = time.monotonic()
        episodes = play_many(replace(remote_game(endpoint), environment=replace_reset(Script([ends()]))), 3)
        took = time.monotonic() - began
    assert [episode.status for episode in episodes] == ["timed_out", "terminated", "terminated"]
    assert "no whole answer in 0.8 s" in episodes[0].error
    assert took < 3.0


@pytest.mark.parametrize(
    ("status", "advice"),
    [
        (401, r"check the key in \$TEACHER_KEY"), (403, r"check the key in \$TEACHER_KEY"),
        (404, "a model called 'gpt-x'"), (400, "left out with omit"),
    ],
)  # fmt: skip
def test_errors_say_what_to_check_and_never_the_key(status: int, advice: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", KEY)
    with (
        serving(lambda body, n: error(status, f"bad key {KEY}")) as server,
        asking(server, api_key_variable="TEACHER_KEY") as endpoint,
        pytest.raises(EpisodeFailedError, match=advice) as caught,
    ):
        ask(teammates(endpoint))
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert "bad key ***" in str(caught.value)
    assert KEY not in str(caught.value)
    assert len(server.requests) == 1


def test_a_server_that_is_not_there_fails_the_episode() -> None:
    with serving(lambda body, n: says("x")) as server:
        pass
    with asking(server) as endpoint, pytest.raises(EpisodeFailedError, match="cannot be reached") as caught:
        ask(teammates(endpoint))
    assert caught.value.status == "failed"


@pytest.mark.parametrize(
    "body",
    [
        b"", b"<html>", b"{", b"[]", b"null", b'{"choices": []}', b'{"choices": null}', b'{"choices": [{}]}',
        b'{"choices": [{"message": {"content": null}}]}', b'{"choices": [{"message": {"content": 5}}]}',
        b'{"choices": [{"message": {"content": null, "tool_calls": []}}]}',
        b'{"choices": [{"message": {"content": null, "tool_calls": [{"function": {"name": ""}}]}}]}',
        b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": -1}}',
        b'{"choices": [{"message": {"content": "x"}}], "usage": {"prompt_tokens": 1e400}}',
        b'{"choices": [{"message": {"content": "\\ud800"}}]}', b'{"choices": [{"message": {"content": "\xff"}}]}',
        b"[" * 100_000, b'{"choices":' * 10_000,
    ],
)  # fmt: skip
def test_what_is_no_answer_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_response(parse_body(body), Usage())


WHOLE = json.loads(says("x").body)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(st.sampled_from(["choices", "message", "content", "usage", "tool_calls", "function", "name"]), inner, max_size=4),
    max_leaves=8,
)  # fmt: skip


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    """Answers that are none: noise, other JSON, whole answers with a part replaced or cut off."""
    kind = draw(st.sampled_from(["bytes", "json", "replaced", "cut"]))
    if kind == "bytes":
        return draw(st.binary(max_size=60))
    if kind == "json":
        return json.dumps(draw(JSON)).encode()
    if kind == "cut":
        text = json.dumps(WHOLE).encode()
        return text[: draw(st.integers(0, len(text) - 1))]
    table = json.loads(json.dumps(WHOLE))
    odd = draw(JSON.filter(lambda value: not isinstance(value, str)))
    choice = table["choices"][0]
    place, name = draw(st.sampled_from([(table, "choices"), (choice, "message"), (choice["message"], "content")]))
    place[name] = odd
    return json.dumps(table).encode()


def is_whole(body: bytes) -> bool:
    """Whether a body that was made by replacing parts happens to be an answer after all."""
    try:
        message = json.loads(body)["choices"][0]["message"]
    except (ValueError, TypeError, LookupError):
        return False
    return isinstance(message, dict) and (isinstance(message.get("content"), str) or bool(message.get("tool_calls")))


@pytest.mark.slow
def test_no_malformed_body_is_a_crash_or_a_reward() -> None:
    """At least 1,000 of them at night, through sockets, client, engine and game."""
    body, tried = [b""], [0]
    with serving(lambda _, n: Reply(body[0])) as server, asking(server) as endpoint:
        g = remote_game(endpoint)

        async def all_of_them() -> None:
            loop = asyncio.get_running_loop()

            @settings(max_examples=1100 if NIGHT else 120, deadline=None, suppress_health_check=list(HealthCheck))
            @given(bodies())
            def check(given_body: bytes) -> None:
                assume(not is_whole(given_body))
                body[0], tried[0] = given_body, tried[0] + 1
                episode = asyncio.run_coroutine_threadsafe(play(g, Attempt(Task("t", "?"), "s")), loop).result()
                assert (episode.status, episode.total_reward) == ("failed", 0.0), (given_body, episode)
                assert "no answer that can be read" in episode.error

            await asyncio.to_thread(check)

        asyncio.run(all_of_them())
    assert tried[0] >= (1000 if NIGHT else 100)


class Together(Organization):
    """All at once, in one of several ways of asyncio."""

    how: str = "gather"

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        if self.how == "gather":
            await asyncio.gather(*(seat(observation) for seat in agents))
        elif self.how == "group":
            async with asyncio.TaskGroup() as group:
                for seat in agents:
                    group.create_task(seat(observation))  # type: ignore[arg-type]
        else:
            await asyncio.gather(*(seat(observation) for seat in agents), return_exceptions=True)
        return JointAction()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["gather", "group", "swallow"])
def test_a_failure_keeps_its_cause_however_an_organization_waits(how: str) -> None:
    def answer(body: dict[str, Any], n: int) -> Reply:
        return Reply(hang=True) if "You are b" in body["messages"][0]["content"] else says("fine")

    with serving(answer) as server, asking(server, timeout_seconds=0.5) as endpoint:
        g = remote_game(endpoint, "a", "b", "c", remote=["a", "b", "c"], organization=Together(how=how))
        episode = play_many(g, 1)[0]
    assert (episode.status, episode.transitions) == ("timed_out", ())
    assert "no whole answer" in episode.error


def test_turns_are_spaced_without_drift() -> None:
    now, woken = [100.0], list[float]()

    async def sleep(seconds: float) -> None:
        asked = now[0] + seconds
        now[0] = asked + 0.3  # wakes late
        woken.append(asked)

    async def several() -> None:
        rate = RateLimit(60.0, lambda: now[0], sleep)
        for _ in range(4):
            await rate.wait()

    asyncio.run(several())
    assert woken == pytest.approx([101.0, 102.0, 103.0])


def test_requests_and_retries_keep_to_the_limit_of_a_minute() -> None:
    replies = {0: error(429, **{"Retry-After": "0.01"})}
    with (
        serving(lambda body, n: replies.get(n, says("x"))) as server,
        asking(server, requests_per_minute=600.0, max_retries=1) as endpoint,
    ):
        assert all(episode.is_scored for episode in play_many(remote_game(endpoint), 4))
    assert len(server.times) == 5
    gaps = np.diff(sorted(server.times))  # as the server hears them: one that is heard late is nearer to the next
    assert gaps.mean() > 0.08
    assert gaps.min() > 0.03


def test_the_server_never_sees_more_at_once_than_allowed() -> None:
    def answer(body: dict[str, Any], n: int) -> Reply:
        time.sleep(0.05)
        return says("x")

    with serving(answer) as server, asking(server, max_concurrent_requests=3) as endpoint:
        assert all(episode.is_scored for episode in play_many(remote_game(endpoint), 12))
    assert server.most_at_once == 3
