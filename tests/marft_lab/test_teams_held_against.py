"""Teams that a team is held against."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from marft.agents.agents import Agent
from marft.agents.channels import Raw
from marft.agents.organizations import Chain
from marft.agents.team import Team
from marft.common.types import AgentProfile, JointAction, Observation
from marft.config.interfaces.channel import Channel, Message
from marft_lab.team_evaluation.variants import (
    MutedChannel,
    SingleAgentTeam,
    TeamVariant,
)
from tests.episodes import make_action

TEAM = Team(
    (Agent(AgentProfile("a", ""), "one"), Agent(AgentProfile("b", ""), "two"), Agent(AgentProfile("c", ""), "one")),
    Chain(),
)


class Shouting(Channel):
    """A channel that shouts, and drops every second message that it is given."""

    def transform(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        return [None if n % 2 else replace(m, text=m.text.upper()) for n, m in enumerate(messages)]


def test_one_agent_alone_is_shown_the_observation_and_its_action_is_the_answer() -> None:
    shown: list[tuple[str, Any, dict[str, Any]]] = []

    def seat(role: str) -> Any:
        async def act(observation: Observation, **more: Any) -> Any:
            shown.append((role, observation, more))
            return make_action(role)

        return act

    agents: Any = {role: seat(role) for role in "abc"}
    answered = asyncio.run(SingleAgentTeam(role="b").act(Observation("?"), agents))
    assert isinstance(answered, JointAction)
    assert answered.answer is not None
    assert answered.answer.agent == "b"
    assert shown == [("b", Observation("?"), {})]


def test_the_others_keep_their_seats() -> None:
    assert TeamVariant({}, single_role="b").build_team(TEAM) == replace(TEAM, organization=SingleAgentTeam(role="b"))


def test_the_teams_own_channel_carries_what_is_heard_and_nothing_else() -> None:
    said = [Message("a", "one"), Message("b", "two"), Message("c", "three"), Message("a", "four"), Message("c", "five")]
    assert list(MutedChannel(channel=Shouting(), roles=("a",)).transform(said)) == [
        None, Message("b", "TWO"), None, None, Message("c", "FIVE"),
    ]  # fmt: skip


def test_a_team_that_does_not_hear_some_is_the_same_but_for_its_channel() -> None:
    assert TeamVariant({}, muted_roles=("a", "c")).build_team(TEAM) == replace(
        TEAM, channel=MutedChannel(channel=Raw(), roles=("a", "c"))
    )


def test_policies_change_seats_wherever_they_sit() -> None:
    def policies(seats: dict[str, str]) -> list[str]:
        return [agent.policy for agent in TeamVariant({}, policy_swaps=seats).build_team(TEAM).agents]

    assert policies({"one": "two", "two": "one"}) == ["two", "one", "two"]
    assert policies({"two": "three"}) == ["one", "three", "one"]
    moved = TeamVariant({}, policy_swaps={"one": "two"}).build_team(TEAM)
    assert ([agent.role for agent in moved.agents], moved.organization) == (["a", "b", "c"], TEAM.organization)
