"""Shared context of the comparison's parts: the team, its player and callbacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from marft.common.types import Episode
from marft.config.run import RunSettings
from marft_lab.team_evaluation.options import ComparisonOptions
from marft_lab.team_evaluation.scores import ResultRow, VariantScores, build_row, compute_scores
from marft_lab.team_evaluation.variants import TeamVariant, VariantPlayer


@dataclass(frozen=True)
class ComparisonContext:
    """Context of the comparison.

    Args:
        run: settings of the run.
        options: options of the comparison.
        player: player of arms.
        variant: arm of the unchanged team.
        checkpoint_names: folder names of the checkpoints for cross-play, or ``base``.
        note: callback with a part and a remark.
        expect: callback with a part and its exact number of episodes.
    """

    run: RunSettings
    options: ComparisonOptions
    player: VariantPlayer
    variant: TeamVariant
    checkpoint_names: Sequence[str]
    note: Callable[[str, str], None]
    expect: Callable[[str, int], None]

    @cached_property
    def episodes(self) -> list[Episode]:
        """Episodes of the team."""
        return self.player.play(self.variant)

    @cached_property
    def team(self) -> VariantScores:
        """Scores of the team."""
        return compute_scores(self.episodes)

    @property
    def roles(self) -> list[str]:
        """Roles of the team."""
        return [agent.role for agent in self.run.agents]

    @property
    def policy_by_role(self) -> Mapping[str, str]:
        """Policy name of each role."""
        return {agent.role: agent.policy for agent in self.run.agents}

    @property
    def trained(self) -> list[str]:
        """Trained policies, in the order of the agents."""
        used = dict.fromkeys(self.policy_by_role.values())
        return [policy for policy in used if policy in self.run.trained_policies]

    @cached_property
    def read_roles(self) -> list[str]:
        """Roles with messages read by another agent."""
        seen: set[str] = set()
        for episode in self.episodes:
            owners = {action.id: action.agent for action in episode.actions}
            for action in episode.actions:
                seen |= {owners[name] for name in action.sees if owners.get(name) not in (None, action.agent)}
        return [role for role in self.roles if role in seen]

    @cached_property
    def acting_roles(self) -> list[str]:
        """Roles with at least one action."""
        acting = {action.agent for episode in self.episodes for action in episode.actions}
        return [role for role in self.roles if role in acting]

    def roles_of(self, policy: str) -> list[str]:
        """Return a policy's roles."""
        return [role for role, role_policy in self.policy_by_role.items() if role_policy == policy]

    def build_rows(self, part: str, variants: Mapping[str, TeamVariant]) -> list[ResultRow]:
        """Play arms by name, and compare them with the team."""
        self.expect(part, len(variants) * self.variant.samples * len(self.player.tasks))
        return [
            build_row(part, name, compute_scores(self.player.play(variant)), self.team)
            for name, variant in variants.items()
        ]

    def with_weights(self, **weights: str) -> TeamVariant:
        """Return the team's arm with changed weights of some policies."""
        return replace(self.variant, weights={**self.variant.weights, **weights})
