"""Policy swaps within a team, and cross-play between checkpoints of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

from marft.config.run import RunSettings
from marft_lab.team_worth.bench import Bench
from marft_lab.team_worth.scores import Row, row_of, scores_of

PART = "swap"
FEW = 3  # maximum number of trained policies with all permutations; above, only pairs are swapped


@dataclass(frozen=True, slots=True)
class Matrix:
    """Cross-play matrix: a policy of one checkpoint (rows) in a team with another checkpoint's policies (columns)."""

    policy: str
    others: str
    checkpoints: Sequence[str]
    rows: Sequence[Sequence[Row]]


def orders(policies: Sequence[str]) -> list[dict[str, str]]:
    """Return swaps of policies: all permutations except the identity, or all pairs for more than three policies.

    >>> orders(["a", "b"])
    [{'a': 'b', 'b': 'a'}]
    >>> len(orders(["a", "b", "c"])), len(orders(["a", "b", "c", "d"]))
    (5, 6)
    """
    if len(policies) <= FEW:
        return [dict(zip(policies, order, strict=True)) for order in permutations(policies)][1:]
    return [{one: two, two: one} for one, two in combinations(policies, 2)]


def words_of(order: Mapping[str, str]) -> str:
    """Describe a permutation of policies.

    >>> words_of({"a": "b", "b": "a", "c": "c"}), words_of({"a": "b", "b": "c", "c": "a"})
    ('a ⇄ b', 'b for a, c for b, a for c')
    """
    moved = {one: two for one, two in order.items() if one != two}
    if len(moved) == 2:
        return " ⇄ ".join(moved)
    return ", ".join(f"{two} for {one}" for one, two in moved.items())


def swappable(run: RunSettings) -> list[list[str]]:
    """Return groups of trained policies with the same model, which can replace each other."""
    models: dict[str, list[str]] = {}
    for policy in dict.fromkeys(agent.policy for agent in run.agents if agent.policy in run.trained_policies):
        models.setdefault(run.policies[policy].model, []).append(policy)
    return list(models.values())


def swaps(bench: Bench) -> list[Row]:
    """Compare the team with swaps of its trained policies."""
    _notes(bench)
    arms = {
        f"swapped: {words_of(order)}": replace(bench.arm, seats=order)
        for policies in swappable(bench.run)
        for order in orders(policies)
    }
    return bench.rows(PART, arms)


def cross_play(bench: Bench) -> list[Matrix]:
    """Play every trained policy and checkpoint in every checkpoint's team.

    For two policies, one matrix covers both.
    """
    if len(bench.trained) < 2 or len(bench.crossed) < 2:
        return []
    chosen = bench.trained[:1] if len(bench.trained) == 2 else bench.trained
    bench.expect("cross-play", len(chosen) * len(bench.crossed) ** 2 * bench.arm.samples * len(bench.player.tasks))
    return [
        Matrix(
            policy,
            ", ".join(other for other in bench.trained if other != policy),
            bench.crossed,
            [[_row(bench, policy, one, rest) for rest in bench.crossed] for one in bench.crossed],
        )
        for policy in chosen
    ]


def _row(bench: Bench, policy: str, one: str, rest: str) -> Row:
    weights = {**dict.fromkeys(bench.arm.weights, rest), policy: one}
    scores = scores_of(bench.player.play(replace(bench.arm, weights=weights)))
    return row_of(PART, f"{policy} of {one}, the others of {rest}", scores, bench.team)


def _notes(bench: Bench) -> None:
    for policy in bench.trained:
        if len(bench.seats_of(policy)) > 1:
            shared = " and ".join(bench.seats_of(policy))
            bench.note(PART, f"{shared} share the policy {policy}: they cannot swap, and nothing would change")
    frozen = [role for role, policy in bench.policies.items() if policy not in bench.trained]
    if frozen:
        bench.note(PART, f"{', '.join(frozen)}: not trained, so the same in every checkpoint, and not swapped")
    if len(bench.trained) < 2:
        bench.note(PART, "fewer than two policies were trained: there is nobody to swap with, nor to cross")
    elif len(swappable(bench.run)) > 1:
        bench.note(PART, "policies of different models are not swapped: prompts and tools are made for one model")
    if len(bench.crossed) < 2:
        bench.note(PART, "the checkpoints that were named are one: there is nothing to cross")
