"""Teammates behind an OpenAI-compatible endpoint: what is sent, what is recorded, what it costs, and training beside
them."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from marft.agents.game import Attempt
from marft.cli.live import play_live
from marft.common.errors import EpisodeFailedError
from marft.common.reasoning import StopString
from marft.common.token_data import TokenSource
from marft.common.types import Option, Prompt, SamplingParams, Tool
from marft.common.usage import Usage
from marft.config import load_recipe, parse_recipe
from marft.evaluation.episode_metrics import remote_usage_metrics
from marft.evaluation.evaluate import evaluate
from marft.evaluation.report import write_report
from marft.inference.router import Router
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.endpoint import KEY, Reply, error, says, serving
from tests.helpers import recipe
from tests.marft.agents.test_live import Scripted
from tests.nights import BY_NIGHT
from tests.remotely import KEY_OF_ACTION, ask, asking, play_many, remote_game, team, teammates


def test_an_answer_is_recorded_in_the_readers_tokens() -> None:
    with serving(lambda body, n: says("five, end", usage=(11, 4))) as server, asking(
        server, price_per_million_prompt_tokens=2.0, price_per_million_completion_tokens=10.0, extra_body={"top_a": 1}, omit=("top_p",),
    ) as endpoint:  # fmt: skip
        done = ask(
            teammates(endpoint),
            sampling=SamplingParams(
                temperature=0.5, max_new_tokens=9, stop=(",", StopString("</call>", in_reasoning=False))
            ),
        )
    assert (done.text, done.finish, done.versions, done.calls) == ("five", "stop", (0, 0), ())
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
            asyncio.run(engine.sample("a", prompt, SamplingParams(), key))
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


def test_a_remote_agent_uses_its_tools_and_goes_on(tmp_path: Path) -> None:
    def answer(body: dict[str, Any], n: int) -> Reply:
        if body["messages"][-1]["role"] == "tool":
            return says("It is " + body["messages"][-1]["content"])
        return says("Well.", calls=[{"name": "add", "arguments": '{"a": 2, "b": 3}'}], finish="tool_calls")

    with serving(answer) as server:
        run = team(
            server, tmp_path, "--tools.sums", "{ name = 'function', call = 'tests.tools:add' }",
            "--agents.reasoner.tools", "['sums']",
        )  # fmt: skip
        with LocalRolloutRunner(run) as rollouts:
            (episode,) = rollouts.play([Attempt(run.environment.tasks("train")[0], "s", record_critic_states=True)])  # type: ignore[attr-defined]
    action = episode.actions[0]
    assert (action.text, action.intermediate_texts, action.calls[0].output) == ("It is 5", ("Well.",), "5")
    assert action.usage == Usage(14, 6)
    assert [int(mark) for mark in np.unique(action.marks)] == [TokenSource.SAMPLED, TokenSource.TOOL]
    sent = server.requests[1]["messages"]
    assert [message["role"] for message in sent[-3:]] == ["user", "assistant", "tool"]
    assert sent[-2]["tool_calls"][0]["function"] == {"name": "add", "arguments": '{"a": 2, "b": 3}'}
    assert sent[-2]["tool_calls"][0]["id"] == sent[-1]["tool_call_id"]


def options(*texts: str) -> list[Option]:
    return [Option(np.frombuffer(text.encode(), np.uint8).astype(np.int32)) for text in texts]


def choose(engine: Router) -> Any:
    prompt = Prompt(np.arange(3, dtype=np.int32), chat=({"role": "user", "content": "Who?"},))
    return asyncio.run(engine.choose("a", prompt, options("left", "right"), SamplingParams(), KEY_OF_ACTION))


def test_a_choice_is_asked_for_until_it_is_an_option() -> None:
    with serving(lambda body, n: says(["I say right", " right\n"][n])) as server, asking(server) as endpoint:
        choice, versions = choose(teammates(endpoint))
    assert (choice.chosen, versions, choice.log_probs.tolist()) == (1, (0, 0), [0.0, 0.0])
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
    assert endpoint.total_usage == Usage(21, 9)  # it has been paid


def test_usage_of_an_action_that_was_replayed_counts_once() -> None:
    with serving(lambda body, n: says("x")) as server, asking(server) as endpoint:
        episode = play_many(remote_game(endpoint), 1)[0]
    metrics = remote_usage_metrics([episode, replace(episode, stream="fork")], ["a"])
    assert (metrics["agents/a/remote_prompt_tokens"], metrics["agents/a/remote_completion_tokens"]) == (7.0, 3.0)
    assert remote_usage_metrics([], ["a"]) == {}


@pytest.mark.slow
@BY_NIGHT
def test_a_remote_teammate_and_one_that_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TEACHER_KEY", KEY)

    def answer(body: dict[str, Any], n: int) -> Reply:
        return error(500) if n == 1 else says("I think it is 42.", usage=(100, 10))

    with serving(answer) as server:
        prices = {"price_per_million_prompt_tokens": 1.0, "price_per_million_completion_tokens": 2.0}
        run = team(server, tmp_path, api_key_variable="TEACHER_KEY", **prices)
        folder = RunFolder.create(run)
        assert KEY not in folder.config_path.read_text()
        assert folder.settings() == run
        assert train(run, folder).step == 2
        again = load_recipe(folder.config_path, ["--training.steps", "3"])
        assert train(again, folder, resume=True).step == 3
        write_report(folder)
        with LocalRolloutRunner(run) as rollouts:
            rollouts.publish(0)
            evaluation, _ = evaluate(rollouts, "base", "greedy", run.environment.tasks("test")[:2])  # type: ignore[attr-defined]
        screen = Scripted()
        shown = play_live(run, None, "base", 0, [], screen)
    episodes = read_episodes(folder.episodes / "step_000001.parquet")
    assert sorted(episode.status for episode in episodes) == ["failed", "terminated", "terminated", "terminated"]
    reasoner, actor = next(episode for episode in episodes if episode.is_scored).actions
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
            "teacher": {"path": "gpt-x", "context_length": 300, "endpoint": {"url": server.url}},
            "reader": {"path": "tiny"},
        }
        table["policies"] = {"solver": {"model": "teacher", "train": "frozen"}}
        run = parse_recipe(table)
        with LocalRolloutRunner(run) as rollouts:
            assert rollouts.models.policies["solver"].context == 300
            evaluation, _ = evaluate(rollouts, "base", "sampled", run.environment.tasks("test")[:3])  # type: ignore[attr-defined]
    assert (evaluation.tasks, evaluation.failed) == (3, 0)


def test_a_turn_that_is_remote_cannot_begin_with_anothers_text(tmp_path: Path) -> None:
    with serving(lambda body, n: says("x")) as server:
        run = team(server, tmp_path, "--team", "{ organization = 'tests.plugins:Continued' }")
        table = run.model_dump(mode="json", exclude_none=True)
        table["agents"] = table["agents"][::-1]
        with LocalRolloutRunner(parse_recipe(table)) as rollouts:
            rollouts.publish(0)
            episode = rollouts.play([Attempt(run.environment.tasks("test")[0], "s")])[0]  # type: ignore[attr-defined]
    assert episode.status == "failed"
    assert "it is remote" in episode.error
    assert "pass it on as a message" in episode.error
    assert server.requests == []
