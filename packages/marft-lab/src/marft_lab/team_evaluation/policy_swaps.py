"""Changes of who acts: swapped policies, cross-play between checkpoints, and agents left out one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations

from marft.config.run import RunSettings
from marft_lab.team_evaluation.context import ComparisonContext
from marft_lab.team_evaluation.scores import ResultRow, build_row, compute_scores
from marft_lab.team_evaluation.variants import BASE, TeamVariant

SWAP, LEAVE_OUT = "swap", "leave-out"
MAX_PERMUTED = 3  # maximum number of trained policies with all permutations; above, only pairs are swapped


@dataclass(frozen=True, slots=True)
class CrossPlayMatrix:
    """Cross-play matrix: a policy of one checkpoint (rows) in a team with another checkpoint's policies (columns)."""

    policy: str
    others: str
    checkpoints: Sequence[str]
    rows: Sequence[Sequence[ResultRow]]


def policy_permutations(policies: Sequence[str]) -> list[dict[str, str]]:
    """Return swaps of policies: all permutations except the identity, or all pairs for more than three policies.

    >>> policy_permutations(["a", "b"])
    [{'a': 'b', 'b': 'a'}]
    >>> len(policy_permutations(["a", "b", "c"])), len(policy_permutations(["a", "b", "c", "d"]))
    (5, 6)
    """
    if len(policies) <= MAX_PERMUTED:
        return [dict(zip(policies, order, strict=True)) for order in permutations(policies)][1:]
    return [{first: second, second: first} for first, second in combinations(policies, 2)]


def describe_permutation(order: Mapping[str, str]) -> str:
    """Describe a permutation of policies.

    >>> describe_permutation({"a": "b", "b": "a", "c": "c"}), describe_permutation({"a": "b", "b": "c", "c": "a"})
    ('a ⇄ b', 'b for a, c for b, a for c')
    """
    moved = {first: second for first, second in order.items() if first != second}
    if len(moved) == 2:
        return " ⇄ ".join(moved)
    return ", ".join(f"{second} for {first}" for first, second in moved.items())


def swappable_policies(run: RunSettings) -> list[list[str]]:
    """Return groups of trained policies with the same model, which can replace each other."""
    models: dict[str, list[str]] = {}
    for policy in dict.fromkeys(agent.policy for agent in run.agents if agent.policy in run.trained_policies):
        models.setdefault(run.policies[policy].model, []).append(policy)
    return list(models.values())


def compare_swaps(context: ComparisonContext) -> list[ResultRow]:
    """Compare the team with swaps of its trained policies."""
    _note_limits(context)
    variants = {
        f"swapped: {describe_permutation(order)}": replace(context.variant, policy_swaps=order)
        for policies in swappable_policies(context.run)
        for order in policy_permutations(policies)
    }
    return context.build_rows(SWAP, variants)


def run_cross_play(context: ComparisonContext) -> list[CrossPlayMatrix]:
    """Play every trained policy and checkpoint in every checkpoint's team.

    For two policies, one matrix covers both.
    """
    if len(context.trained) < 2 or len(context.checkpoint_names) < 2:
        return []
    chosen = context.trained[:1] if len(context.trained) == 2 else context.trained
    context.expect(
        "cross-play",
        len(chosen) * len(context.checkpoint_names) ** 2 * context.variant.samples * len(context.player.tasks),
    )
    names, matrices = context.checkpoint_names, []
    for policy in chosen:
        others = ", ".join(teammate for teammate in context.trained if teammate != policy)
        rows = [[_play_cell(context, policy, row, column) for column in names] for row in names]
        matrices.append(CrossPlayMatrix(policy, others, names, rows))
    return matrices


def _play_cell(context: ComparisonContext, policy: str, own_checkpoint: str, team_checkpoint: str) -> ResultRow:
    weights = {**dict.fromkeys(context.variant.weights, team_checkpoint), policy: own_checkpoint}
    scores = compute_scores(context.player.play(replace(context.variant, weights=weights)))
    return build_row(SWAP, f"{policy} of {own_checkpoint}, the others of {team_checkpoint}", scores, context.team)


def _note_limits(context: ComparisonContext) -> None:
    for policy in context.trained:
        if len(context.roles_of(policy)) > 1:
            shared = " and ".join(context.roles_of(policy))
            context.note(SWAP, f"{shared} share the policy {policy}: they cannot swap, and nothing would change")
    frozen = [role for role, policy in context.policy_by_role.items() if policy not in context.trained]
    if frozen:
        context.note(SWAP, f"{', '.join(frozen)}: not trained, so the same in every checkpoint, and not swapped")
    if len(context.trained) < 2:
        context.note(SWAP, "fewer than two policies were trained: there is nobody to swap with, nor to cross")
    elif len(swappable_policies(context.run)) > 1:
        context.note(SWAP, "policies of different models are not swapped: prompts and tools are made for one model")
    if len(context.checkpoint_names) < 2:
        context.note(SWAP, "the checkpoints that were named are one: there is nothing to cross")


def compare_leave_one_out(context: ComparisonContext) -> list[ResultRow]:
    """Compare the team with muted agents, one at a time, and with untuned policies, one at a time."""
    answer_roles = {agent.role for agent in context.run.agents if agent.answers}
    variants: dict[str, TeamVariant] = {}
    for role in context.roles:
        if role not in context.acting_roles:
            context.note(LEAVE_OUT, f"{role} was never asked: nothing hangs on it")
        elif context.run.team.writes_prompts:
            continue
        elif role in context.read_roles:
            variants[f"{role} unheard"] = replace(context.variant, muted_roles=(role,))
            if role in answer_roles:
                context.note(LEAVE_OUT, f"{role} unheard: it answers all the same, or has a vote")
        elif role not in answer_roles:
            context.note(LEAVE_OUT, f"{role} acts, and nobody reads it; what the organization makes of it stays")
    if context.run.team.writes_prompts:
        context.note(LEAVE_OUT, "the team is a program, which passes messages on itself: nobody can be unheard")
    for policy in context.trained:
        roles = [role for role in context.roles_of(policy) if role in context.acting_roles]
        if roles and context.variant.weights[policy] != BASE:
            variants[f"{' and '.join(roles)} untuned"] = context.with_weights(**{policy: BASE})
            if len(roles) > 1:
                context.note(LEAVE_OUT, f"{' and '.join(roles)} share the policy {policy}: untuned together")
    return context.build_rows(LEAVE_OUT, variants)
