"""Memory with a real model: prompts grow by the ids that were sampled, and every token is trained as it was sampled."""

from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from marft.agents.game import Attempt
from marft.agents.play import play
from marft.cli.show import render_transcript
from marft.common.token_data import TokenSource
from marft.common.types import Action, ActionKey, Completion, Episode, Observation, Prompt, SamplingParams
from marft.config import RunSettings
from marft.config.interfaces.channel import Message
from marft.evaluation.transcripts import PromptDecoder
from marft.inference.local import LocalEngine
from marft.inference.remote import HumanSampler
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.episode_files import read_episodes, write_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests import templates
from tests.endpoint import says, serving
from tests.helpers import settings
from tests.marft.agents.test_tool_training import calls_first, with_tools
from tests.nights import BY_NIGHT, some
from tests.remotely import team

__all__ = ["calls_first"]
GUESSES = {"name": "tests.plugins:HigherLower", "steps": 3}
REMEMBER = ("--agents.reasoner.memory", "own", "--agents.actor.memory", "own")


def guessing(output: Path, *overrides: str, **changes: Any) -> RunSettings:
    return settings("tiny", output, *overrides, environment=GUESSES, **changes)


def trained(run: RunSettings) -> tuple[RunFolder, list[Episode]]:
    folder = RunFolder.create(run)
    train(run, folder)
    return folder, read_episodes(folder.episodes / "step_000001.parquet")


def before(episode: Episode, action: Action) -> Action:
    return next(other for other in episode.actions if other.id == action.continues[-1])


def check_goes_on(episode: Episode) -> None:
    """Each prompt is the conversation before it, by its ids, and something new."""
    for action in episode.actions:
        own = [other.id for other in episode.actions if other.agent == action.agent and other.index < action.index]
        assert list(action.continues) == own
        assert action.restarted == ""
        if own:
            known = np.concatenate([before(episode, action).prompt, before(episode, action).tokens])
            assert action.prompt[: len(known)].tolist() == known.tolist()
            assert len(action.prompt) > len(known)


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.usefixtures("calls_first")
@pytest.mark.parametrize("level", some(["token", "action"]))
def test_a_conversation_is_trained_as_it_was_sampled_tools_and_all(level: str, tmp_path: Path) -> None:
    run = with_tools(tmp_path, "--algorithm.level", level, *REMEMBER)
    run = run.model_copy(update={"environment": guessing(tmp_path).environment})
    folder, episodes = trained(run)
    rows = folder.read_metrics()
    assert all(row["log_prob_difference_max"] < 1e-4 for row in rows)
    assert all(np.isfinite(row["policy_loss"]) for row in rows)
    for episode in episodes:
        check_goes_on(episode)
        for action in episode.actions:
            assert action.num_decisions == len(action.log_probs) == int((action.marks == TokenSource.SAMPLED).sum())
            assert {call.round for call in action.calls} == set(range(len(action.intermediate_texts)))
    assert max(len(action.continues) for episode in episodes for action in episode.actions) == 2
    assert [row["prompt_resets"] for row in rows] == [0.0, 0.0]
    write_episodes(tmp_path / "again.parquet", episodes)
    again = read_episodes(tmp_path / "again.parquet")
    kept = [[(a.id, a.continues, a.restarted, a.sees) for a in e.actions] for e in episodes]
    assert [[(a.id, a.continues, a.restarted, a.sees) for a in e.actions] for e in again] == kept


@pytest.mark.slow
def test_a_template_that_never_continues_trains_too_and_says_why(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(templates.BEGINS)
    models = {"base": {"path": "tiny", "chat_template": str(template)}}
    folder, episodes = trained(guessing(tmp_path, *REMEMBER, models=models))
    rows = folder.read_metrics()
    assert all(row["log_prob_difference_max"] < 1e-4 for row in rows)
    later = [action for episode in episodes for action in episode.actions if action.continues]
    assert later
    assert {action.restarted for action in later} == {
        "its chat template shows a turn that was said otherwise than one that begins"
    }
    assert rows[0]["prompt_resets"] == len(later)


@pytest.mark.slow
@pytest.mark.usefixtures("calls_first")
@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "nightly", reason="a third of a minute: make nightly")
def test_forks_remember_what_the_episode_did(tmp_path: Path) -> None:
    run = with_tools(tmp_path, "--algorithm.name", "coma", *REMEMBER)
    folder, _ = trained(run.model_copy(update={"environment": guessing(tmp_path).environment}))
    row = folder.read_metrics()[0]
    assert row["forks"] > 0
    assert row["forks_failed"] == 0


@pytest.mark.slow
@BY_NIGHT
def test_agents_that_act_at_once_do_the_same_again(tmp_path: Path) -> None:
    recorded = []
    for name in ("one", "two"):
        run = guessing(tmp_path, *REMEMBER, "--team", "debate", "--name", name)
        _, episodes = trained(run)
        recorded.append(
            [(a.id, a.continues, a.prompt.tolist(), a.tokens.tolist()) for e in episodes for a in e.actions]
        )
    assert recorded[0] == recorded[1]
    assert max(len(continues) for _, continues, _, _ in recorded[0]) > 2


