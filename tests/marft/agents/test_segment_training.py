"""A chat template that rewrites a turn once a tool has answered: the chat is rendered anew within the action, which trains
as it was sampled, is stored, shown, remembered and resumed.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from marft.agents.conversation_memory import CONCURRENT_ACTIONS
from marft.agents.game import Attempt, Game
from marft.agents.prompt_messages import ChatMessage, InexactContinuation, tool_call_messages
from marft.agents.team import Team
from marft.cli.show import render_transcript
from marft.common.token_data import TokenSource
from marft.common.types import Action, Episode, JointAction, Observation, TokenIds, Tool, ToolCall
from marft.config import RunSettings
from marft.config.interfaces.organization import Agents
from marft.evaluation.transcripts import PromptDecoder
from marft.inference.chat_messages import REWRITES_HISTORY
from marft.models.packed_rows import PackedRows
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.episode_files import read_episodes, write_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests import templates
from tests import tools as offered
from tests.fakes import FakeRenderer, Script, ends, goes_on
from tests.marft.agents.test_memory import Plain
from tests.marft.agents.test_memory_training import REMEMBER, guessing
from tests.marft.agents.test_tool_training import CALL, begin_with
from tests.marft.agents.test_tool_training import with_tools as equipped
from tests.marft.agents.test_turns import Acts, Doing
from tests.marft.runs.test_resume import StopAfter, assert_same
from tests.marft.trainer.test_segments import context_of
from tests.nights import BY_NIGHT, some
from tests.tool_games import call, run, says
from tests.tool_games import with_tools as playing

BARE_CALL = CALL.removeprefix("Hm. ")
TURNS = (CALL, BARE_CALL, CALL.replace("Hm", "Oh"))  # the template has something to drop in the first and the third


def forgetting(tmp_path: Path, *overrides: str, chat: str = templates.FORGETS) -> RunSettings:
    """A reasoner whose template drops what stood before a call once a tool has answered."""
    return equipped(tmp_path, "--agents.reasoner.sampling.max_new_tokens", "240", *overrides, chat=chat)


@pytest.fixture
def calls_thrice(monkeypatch: pytest.MonkeyPatch) -> None:
    begin_with(monkeypatch, *TURNS)


@torch.no_grad()
def slow_log_probs(rollouts: LocalRolloutRunner, action: Action) -> list[float]:
    """Of each sampled token under the policy as it is, by a forward of its own."""
    policy, found = rollouts.models.policies[action.policy], []
    for place in np.flatnonzero(action.sampled_mask):
        context, first = context_of(action, place)
        rows = PackedRows.from_rows(
            [np.concatenate([context, action.tokens[first:place]])], [policy.adapter], policy.backbone.device
        )
        logits = policy.backbone.head(policy.backbone.hidden_states(rows)[-1]).double()
        found.append(float(logits.log_softmax(0)[int(action.tokens[place])]))
    return found


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.usefixtures("calls_thrice")
@pytest.mark.parametrize("level", some(["token", "action"]))
def test_an_action_whose_chat_was_rendered_anew_trains_as_it_was_sampled(level: str, tmp_path: Path) -> None:
    folder = RunFolder.create(forgetting(tmp_path, "--algorithm.level", level))
    assert train(folder.settings(), folder).step == 2
    rows = folder.read_metrics()
    assert all(row["log_prob_difference_max"] < 1e-4 for row in rows)
    assert all(np.isfinite(row["policy_loss"]) and np.isfinite(row["critic/loss"]) for row in rows)
    assert [(row["prompt_resets"], row["agents/reasoner/prompt_resets"]) for row in rows] == [
        (8.0, 8.0)
    ] * 2  # 4 actions
    assert [row["actions"] for row in rows] == [8.0] * 2
    assert all(row["tool_calls"] == 12 for row in rows)


@pytest.mark.slow
@pytest.mark.usefixtures("calls_thrice")
def test_each_token_has_the_log_prob_of_its_own_context_and_each_context_is_the_chat_as_it_is_shown(
    tmp_path: Path,
) -> None:
    with LocalRolloutRunner(forgetting(tmp_path)) as rollouts:
        (episode,) = rollouts.play([Attempt(rollouts.run.environment.tasks("train")[0], "s")])  # type: ignore[attr-defined]
        action, tokenizer = episode.actions[0], rollouts.models.policies["reasoner"].tokenizer
        np.testing.assert_allclose(action.log_probs, slow_log_probs(rollouts, action), atol=1e-4)

    def text(ids: TokenIds) -> str:
        return str(tokenizer.decode(ids.tolist()))

    assert [(restart.turns, restart.reason) for restart in action.restarts] == [
        (1, REWRITES_HISTORY),
        (3, REWRITES_HISTORY),
    ]
    said = [text(action.tokens[start:stop]) for _, start, stop in action.segments]
    answer = "<|im_start|>user\n<tool_response>\n5\n</tool_response><|im_end|>\n<|im_start|>assistant\n"
    assert said == [f"{TURNS[0]}<|im_end|>", f"{TURNS[1]}<|im_end|>\n{answer}{TURNS[2]}<|im_end|>", said[2]]
    prompt, exchange = text(action.prompt), f"{BARE_CALL}<|im_end|>\n{answer}"
    assert text(action.restarts[0].context) == prompt + exchange
    assert text(action.restarts[1].context) == prompt + 3 * exchange
    assert (action.marks == TokenSource.TOOL).sum() == len(tokenizer.encode(f"\n{answer}", add_special_tokens=False))
    assert action.intermediate_texts == TURNS
    assert action.num_decisions == len(action.log_probs) == int(action.sampled_mask.sum())


@pytest.mark.parametrize(("thought", "restarts"), [("<think>\nSo.\n</think>\n\n", 0), ("", 1)])
def test_what_a_turn_really_says_decides_and_not_a_probe(
    thought: str, restarts: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A template that shows an empty thought in a last turn without one leaves those alone that have one."""
    begin_with(monkeypatch, thought + BARE_CALL)
    with LocalRolloutRunner(forgetting(tmp_path, chat=templates.THINKS)) as rollouts:
        (episode,) = rollouts.play([Attempt(rollouts.run.environment.tasks("train")[0], "s")])  # type: ignore[attr-defined]
    assert [c.output for c in episode.actions[0].calls] == ["5"]
    assert len(episode.actions[0].restarts) == restarts


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.usefixtures("calls_thrice")
def test_recorded_segments_come_back_and_older_files_have_none(tmp_path: Path) -> None:
    folder = RunFolder.create(forgetting(tmp_path))
    train(folder.settings(), folder)
    file = folder.episodes / "step_000001.parquet"
    episodes = read_episodes(file)
    write_episodes(tmp_path / "again.parquet", episodes)
    pq.write_table(pq.read_table(file).drop_columns(["restarts"]), tmp_path / "older.parquet")
    again, older = read_episodes(tmp_path / "again.parquet"), read_episodes(tmp_path / "older.parquet")
    for one, other, old in zip(episodes, again, older, strict=True):
        for a, b, c in zip(one.actions, other.actions, old.actions, strict=True):
            assert [(r.at, r.context.tolist(), r.turns, r.reason) for r in a.restarts] == [
                (r.at, r.context.tolist(), r.turns, r.reason) for r in b.restarts
            ]
            assert b.restarts == () or b.restarts[0].context.dtype == np.int32
            assert c.restarts == ()
            assert c.tokens.tolist() == a.tokens.tolist()
    assert sum(len(action.restarts) for episode in again for action in episode.actions) == 8


