"""Several engines behind one door: by policy, in nobody's way, and closed with what plays."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from marft.agents.game import Attempt
from marft.common.types import ActionKey, Completion, Prompt, SamplingParams, Task, VersionRange
from marft.config.interfaces.engine import Weights
from marft.inference.local import LocalEngine
from marft.inference.router import Router
from marft.rollout.local_runner import LocalRolloutRunner
from tests.fakes import FakeEngine, Script, ends, game
from tests.helpers import settings
from tests.remotely import play_many

KEY = ActionKey("s", "t", 0, 0, "a", 0)


def test_an_engine_is_closed_with_what_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What it had started once stayed."""
    closed: list[LocalEngine] = []

    async def close(self: LocalEngine) -> None:
        closed.append(self)

    monkeypatch.setattr(LocalEngine, "close", close)
    with LocalRolloutRunner(settings("tiny", tmp_path)) as rollouts:
        engine = rollouts.engine.engines["actor"]
        assert not closed
    assert closed == [engine]


class Timed(FakeEngine):
    """Says when others were waited for, and counts who holds its external wait."""

    def __init__(self, name: str) -> None:
        super().__init__(lambda key, prompt: f"{name} for {key.agent}")
        self.held: list[str] = []
        self.published: list[tuple[list[str], int]] = []
        self.settled = self.ended = False

    def external_wait(self) -> Any:
        self.held.append("held")
        return super().external_wait()

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        self.published.append((sorted(policies), version))

    def version(self, policy: str) -> int:
        return len(policy)

    def usage(self) -> dict[str, float]:
        return {"sampled_tokens": 2.0, "remote_cost": 0.5}

    async def wait_idle(self) -> None:
        self.settled = True

    async def close(self) -> None:
        self.ended = True


def of(engine: Router, policy: str, key: ActionKey = KEY) -> Completion:
    return asyncio.run(engine.sample(policy, Prompt(torch.zeros(0, dtype=torch.int32).numpy()), SamplingParams(), key))


class TestRouting:
    def test_every_policy_is_sampled_by_its_own_engine(self) -> None:
        first, second = Timed("first"), Timed("second")
        router = Router({"a": first, "b": second, "c": first})
        assert [of(router, policy).text for policy in "abc"] == ["first for a", "second for a", "first for a"]

    def test_a_request_to_a_later_engine_holds_those_before_it_and_no_other(self) -> None:
        """An engine that admits in order must know that more may come; and nobody waits in a circle."""
        first, second, third = Timed("1"), Timed("2"), Timed("3")
        router = Router({"a": first, "b": second, "c": third})
        of(router, "a")
        assert (first.held, second.held, third.held) == ([], [], [])
        of(router, "b")
        assert (first.held, second.held, third.held) == (["held"], [], [])
        of(router, "c")
        assert (first.held, second.held, third.held) == (["held"] * 2, ["held"], [])

    def test_what_waits_for_something_else_holds_every_engine(self) -> None:
        first, second = Timed("1"), Timed("2")
        with Router({"a": first, "b": second}).external_wait():
            assert (first.held, second.held) == (["held"], ["held"])

    def test_whoever_has_a_seat_is_asked_for_its_agent_alone(self) -> None:
        engine, person = Timed("engine"), Timed("person")
        router = Router({"p": engine}).with_agent_samplers({"b": person})
        assert of(router, "p").text == "engine for a"
        assert of(router, "p", KEY._replace(agent="b")).text == "person for b"
        assert engine.held == ["held"]  # while the person thinks

    def test_whoever_has_a_seat_keeps_it_while_others_sit_down(self) -> None:
        engine, first, second = Timed("engine"), Timed("first"), Timed("second")
        router = Router({"p": engine}).with_agent_samplers({"a": first}).with_agent_samplers({"b": second})
        assert [of(router, "p", KEY._replace(agent=agent)).text for agent in "abc"] == [
            "first for a",
            "second for b",
            "engine for c",
        ]

    def test_it_has_settled_when_all_engines_have(self) -> None:
        first, second = Timed("1"), Timed("2")
        asyncio.run(Router({"a": first, "b": second}).wait_idle())
        assert first.settled
        assert second.settled

    def test_each_engine_is_given_its_own_policies_and_asked_for_their_versions(self) -> None:
        first, second = Timed("1"), Timed("2")
        router = Router({"a": first, "bb": second, "ccc": first})
        asyncio.run(router.publish({"a": Any, "ccc": Any}, 7))  # type: ignore[dict-item]
        assert (first.published, second.published) == ([(["a", "ccc"], 7)], [])
        assert [router.version(policy) for policy in ("a", "bb", "ccc")] == [1, 2, 3]

    def test_what_they_have_taken_adds_up_and_all_are_closed(self) -> None:
        first, second = Timed("1"), Timed("2")
        router = Router({"a": first, "b": second})
        assert router.usage() == {"sampled_tokens": 4.0, "remote_cost": 1.0}
        asyncio.run(router.close())
        assert first.ended
        assert second.ended

    def test_a_team_of_two_engines_plays(self) -> None:
        router = Router({"a": Timed("1"), "b": Timed("2")})
        episode = play_many(game(Script([ends()]), "a", "b", engine=router), 1)[0]  # type: ignore[arg-type]
        assert [action.text for action in episode.actions] == ["1 for a", "2 for b"]


class Halfway(FakeEngine):
    """Is given new weights between the turns of an action."""

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        done = await super().sample(policy, prompt, sampling, key)
        return Completion(done.tokens, done.log_probs, done.text, done.finish, VersionRange(3, 4))


def test_an_action_records_the_lowest_and_the_highest_version_that_sampled_it() -> None:
    assert VersionRange(3, 4) | VersionRange(2, 3) == VersionRange(2, 4)
    episode = play_many(game(Script([ends()]), engine=Halfway()), 1)[0]
    assert episode.actions[0].versions == (3, 4)


def test_frozen_policies_keep_their_version(tmp_path: Path) -> None:
    run = settings("tiny", tmp_path, "--policies.reasoner.train", "frozen")
    with LocalRolloutRunner(run) as rollouts:
        rollouts.publish(5)
        found = rollouts.play([Attempt(Task("t", "1 + 2 ="), "x")])[0]
        assert {action.policy: action.versions for action in found.actions} == {"reasoner": (0, 0), "actor": (5, 5)}