def test_a_template_that_cannot_show_a_conversation_is_refused_by_agent(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(templates.ONCE)
    models = {"base": {"path": "tiny", "chat_template": str(template)}}
    with pytest.raises(ValueError, match=r"agents.actor.memory: its chat template cannot show a conversation"):
        LocalRolloutRunner(guessing(tmp_path, "--agents.actor.memory", "own", models=models))
    LocalRolloutRunner(guessing(tmp_path, models=models)).close()


@pytest.mark.slow
def test_an_endpoint_is_sent_its_growing_conversation_and_others_train_beside_it(tmp_path: Path) -> None:
    with serving(lambda body, n: says(f"plan {n}")) as server:
        run = team(server, tmp_path, *REMEMBER)
        folder, episodes = trained(run.model_copy(update={"environment": guessing(tmp_path).environment}))
        for episode in episodes:
            check_goes_on(episode)
        sent = [[message["role"] for message in request["messages"]] for request in server.requests]
    assert {tuple(roles) for roles in sent} == {
        ("system", *("user", "assistant") * rounds, "user") for rounds in range(3)
    }
    longest = max(server.requests, key=lambda request: len(request["messages"]))["messages"]
    assert [m["content"].startswith("plan") for m in longest if m["role"] == "assistant"] == [True] * 2
    assert all(np.isfinite(row["policy_loss"]) for row in folder.read_metrics())


def test_a_person_remembers_and_is_told_what_is_new(tmp_path: Path) -> None:
    told: list[list[str]] = []

    class Watcher:
        def on_observation(self, observation: Observation) -> None: ...

        def on_request(self, role: str, messages: Sequence[Message]) -> None:
            if role == "actor":
                told.append([message.text for message in messages])

        def on_action(self, action: Action) -> None: ...

    with LocalRolloutRunner(guessing(tmp_path, *REMEMBER)) as rollouts:
        person = HumanSampler(rollouts.game.renderer, lambda role, options: "zero", rollouts.decode)
        game = replace(rollouts.game, engine=rollouts.engine.with_agent_samplers({"actor": person}), callback=Watcher())
        task = rollouts.run.environment.tasks("train")[0]  # type: ignore[attr-defined]
        episode = rollouts.wait_for(play(game, Attempt(task, "s")))
    check_goes_on(episode)
    mine = [action for action in episode.actions if action.agent == "actor"]
    assert [action.text for action in mine] == ["zero"] * 3
    assert told == [[a.text] for a in episode.actions if a.agent == "reasoner"]


class TestHigherOrLower:
    """A player that halves what its prompt leaves possible: it cannot without its earlier guesses."""

    @staticmethod
    def played(output: Path, memory: str, monkeypatch: pytest.MonkeyPatch) -> list[Episode]:
        async def halve(
            self: LocalEngine, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey
        ) -> Completion:  # fmt: skip
            local = self.policies[policy]
            low, high = 1, 15
            shown = str(local.tokenizer.decode(prompt.ids.tolist()))
            for guess, answer in re.findall(r"assistant\n(\d+)<\|im_end\|>\n<\|im_start\|>user\nIt is (\w+)", shown):
                low, high = (int(guess) + 1, high) if answer == "higher" else (low, int(guess) - 1)
            said = str((low + high) // 2)
            tokens = np.array([*local.tokenizer.encode(said, add_special_tokens=False), local.stop_ids[0]], np.int32)
            return Completion(tokens, np.full(len(tokens), -1.0, np.float32), said, "stop")

        monkeypatch.setattr(LocalEngine, "sample", halve)
        run = guessing(output, "--agents.actor.memory", memory, "--environment.steps", "4")
        run = run.model_copy(update={"agents": run.agents[1:]})
        with LocalRolloutRunner(run) as rollouts:
            return rollouts.play([Attempt(task, "s") for task in rollouts.run.environment.tasks("train")])  # type: ignore[attr-defined]

    def test_four_guesses_find_each_of_fifteen_numbers_with_a_memory(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert all(episode.success for episode in self.played(tmp_path, "own", monkeypatch))

    def test_without_one_the_first_guess_is_made_again_and_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        episodes = self.played(tmp_path, "none", monkeypatch)
        assert [episode.task.id for episode in episodes if episode.success] == ["number/8"]


@pytest.mark.slow
def test_only_what_is_new_in_a_prompt_is_shown(tmp_path: Path) -> None:
    folder, episodes = trained(guessing(tmp_path, *REMEMBER))
    episode = next(e for e in episodes if len(e.transitions) > 1)
    console = Console(file=io.StringIO(), width=300)
    for shown in render_transcript(episode, "actor", PromptDecoder(folder.config_path)):
        console.print(shown)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    first, second = [action for action in episode.actions if action.agent == "actor"][:2]
    known = len(first.prompt) + len(first.tokens)
    assert f"actor sees {len(first.prompt)} tokens ─" in text
    assert f"actor sees {len(second.prompt) - known} tokens, and remembers {known} up to 0/actor/0" in text
    assert text.count("Act.") == 1