@pytest.mark.slow
@pytest.mark.usefixtures("calls_thrice")
@pytest.mark.skipif(os.environ.get("HYPOTHESIS_PROFILE") != "nightly", reason="a third of a minute: make nightly")
def test_a_run_that_goes_on_is_the_one_that_never_stopped(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    straight, stopped = (
        RunFolder.create(forgetting(tmp_path / name, "--training.steps", "3")) for name in ("one", "other")
    )
    train(straight.settings(), straight)
    assert train(stopped.settings(), stopped, callbacks=[StopAfter(2)]).step == 2
    train(stopped.settings(), stopped, resume=True)
    assert_same(stopped, straight, "step_000003")


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.usefixtures("calls_thrice")
def test_forks_of_such_episodes_are_scored(tmp_path: Path) -> None:
    folder = RunFolder.create(forgetting(tmp_path, "--algorithm.name", "coma", *REMEMBER))
    train(folder.settings(), folder)
    row = folder.read_metrics()[0]
    assert row["forks"] > 0
    assert row["forks_failed"] == 0


@pytest.mark.slow
@pytest.mark.parametrize("level", some(["token", "action"]))
@BY_NIGHT
def test_an_agent_remembers_such_an_action_as_it_ended(
    level: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin_with(monkeypatch, CALL)
    run = forgetting(
        tmp_path, "--algorithm.level", level, "--agents.reasoner.sampling.max_new_tokens", "100", *REMEMBER
    )
    folder = RunFolder.create(run.model_copy(update={"environment": guessing(tmp_path).environment}))
    train(folder.settings(), folder)
    assert all(row["log_prob_difference_max"] < 1e-4 for row in folder.read_metrics())
    later = 0
    for episode in read_episodes(folder.episodes / "step_000001.parquet"):
        mine = [action for action in episode.actions if action.agent == "reasoner"]
        for before, action in zip(mine, mine[1:], strict=False):
            context, start, stop = before.segments[-1]
            known = np.concatenate([context, before.tokens[start:stop]])
            assert (len(before.segments), action.restarted) == (2, "")
            assert action.prompt[: len(known)].tolist() == known.tolist()
            later += 1
    assert later


@BY_NIGHT
@pytest.mark.slow
@pytest.mark.usefixtures("calls_thrice")
def test_where_the_chat_was_rendered_anew_is_shown(tmp_path: Path) -> None:
    folder = RunFolder.create(forgetting(tmp_path))
    train(folder.settings(), folder)
    (episode, *_) = read_episodes(folder.episodes / "step_000002.parquet")
    console = Console(file=io.StringIO(), width=300)
    for shown in render_transcript(episode, "reasoner", PromptDecoder(folder.config_path)):
        console.print(shown)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    first, second = episode.actions[0].restarts
    parts = [
        "Hm. <tool_call>", '{"a": 2, "b": 3} → 5', f"goes on from its chat, rendered anew to {len(first.context)} tokens",
        "0/reasoner/0 says before it uses tools", "Oh. <tool_call>", f"rendered anew to {len(second.context)} tokens: {REWRITES_HISTORY}",
        "0/reasoner/0 says,",
    ]  # fmt: skip
    places = [text.index(part) for part in parts[:3]]
    places += [text.index(part, places[-1]) for part in parts[3:]]
    assert places == sorted(places)


def test_a_template_that_cannot_show_an_answer_at_all_is_refused_by_agent(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"agents.reasoner.tools: .* cannot show what tools answered .*set models"):
        LocalRolloutRunner(forgetting(tmp_path, chat=templates.NO_ANSWERS))


def ids_of(text: str) -> TokenIds:
    return np.frombuffer(text.encode(), np.uint8).astype(np.int32)


class Forgets(FakeRenderer):
    """Shows an action that used tools by the answers alone."""

    size = 100_000

    def tool_response(
        self, policy: str, turn: TokenIds, messages: list[ChatMessage], calls: list[ToolCall], tools: list[Tool]
    ) -> TokenIds | InexactContinuation:  # type: ignore[override]  # fmt: skip
        return InexactContinuation("it forgets")

    def tokenize_prompt(self, policy: str, messages: Any, tools: Any) -> TokenIds:
        heard = [message["content"] for message in messages if message["role"] == "tool"]
        return ids_of(f"heard {heard}")

    def context_length(self, policy: str) -> int:
        return self.size


class TestLimits:
    """Those on tokens count what is sampled, and that of the context what it now is."""

    SAID = call("add", a=1, b=2)

    def played(self, turns: int, size: int = 100_000, tokens: int = 1000) -> tuple[Action, list[str]]:
        engine = says(*[self.SAID] * turns, "three")
        g = playing(engine, offered.add)
        (agent,) = g.team.agents
        agent = replace(agent, sampling=replace(agent.sampling, max_new_tokens=tokens))
        renderer = Forgets()
        renderer.size = size
        g = replace(g, renderer=renderer, team=replace(g.team, agents=(agent,)))
        episode: Episode = run(g)
        assert episode.status == "terminated", episode.error
        return episode.actions[0], [prompt for _, prompt in engine.asked]

    def test_each_turn_is_sampled_from_the_chat_as_it_is_then(self) -> None:
        action, asked = self.played(2)
        assert asked[1:] == ["heard ['3']", "heard ['3', '3']"]
        assert [bytes(r.context.astype(np.uint8)).decode() for r in action.restarts] == asked[1:]
        assert [(r.at, r.turns) for r in action.restarts] == [(len(self.SAID), 1), (2 * len(self.SAID), 2)]
        assert [stop - start for _, start, stop in action.segments] == [len(self.SAID), len(self.SAID), 5]
        assert (action.marks == TokenSource.SAMPLED).all()
        assert (action.text, action.finish) == ("three", "stop")

    def test_what_has_been_sampled_counts_for_all_segments(self) -> None:
        action, asked = self.played(2, tokens=2 * len(self.SAID))
        assert (len(asked), action.finish) == (2, "length")
        assert [c.output for c in action.calls] == ["3", "3"]
        assert len(action.restarts) == 1

    def test_a_chat_that_does_not_fit_ends_the_action_where_it_is(self) -> None:
        action, _ = self.played(1, size=len("heard ['3']") + 1)
        assert len(action.restarts) == 1
        action, asked = self.played(1, size=len("heard ['3']"))
        assert (len(asked), action.finish, action.restarts) == (1, "length", ())
        assert json.loads(action.calls[0].arguments) == {"a": 1, "b": 2}


class Rewrites(Plain):
    """Renders a chat anew once a tool has answered."""

    def tool_response(self, *_: Any) -> TokenIds | InexactContinuation:
        return InexactContinuation("it rewrites")

    def turn_messages(self, policy: str, action: Action) -> Sequence[ChatMessage]:
        turns = [
            tool_call_messages(text, [c for c in action.calls if c.round == n])
            for n, text in enumerate(action.intermediate_texts)
        ]
        return [message for turn in turns for message in turn] + [{"role": "assistant", "content": action.text}]


def acting(acts: Acts, *roles: str) -> Game:
    """Agents that use a tool once and then say what it answered; each of them remembers."""
    g = playing(says(TestLimits.SAID, "three"), offered.add, script=Script([goes_on(text="o1"), ends()]))
    agents = tuple(
        replace(agent, profile=replace(agent.profile, role=role, instructions="I"), memory="own")
        for agent in g.team.agents
        for role in roles
    )
    return replace(g, renderer=Rewrites(), team=Team(agents, Doing(acts)))


def test_an_action_that_is_taken_over_into_another_branch_ends_there_as_it_was_sampled() -> None:
    """What was asked for at once does not know each other; what is asked for later knows all of it."""

    async def at_once(observation: Observation, agents: Agents) -> JointAction:
        if observation.text == "o1":
            return JointAction(await agents.a(observation))
        await asyncio.gather(*(agents.a(Observation(f"o0.{n}")) for n in range(2)))
        return JointAction()

    episode = run(acting(at_once, "a"))
    assert episode.error == ""
    first, second, last = episode.actions
    used = f"[a:{TestLimits.SAID}][t:3]"
    assert [bytes(a.restarts[0].context.astype(np.uint8)).decode() for a in (first, second)] == [
        f"[s:I][u:o0.0]{used}[", f"[s:I][u:o0.1]{used}["
    ]  # fmt: skip
    assert bytes(last.prompt.astype(np.uint8)).decode() == (f"[s:I][u:o0.0]{used}[a:three][u:o0.1]{used}[three][u:o1][")
    assert (last.continues, last.restarted) == ((first.id, second.id), CONCURRENT_ACTIONS)


def test_a_turn_begins_with_what_a_teammate_wrote_since_its_chat_was_rendered_anew() -> None:
    async def begins(observation: Observation, agents: Agents) -> JointAction:
        return JointAction(await agents.b(observation, begins=await agents.a(observation)))

    mine, other = run(acting(begins, "a", "b")).actions[:2]
    said = len("three")
    assert other.tokens[:said].tolist() == mine.tokens[-said:].tolist()
    assert other.teammate_mask[: said + 1].tolist() == [True] * said + [False]
    assert other.teammate_log_probs is not None
    assert other.teammate_log_probs.tolist() == mine.log_probs[-said:].tolist()
    assert other.restarts[0].at == said + len(TestLimits.SAID)
    assert b"three" + TestLimits.SAID.encode() in bytes(other.restarts[0].context.astype(np.uint8))
