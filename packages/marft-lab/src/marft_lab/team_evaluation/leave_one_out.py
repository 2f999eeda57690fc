"""Leave-out comparison: each agent muted, or reset to its untuned policy."""

from __future__ import annotations

from dataclasses import replace

from marft_lab.team_evaluation.context import ComparisonContext
from marft_lab.team_evaluation.scores import ResultRow
from marft_lab.team_evaluation.variants import BASE, TeamVariant

PART = "leave-out"


def compare_leave_one_out(context: ComparisonContext) -> list[ResultRow]:
    """Compare the team with muted agents, one at a time, and with untuned policies, one at a time."""
    answer_roles = {agent.role for agent in context.run.agents if agent.answers}
    variants: dict[str, TeamVariant] = {}
    for role in context.roles:
        if role not in context.acting_roles:
            context.note(PART, f"{role} was never asked: nothing hangs on it")
        elif context.run.team.writes_prompts:
            continue
        elif role in context.read_roles:
            variants[f"{role} unheard"] = replace(context.variant, muted_roles=(role,))
            if role in answer_roles:
                context.note(PART, f"{role} unheard: it answers all the same, or has a vote")
        elif role not in answer_roles:
            context.note(PART, f"{role} acts, and nobody reads it; what the organization makes of it stays")
    if context.run.team.writes_prompts:
        context.note(PART, "the team is a program, which passes messages on itself: nobody can be unheard")
    for policy in context.trained:
        roles = [role for role in context.roles_of(policy) if role in context.acting_roles]
        if roles and context.variant.weights[policy] != BASE:
            variants[f"{' and '.join(roles)} untuned"] = context.with_weights(**{policy: BASE})
            if len(roles) > 1:
                context.note(PART, f"{' and '.join(roles)} share the policy {policy}: untuned together")
    return context.build_rows(PART, variants)
