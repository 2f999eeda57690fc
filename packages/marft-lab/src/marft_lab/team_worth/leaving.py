"""Leave-out comparison: each agent muted, or reset to its untuned policy."""

from __future__ import annotations

from dataclasses import replace

from marft_lab.team_worth.arms import BASE, Arm
from marft_lab.team_worth.bench import Bench
from marft_lab.team_worth.scores import Row

PART = "leave-out"


def leave_out(bench: Bench) -> list[Row]:
    """Compare the team with muted agents, one at a time, and with untuned policies, one at a time."""
    answering = {agent.role for agent in bench.run.agents if agent.answers}
    arms: dict[str, Arm] = {}
    for role in bench.roles:
        if role not in bench.asked:
            bench.note(PART, f"{role} was never asked: nothing hangs on it")
        elif bench.run.team.own_words:
            continue
        elif role in bench.heard:
            arms[f"{role} unheard"] = replace(bench.arm, unheard=(role,))
            if role in answering:
                bench.note(PART, f"{role} unheard: it answers all the same, or has a vote")
        elif role not in answering:
            bench.note(PART, f"{role} acts, and nobody reads it; what the organization makes of it stays")
    if bench.run.team.own_words:
        bench.note(PART, "the team is a program, which passes messages on itself: nobody can be unheard")
    for policy in bench.trained:
        seats = [role for role in bench.seats_of(policy) if role in bench.asked]
        if seats and bench.arm.weights[policy] != BASE:
            arms[f"{' and '.join(seats)} untuned"] = bench.with_weights(**{policy: BASE})
            if len(seats) > 1:
                bench.note(PART, f"{' and '.join(seats)} share the policy {policy}: untuned together")
    return bench.rows(PART, arms)
