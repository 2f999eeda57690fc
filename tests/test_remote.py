"""Teammates behind an OpenAI-compatible endpoint: real sockets, the real client, a server that misbehaves."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from marft.cli.live import play_live
from marft.config import RunSettings, load_recipe, parse_recipe
from marft.config.endpoint import EndpointSettings
from marft.config.plugins import Plugin
from marft.endpoints.answers import read_answer
from marft.endpoints.client import Endpoint
from marft.endpoints.pace import Pace
from marft.engines.remote import RemotePolicy, RemoteTeammates
from marft.evaluation.evaluate import evaluate
from marft.evaluation.metrics import remote_metrics
from marft.evaluation.replay import replay
from marft.evaluation.report import write_report
from marft.game.agents import Agents
from marft.game.game import Attempt, EpisodeFailedError, Game
from marft.game.play import play
from marft.game.rollout import play_all
from marft.runs.episodes import read_episodes
from marft.runs.folder import RunFolder
from marft.stage import Stage
from marft.training import train
from marft.types import ActionKey, Episode, JointAction, Observation, Option, Prompt, Sampling, Task, Tool, Usage
from tests.endpoint import KEY, Reply, Server, error, says, serving
from tests.fakes import FakeEngine, FakeRenderer, Script, ends, game
from tests.helpers import recipe, shown_in_docs
from tests.test_live import Scripted

KEY_OF_ACTION = ActionKey("s", "t", 0, 0, "a", 0)


class ChatRenderer(FakeRenderer):
    """The fake renderer, which passes on the messages that it rendered too."""

    def render(self, *arguments: Any, **options: Any) -> Prompt:
        prompt = super().render(*arguments, **options)
        return replace(prompt, chat=({"role": "user", "content": bytes(prompt.ids.astype(np.uint8)).decode()},))


@contextmanager
def asking(server: Server, **changes: Any) -> Iterator[Endpoint]:
    endpoint = Endpoint("teacher", EndpointSettings(url=server.url, **{"retries": 0, **changes}), "gpt-x")
    try:
        yield endpoint
    finally:
        endpoint.close()


def teammates(endpoint: Endpoint, *policies: str, inner: FakeEngine | None = None) -> RemoteTeammates:
    remote = {policy: RemotePolicy(endpoint, 4000) for policy in policies or ("a",)}
    return RemoteTeammates(
        inner or FakeEngine(), ChatRenderer(), remote, seed=3, version=lambda: 5,
        decode=lambda _, ids: bytes(ids.astype(np.uint8)).decode(),
    )  # fmt: skip


def remote_game(endpoint: Endpoint, *roles: str, remote: Sequence[str] = (), **changes: Any) -> Game:
    made = game(Script([ends()]), *roles, **changes)
    return replace(made, engine=teammates(endpoint, *remote), renderer=ChatRenderer())  # type: ignore[arg-type]


def play_many(g: Game, count: int) -> list[Episode]:
    return asyncio.run(play_all(g, [Attempt(Task(f"t{n}", f"task {n}"), "s") for n in range(count)], 64))


def ask(engine: RemoteTeammates, prompt: Prompt | None = None, sampling: Sampling | None = None) -> Any:
    chat = ({"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3 ="})
    return asyncio.run(
        engine.sample(
            "a", prompt or Prompt(np.arange(3, dtype=np.int32), chat=chat), sampling or Sampling(), KEY_OF_ACTION
        )
    )


def team(server: Server, output: Path, *overrides: str, **endpoint: Any) -> RunSettings:
    """A remote reasoner and an actor that trains, with a critic."""
    table = recipe("tiny", output, environment={"name": "tests.plugins:Flaky", "alternates": True})
    table["models"]["teacher"] = {"path": "gpt-x", "endpoint": {"url": server.url, "retries": 0, **endpoint}}
    table["policies"]["reasoner"] = {"model": "teacher", "train": "frozen"}
    return parse_recipe(table, overrides)


def test_an_answer_is_recorded_in_the_readers_tokens() -> None:
    with serving(lambda body, n: says("five, end", usage=(11, 4))) as server, asking(
        server, price_per_million_prompt_tokens=2.0, price_per_million_completion_tokens=10.0, options={"top_a": 1}, omit=("top_p",),
    ) as endpoint:  # fmt: skip
        done = ask(teammates(endpoint), sampling=Sampling(temperature=0.5, max_new_tokens=9, stop=(",",)))
    assert (done.text, done.finish, done.version, done.calls) == ("five", "stop", 5, None)
    assert bytes(done.tokens.astype(np.uint8)).decode() == "five"
    assert done.log_probs.tolist() == [0.0] * 4
    assert done.usage == Usage(11, 4, cost=(11 * 2.0 + 4 * 10.0) / 1e6, retries=0)
    sent = server.requests[0]
    assert 0 <= sent.pop("seed") < 2**31
    assert sent == {
        "model": "gpt-x", "temperature": 0.5, "max_tokens": 9, "stop": [","], "top_a": 1,
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 3 ="}],
    }  # fmt: skip


def test_the_seed_is_that_of_the_action() -> None:
    with serving(lambda body, n: says("five")) as server, asking(server) as endpoint:
        engine, prompt = (
            teammates(endpoint),
            Prompt(np.arange(3, dtype=np.int32), chat=({"role": "user", "content": "?"},)),
        )
        for key in (KEY_OF_ACTION, KEY_OF_ACTION, KEY_OF_ACTION._replace(sample=1)):
            asyncio.run(engine.sample("a", prompt, Sampling(), key))
    first, again, other = [request["seed"] for request in server.requests]
    assert first == again != other


def test_an_answer_that_was_cut_short_has_no_end() -> None:
    texts = ["fiv", ""]
    with serving(lambda body, n: says(texts[n], finish="length")) as server, asking(server) as endpoint:
        engine = teammates(endpoint)
        cut, empty = ask(engine), ask(engine)
    assert (cut.finish, len(cut.tokens), empty.finish, empty.text) == ("length", 2, "length", "")


def test_what_is_not_remote_goes_to_the_other_engine() -> None:
    with serving(lambda body, n: says("from afar")) as server, asking(server) as endpoint:
        episode = play_many(remote_game(endpoint, "a", "b", remote=["a"]), 1)[0]
    assert [action.text for action in episode.actions] == ["from afar", "b says 0"]
    assert episode.actions[1].usage is None
    assert episode.actions[0].usage is not None


def test_tools_are_offered_and_calls_of_them_read() -> None:
    add = Tool("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}})
    prompt = Prompt(np.arange(3, dtype=np.int32), chat=({"role": "user", "content": "?"},), tools=(add,))
    calls = [
        {"name": "add", "arguments": '{"a": 1}'},
        {"name": "add", "arguments": {"a": 2}},
        {"name": "gone", "arguments": None},
    ]
    with serving(lambda body, n: says(None, calls=calls, finish="tool_calls")) as server, asking(server) as endpoint:
        done = ask(teammates(endpoint), prompt)
        with pytest.raises(EpisodeFailedError, match="offered no tools"):
            ask(teammates(endpoint))
    assert [(call.name, call.arguments) for call in done.calls] == [
        ("add", '{"a": 1}'),
        ("add", '{"a": 2}'),
        ("gone", "{}"),
    ]
    assert (done.text, done.finish) == ("", "stop")
    function = {"name": "add", "description": "Add two numbers.", "parameters": dict(add.parameters)}
    assert server.requests[0]["tools"] == [{"type": "function", "function": function}]


def options(*texts: str) -> list[Option]:
    return [Option(np.frombuffer(text.encode(), np.uint8).astype(np.int32)) for text in texts]


def choose(engine: RemoteTeammates) -> Any:
    prompt = Prompt(np.arange(3, dtype=np.int32), chat=({"role": "user", "content": "Who?"},))
    return asyncio.run(engine.choose("a", prompt, options("left", "right"), Sampling(), KEY_OF_ACTION))


def test_a_choice_is_asked_for_until_it_is_an_option() -> None:
    with serving(lambda body, n: says(["I say right", " right\n"][n])) as server, asking(server) as endpoint:
        choice, version = choose(teammates(endpoint))
    assert (choice.chosen, version, choice.log_probs.tolist()) == (1, 5, [0.0, 0.0])
    assert choice.usage == Usage(14, 6)
    first, second = server.requests
    assert first["messages"][0]["content"].startswith("Who?\n\nChoose one")
    assert first["messages"][0]["content"].endswith("\nleft\nright")
    assert first["seed"] != second["seed"]


def test_a_choice_of_nothing_offered_fails_the_episode() -> None:
    with (
        serving(lambda body, n: says("both")) as server,
        asking(server) as endpoint,
        pytest.raises(EpisodeFailedError, match="none of them in 3 answers; its last one was 'both'"),
    ):
        choose(teammates(endpoint))
    assert len(server.requests) == 3


def test_a_busy_server_is_asked_again_after_the_time_it_names() -> None:
    replies = [error(429, **{"Retry-After": "0.3"}), error(503, **{"Retry-After": "0.2"}), says("at last")]
    with serving(lambda body, n: replies[n]) as server, asking(server, retries=2) as endpoint:
        done = ask(teammates(endpoint))
    assert (done.text, done.usage.retries) == ("at last", 2)
    waits = np.diff(server.times)
    assert 0.3 <= waits[0] < 0.6
    assert 0.2 <= waits[1] < 0.5


def test_what_fails_in_the_end_loses_its_own_episodes_alone() -> None:
    def answer(body: dict[str, Any], n: int) -> Reply:
        return error(500, "out of order") if "task 1" in body["messages"][0]["content"] else says("fine")

    with serving(answer) as server, asking(server, retries=1) as endpoint:
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


@pytest.mark.parametrize("how", ["hang", "drip"])
def test_a_server_that_never_ends_times_out_its_own_episodes_alone(how: str) -> None:
    def answer(body: dict[str, Any], n: int) -> Reply:
        return Reply(**{how: True}) if "task 0" in body["messages"][0]["content"] else says("fine")

    with serving(answer) as server, asking(server, timeout_seconds=0.8, retries=3) as endpoint:
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
        read_answer(body, EndpointSettings(url="http://x/v1"))


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


def test_no_malformed_body_is_a_crash_or_a_reward() -> None:
    """At least 1,000 of them, through sockets, client, engine and game."""
    body, tried = [b""], [0]
    with serving(lambda _, n: Reply(body[0])) as server, asking(server) as endpoint:
        g = remote_game(endpoint)

        async def all_of_them() -> None:
            loop = asyncio.get_running_loop()

            @settings(max_examples=1100, deadline=None, suppress_health_check=list(HealthCheck))
            @given(bodies())
            def check(given_body: bytes) -> None:
                body[0], tried[0] = given_body, tried[0] + 1
                episode = asyncio.run_coroutine_threadsafe(play(g, Attempt(Task("t", "?"), "s")), loop).result()
                assert (episode.status, episode.total_reward) == ("failed", 0.0), (given_body, episode)
                assert "no answer that can be read" in episode.error

            await asyncio.to_thread(check)

        asyncio.run(all_of_them())
    assert tried[0] >= 1000


class Together(Plugin):
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
        pace = Pace(60.0, lambda: now[0], sleep)
        for _ in range(4):
            await pace.turn()

    asyncio.run(several())
    assert woken == pytest.approx([101.0, 102.0, 103.0])


def test_requests_and_retries_keep_to_the_limit_of_a_minute() -> None:
    replies = {0: error(429, **{"Retry-After": "0.01"})}
    with (
        serving(lambda body, n: replies.get(n, says("x"))) as server,
        asking(server, requests_per_minute=600.0, retries=1) as endpoint,
    ):
        assert all(episode.scored for episode in play_many(remote_game(endpoint), 4))
    assert len(server.times) == 5
    assert np.diff(sorted(server.times)).min() > 0.08


def test_the_server_never_sees_more_at_once_than_allowed() -> None:
    def answer(body: dict[str, Any], n: int) -> Reply:
        time.sleep(0.05)
        return says("x")

    with serving(answer) as server, asking(server, concurrent_requests=3) as endpoint:
        assert all(episode.scored for episode in play_many(remote_game(endpoint), 12))
    assert server.most_at_once == 3


def test_a_remote_teammate_and_one_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", KEY)

    def answer(body: dict[str, Any], n: int) -> Reply:
        return error(500) if n == 1 else says("I think it is 42.", usage=(100, 10))

    with serving(answer) as server:
        prices = {"price_per_million_prompt_tokens": 1.0, "price_per_million_completion_tokens": 2.0}
        run = team(server, tmp_path, api_key_variable="TEACHER_KEY", **prices)
        folder = RunFolder.create(run)
        assert KEY not in folder.config.read_text()
        assert folder.settings() == run
        assert train(run, folder).step == 2
        again = load_recipe(folder.config, ["--training.steps", "3"])
        assert train(again, folder, resume=True).step == 3
        write_report(folder)
        replay(folder, [run.algorithm], 1)
        with Stage(run) as stage:
            stage.engine.publish(0)
            evaluation, _ = evaluate(stage, "base", "greedy", run.environment.tasks("test")[:2])  # type: ignore[attr-defined]
        screen = Scripted()
        shown = play_live(run, None, "base", 0, [], screen)
    episodes = read_episodes(folder.episodes / "step_000001.parquet")
    assert sorted(episode.status for episode in episodes) == ["failed", "terminated", "terminated", "terminated"]
    reasoner, actor = next(episode for episode in episodes if episode.scored).actions
    assert (reasoner.text, reasoner.usage) == ("I think it is 42.", Usage(100, 10, 0.00012))
    assert not reasoner.log_probs.any()
    assert actor.usage is None
    assert actor.message_tokens[0] > 0
    first = folder.read_metrics()[0]
    assert (first["remote_prompt_tokens"], first["remote_completion_tokens"], first["remote_retries"]) == (300, 30, 0)
    assert first["agents/reasoner/remote_cost"] == pytest.approx(0.00036)
    assert "agents/actor/remote_cost" not in first
    assert math.isfinite(first["critic/loss"])
    for row in folder.read_metrics():
        assert row["agents/actor/log_prob_difference_max"] < 1e-4
        assert row["skipped_updates"] == 0
        assert not any(name.startswith("agents/reasoner/kl") for name in row)  # nothing of it is trained
    policies = folder.checkpoints / "step_000003" / "policies"
    assert [path.name for path in policies.iterdir()] == ["actor"]
    tensors = load_file(policies / "actor" / "adapter_model.safetensors")
    assert any(tensor.abs().max() > 0 for name, tensor in tensors.items() if "lora_B" in name)
    assert evaluation.agents["reasoner"]["remote_cost"] == pytest.approx(0.00024)
    assert [request["temperature"] for request in server.requests[-3:]] == [0.0, 0.0, 1.0]
    assert shown.status == "terminated"
    assert "I think it is 42." in screen.out.getvalue()
    everything = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert KEY.encode() not in everything


def test_a_team_that_is_remote_alone_can_be_evaluated(tmp_path: Path) -> None:
    with serving(lambda body, n: says(r"\boxed{1}")) as server:
        table = recipe(
            "tiny", tmp_path, agents=[{"role": "solver", "policy": "solver", "sampling": {"max_new_tokens": 8}}]
        )
        table["models"] = {
            "teacher": {"path": "gpt-x", "context": 300, "endpoint": {"url": server.url}},
            "reader": {"path": "tiny"},
        }
        table["policies"] = {"solver": {"model": "teacher", "train": "frozen"}}
        run = parse_recipe(table)
        with Stage(run) as stage:
            assert stage.models.policies["solver"].context == 300
            evaluation, _ = evaluate(stage, "base", "sampled", run.environment.tasks("test")[:3])  # type: ignore[attr-defined]
    assert (evaluation.tasks, evaluation.failed) == (3, 0)


def test_a_turn_that_is_remote_cannot_begin_with_anothers_text(tmp_path: Path) -> None:
    with serving(lambda body, n: says("x")) as server:
        run = team(server, tmp_path, "--team", "{ organization = 'tests.plugins:Continued' }")
        table = run.model_dump(mode="json", exclude_none=True)
        table["agents"] = table["agents"][::-1]
        with Stage(parse_recipe(table)) as stage:
            stage.engine.publish(0)
            episode = stage.play([Attempt(run.environment.tasks("test")[0], "s")])[0]  # type: ignore[attr-defined]
    assert episode.status == "failed"
    assert "it is remote" in episode.error
    assert "pass it on as a message" in episode.error
    assert server.requests == []


def test_usage_of_an_action_that_was_replayed_counts_once() -> None:
    with serving(lambda body, n: says("x")) as server, asking(server) as endpoint:
        episode = play_many(remote_game(endpoint), 1)[0]
    metrics = remote_metrics([episode, replace(episode, stream="fork")], ["a"])
    assert (metrics["remote_prompt_tokens"], metrics["agents/a/remote_completion_tokens"]) == (7.0, 3.0)
    assert remote_metrics([], ["a"]) == {}


ENDPOINT = {"url": "http://127.0.0.1:1/v1"}


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"policies.reasoner.train": "lora"}, "set train = 'frozen'"),
        ({"policies.reasoner.adapter": "x"}, "takes no adapter"),
        ({"models.teacher.endpoint.reader": "bas"}, "did you mean 'base'?"),
        ({"models.teacher.endpoint.reader": "teacher"}, "is remote too"),
        ({"models.teacher.dtype": "float32"}, "a local model alone"),
        ({"models.teacher.endpoint.url": "localhost:8000"}, "must look like https://host/v1"),
        ({"models.teacher.endpoint.url": "http://me:secret@host/v1"}, "must look like https://host/v1"),
        ({"models.teacher.endpoint.retrys": "3"}, "did you mean 'retries'?"),
        ({"algorithm.teammate_text.coefficient": "0.5"}, "an endpoint (policies.reasoner) does not say"),
    ],
)
def test_recipes_that_cannot_work_are_refused(changes: dict[str, str], complaint: str) -> None:
    table = recipe()
    table["models"]["teacher"] = {"path": "gpt-x", "endpoint": ENDPOINT}
    table["policies"]["reasoner"] = {"model": "teacher", "train": "frozen"}
    words = [word for key, value in changes.items() for word in (f"--{key}", value)]
    with pytest.raises(ValueError, match="recipe:") as caught:
        parse_recipe(table, words)
    assert complaint in str(caught.value)


def test_the_example_of_the_docs_can_be_read() -> None:
    run = parse_recipe({"name": "shown", **shown_in_docs("docs/recipes.md", "[models.teacher]")})
    assert run.trained_policies == ("actor",)
    assert set(type(run.models["teacher"].endpoint).model_fields) == run.models["teacher"].endpoint.model_fields_set  # type: ignore[union-attr]


def test_a_reader_is_needed_and_counts_as_used() -> None:
    table = recipe()
    table["models"] = {"teacher": {"path": "gpt-x", "endpoint": ENDPOINT}}
    table["policies"] = {name: {"model": "teacher", "train": "frozen"} for name in ("reasoner", "actor")}
    with pytest.raises(ValueError, match=r"add one: \[models.reader\] path = 'tiny'"):
        parse_recipe(table)
    table["models"]["reader"] = {"path": "tiny"}
    parse_recipe(table)
    table["models"]["other"] = {"path": "tiny"}
    with pytest.raises(ValueError, match=r"models.other: no policy uses it"):
        parse_recipe(table)


def test_a_key_that_is_not_there_and_a_context_that_nobody_reads_are_refused(tmp_path: Path) -> None:
    with serving(lambda body, n: says("x")) as server:
        with pytest.raises(ValueError, match=r"export NOT_THERE="):
            Stage(team(server, tmp_path, api_key_variable="NOT_THERE"))
        with pytest.raises(ValueError, match=r"models.teacher.context: 99999 tokens are more than"):
            Stage(team(server, tmp_path, "--models.teacher.context", "99999"))


def test_without_the_package_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft.endpoints.client.find_spec", lambda name: None)
    with pytest.raises(ValueError, match=r"pip install 'marft\[remote\]'"):
        Endpoint("teacher", EndpointSettings(**ENDPOINT), "gpt-x")


def test_nothing_imports_the_client_before_it_is_needed() -> None:
    code = "import marft.engines.remote, marft.rewards.judge, marft.cli.main, sys; assert 'openai' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
