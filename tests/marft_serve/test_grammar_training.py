"""Teams whose agents are held to grammars learn, go on where they stopped, and are asked for forms by any client."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("llguidance", reason="needs grammars: pip install 'marft[grammar]'")

from marft.common.callbacks import Callback
from marft.common.token_data import TokenSource
from marft.common.types import Action, Episode, Task
from marft.config import RunSettings, parse_recipe
from marft.config.python_objects import ObjectPlaceholder
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from marft_serve.gateway.client import Client
from tests import templates
from tests.helpers import recipe
from tests.nights import BY_NIGHT
from tests.runs import contents

SCHEMA = {
    "type": "object", "properties": {"answer": {"type": "integer", "minimum": 0, "maximum": 999}},
    "required": ["answer"], "additionalProperties": False,
}  # fmt: skip
ADD: dict[str, Any] = {
    "name": "add", "description": "Add.", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"],
        "additionalProperties": False,
    },
}  # fmt: skip
USER = {"role": "user", "content": "1 + 2?"}


def held(output: Path, level: str = "token", **changes: Any) -> RunSettings:
    table = recipe("tiny", output, **changes)
    reasoner, actor = table["agents"]
    reasoner["sampling"] = {"max_new_tokens": 12, "regex": "plan: [a-z]{1,5}"}
    actor["sampling"] = {"max_new_tokens": 24, "json_schema": SCHEMA}
    table["algorithm"] |= {"level": level, "entropy_coefficient": 0.01, "kl": {"coefficient": 0.01}}
    return parse_recipe(table)


def recorded(folder: RunFolder) -> list[Episode]:
    return [episode for path in sorted(folder.episodes.iterdir()) for episode in read_episodes(path)]


class StopAfter(Callback):
    def __init__(self) -> None:
        self.now = 0

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        self.now = step

    def wants_stop(self) -> bool:
        return self.now >= 1


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.parametrize("level", ["action", "token"])
def test_a_team_that_is_held_learns_and_goes_on_where_it_stopped(level: str, tmp_path: Path) -> None:
    straight, stopped = (RunFolder.create(held(tmp_path / name, level)) for name in ("straight", "stopped"))
    train(held(tmp_path / "straight", level), straight)
    train(held(tmp_path / "stopped", level), stopped, callbacks=[StopAfter()])
    train(held(tmp_path / "stopped", level), stopped, resume=True)
    for part in ("episodes", "checkpoints/step_000002/policies"):
        one, other = (contents(folder.path / part) for folder in (straight, stopped))
        assert one.keys() == other.keys()
        same = [name for name in one if name.endswith(".safetensors") or "episodes" in part]
        assert same
        if part != "episodes":
            assert all(one[name] == other[name] for name in same)
    for row in straight.read_metrics():
        assert row["log_prob_difference_max"] < 2e-5
        assert row["entropy"] > 0.0
    mine, theirs = ([a for e in recorded(folder) for a in e.actions] for folder in (straight, stopped))
    for action, other in zip(mine, theirs, strict=True):
        assert action.masks
        assert other.masks
        assert (action.masks.table, action.masks.at.tolist()) == (other.masks.table, other.masks.at.tolist())
        assert np.array_equal(action.log_probs, other.log_probs)
        check(action)


def check(action: Action) -> None:
    """An action's record says what it says."""
    assert action.finish == "stop", action.text
    assert action.agent == "reasoner" or set(json.loads(action.text)) == {"answer"}
    assert len(action.log_probs) == action.num_decisions == int(action.sampled_mask.sum())
    assert action.masks
    assert set(action.masks.at.tolist()) == set(np.flatnonzero(action.sampled_mask).tolist())
    assert (action.marks[:3] == TokenSource.FORCED).any()
    for place, number in zip(action.masks.at, action.masks.which, strict=True):
        token = int(action.tokens[place])
        assert action.masks.table[number][token // 8] >> token % 8 & 1


def asked(solve: Any, tmp_path: Path) -> list[Episode]:
    pytest.importorskip("uvicorn", reason="needs the gateway: pip install 'marft[gateway]'")
    from openai import OpenAI

    table = recipe("tiny", tmp_path, rollout={"tasks_per_step": 1, "samples_per_task": 2}, training={"steps": 1})
    table["agents"][1]["sampling"] = table["agents"][0]["sampling"] = {"max_new_tokens": 64}
    template = tmp_path / "calls.jinja"
    template.write_text(templates.HERMES, encoding="utf-8")
    table["models"]["base"]["chat_template"] = str(template)

    def program(task: Task, clients: Mapping[str, Client]) -> str:
        with OpenAI(**clients["actor"].keywords, max_retries=0) as client:
            ask_all(client, clients["actor"])
        return "done"

    def ask_all(client: OpenAI, address: Client) -> None:
        solve(client, address)

    table["team"] = {"organization": "program", "call": ObjectPlaceholder(program), "idle_timeout_seconds": 30.0}
    run = parse_recipe(table)
    folder = RunFolder.create(run)
    train(run, folder)
    episodes = recorded(folder)
    assert [(episode.status, episode.error) for episode in episodes] == [("terminated", "")] * 2
    return episodes


@BY_NIGHT
@pytest.mark.slow
def test_every_api_streams_what_it_was_asked_to_be_and_that_is_trained(tmp_path: Path) -> None:
    from tests.gateways import send

    def solve(client: Any, address: Client) -> None:
        form = {"name": "x", "schema": SCHEMA}
        chat = client.chat.completions.create(
            model="m", messages=[USER], response_format={"type": "json_schema", "json_schema": form}, stream=True
        )
        said = "".join(chunk.choices[0].delta.content or "" for chunk in chat)
        assert set(json.loads(said)) == {"answer"}
        tools = [{"type": "function", "function": ADD}]
        called = client.chat.completions.create(model="m", messages=[USER], tools=tools, tool_choice="required")
        assert called.choices[0].finish_reason == "tool_calls"
        assert set(json.loads(called.choices[0].message.tool_calls[0].function.arguments)) == {"a"}
        text = {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}
        with client.responses.stream(model="m", input="1 + 2?", text=text) as stream:
            for _ in stream:
                pass
            assert set(json.loads(stream.get_final_response().output_text)) == {"answer"}
        choice = {"type": "tool", "name": "add", "disable_parallel_tool_use": True}
        tool = {"name": "add", "input_schema": ADD["parameters"]}
        body = {
            "model": "m",
            "max_tokens": 64,
            "messages": [USER],
            "tools": [tool],
            "tool_choice": choice,
            "stream": True,
        }
        answer = send(address.anthropic["base_url"] + "/v1/messages", body)
        assert answer.status == 200
        assert b'"stop_reason": "tool_use"' in answer.body
        likely = client.chat.completions.create(
            model="m",
            messages=[USER],
            max_tokens=4,
            logprobs=True,
            top_logprobs=3,
            response_format={"type": "json_object"},
        )
        for token in likely.choices[0].logprobs.content:
            assert 1 <= len(token.top_logprobs) <= 3
            found = {other.token: other.logprob for other in token.top_logprobs}
            assert abs(found.get(token.token, token.logprob) - token.logprob) < 1e-5
        part = (
            client.responses.create(model="m", input="1 + 2?", max_output_tokens=4, top_logprobs=2).output[0].content[0]
        )
        assert {len(token.top_logprobs) for token in part.logprobs} == {2}
        cut = client.chat.completions.create(
            model="m", messages=[USER], max_tokens=2, response_format={"type": "json_object"}
        )
        assert cut.choices[0].finish_reason == "length"

    for episode in asked(solve, tmp_path):
        assert [action.finish for action in episode.actions][:4] == ["stop"] * 4
        assert episode.actions[-1].finish == "length"
        assert [action.masks is not None for action in episode.actions] == [True] * 5 + [False, True]


def test_recipes_that_cannot_be_held_to_are_refused(tmp_path: Path) -> None:
    def refused(**sampling: Any) -> str:
        table = recipe("tiny", tmp_path)
        table["agents"][0]["sampling"] = sampling
        try:
            run = parse_recipe(table)
            train(run, RunFolder.create(run))
        except ValueError as error:
            return str(error)
        return "nothing was refused"

    assert "exclude each other" in refused(regex="a", grammar="start: a")
    assert "agents.reasoner.sampling" in (said := refused(regex="(a"))
    assert "unclosed group" in said
    assert "Unimplemented keys" in refused(json_schema={"not": {}})
