"""Shared context of the comparison's parts: the team, its player and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from marft.common.types import Episode
from marft.config.run import RunSettings
from marft_lab.team_worth.arms import Arm, Player
from marft_lab.team_worth.options import Options
from marft_lab.team_worth.scores import Row, Scores, row_of, scores_of


@dataclass(frozen=True)
class Bench:
    """Context of the comparison.

    Args:
        run: settings of the run.
        options: options of the comparison.
        player: player of arms.
        arm: arm of the unchanged team.
        crossed: folder names of the checkpoints for cross-play, or ``base``.
        note: callback with a part and a remark.
        expect: callback with a part and its exact number of episodes.
    """

    run: RunSettings
    options: Options
    player: Player
    arm: Arm
    crossed: Sequence[str]
    note: Callable[[str, str], None]
    expect: Callable[[str, int], None]

    @cached_property
    def episodes(self) -> list[Episode]:
        """Episodes of the team."""
        return self.player.play(self.arm)

    @cached_property
    def team(self) -> Scores:
        """Scores of the team."""
        return scores_of(self.episodes)

    @property
    def roles(self) -> list[str]:
        """Roles of the team."""
        return [agent.role for agent in self.run.agents]

    @property
    def policies(self) -> Mapping[str, str]:
        """Policies by role."""
        return {agent.role: agent.policy for agent in self.run.agents}

    @property
    def trained(self) -> list[str]:
        """Trained policies, in the order of the agents."""
        used = dict.fromkeys(self.policies.values())
        return [policy for policy in used if policy in self.run.trained_policies]

    @cached_property
    def heard(self) -> list[str]:
        """Roles with messages read by another agent."""
        seen = {
            owners[name]
            for episode in self.episodes
            for owners in [{action.id: action.agent for action in episode.actions}]
            for action in episode.actions
            for name in action.sees
            if owners.get(name) not in (None, action.agent)
        }
        return [role for role in self.roles if role in seen]

    @cached_property
    def asked(self) -> list[str]:
        """Roles with at least one action."""
        acted = {action.agent for episode in self.episodes for action in episode.actions}
        return [role for role in self.roles if role in acted]

    def seats_of(self, policy: str) -> list[str]:
        """Return a policy's roles."""
        return [role for role, played in self.policies.items() if played == policy]

    def rows(self, part: str, arms: Mapping[str, Arm]) -> list[Row]:
        """Play arms by name, and compare them with the team."""
        self.expect(part, len(arms) * self.arm.samples * len(self.player.tasks))
        return [row_of(part, name, scores_of(self.player.play(arm)), self.team) for name, arm in arms.items()]

    def with_weights(self, **weights: str) -> Arm:
        """Return the team's arm with changed weights of some policies."""
        return replace(self.arm, weights={**self.arm.weights, **weights})
