"""Single-agent comparison at the team's token budget: as many attempts per task as the team's tokens pay for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from marft.common.types import Episode, Task
from marft.config.run import RunSettings
from marft_lab.team_evaluation.context import ComparisonContext
from marft_lab.team_evaluation.scores import (
    ResultRow,
    build_row,
    compute_chosen_scores,
    compute_scores,
    count_tokens,
    group_by_task,
)
from marft_lab.team_evaluation.variants import BASE, TeamVariant, VariantPlayer
from marft_lab.team_evaluation.voting import (
    CanonicalAnswer,
    best_attempt,
    majority_vote,
    max_affordable,
    normalize_answer,
)

PART = "single"


def answer_role(run: RunSettings) -> str:
    """Return the role of the answering agent: the organization's answering role, or the last agent that answers."""
    answer_roles = [agent.role for agent in run.agents if agent.answers]
    return run.team.answer_role(answer_roles) or answer_roles[-1]


def find_problem(run: RunSettings) -> str:
    """Return the reason why a team has no single-agent arm; "" for a team with such an arm."""
    if run.team.writes_prompts:
        return "the team is a program, whose agents have no prompts but those that it makes: none can be asked alone"
    return ""


def build_variants(run: RunSettings, weights: Mapping[str, str]) -> dict[str, TeamVariant]:
    """Return the arms of the answering agent as a single agent, with trained weights and with the base's weights."""
    role = answer_role(run)
    policy = next(agent.policy for agent in run.agents if agent.role == role)
    variants = {f"{role} alone": TeamVariant(weights, single_role=role)}
    if weights.get(policy, BASE) != BASE:
        variants[f"{role} alone, untuned"] = TeamVariant(dict.fromkeys(weights, BASE), single_role=role)
    return variants


def compare_single_agent(context: ComparisonContext) -> list[ResultRow]:
    """Compare each single-agent arm with the team."""
    role = answer_role(context.run)
    return [
        row
        for name, variant in build_variants(context.run, context.variant.weights).items()
        for row in compare_at_budget(context, context.player, variant, name, role)
    ]


def compare_at_budget(
    context: ComparisonContext, player: VariantPlayer, variant: TeamVariant, name: str, role: str
) -> list[ResultRow]:
    """Compare a single agent with the team: one attempt, the best attempt within the token budget, and a majority vote.

    Args:
        context: context of the comparison.
        player: player of the arm.
        variant: arm of the single agent.
        name: name of the rows.
        role: role of the agent.
    """
    budget = _mean_tokens(context.episodes)
    first_episodes = player.play(replace(variant, samples=context.variant.samples))
    cost = _mean_tokens(first_episodes)
    paid_attempts = int(budget // cost) if cost else 1
    attempt_count = min(context.options.attempts, paid_attempts)
    extra_count = attempt_count - context.variant.samples
    context.expect(f"{PART} {name}", max(attempt_count, context.variant.samples) * len(player.tasks))
    extra_episodes = (
        player.play(replace(variant, first_sample=context.variant.samples, samples=extra_count))
        if extra_count > 0
        else []
    )
    groups = {
        task: sorted(attempts, key=lambda e: e.sample)
        for task, attempts in group_by_task([*first_episodes, *extra_episodes]).items()
    }
    costs = [[count_tokens(episode) for episode in attempts] for attempts in groups.values()]
    count = max_affordable(costs, budget) if attempt_count else 0
    if cost and not count:
        context.note(PART, f"one attempt of {name} takes more tokens than the team's: it has one all the same")
    elif paid_attempts > attempt_count:
        context.note(
            PART,
            f"{name}: the team's tokens would pay for {paid_attempts} attempts, and it has {attempt_count} "
            "(--attempts)",
        )
    rows = [build_row(PART, name, compute_scores([*first_episodes, *extra_episodes]), context.team)]
    if count < 2:
        return rows
    canonical = _get_canonical(context.run, player.tasks)
    first = {task: attempts[:count] for task, attempts in groups.items()}
    failed = sum(not episode.is_scored for episode in [*first_episodes, *extra_episodes])
    selectors: dict[str, Callable[[Sequence[Episode]], Episode]] = {f"best of {count} (verifier)": best_attempt}
    if all(len(episode.transitions) == 1 for attempts in first.values() for episode in attempts):
        selectors[f"majority of {count}"] = lambda attempts: majority_vote(
            attempts, role, canonical, (context.run.seed, attempts[0].task.id)
        )
    else:
        context.note(PART, "no majority is taken: an episode of several steps has no one answer")
    for label, choose in selectors.items():
        chosen: Mapping[str, Episode] = {task: choose(attempts) for task, attempts in first.items()}
        rows.append(
            build_row(PART, f"{name}, {label}", compute_chosen_scores(chosen, first, failed, count), context.team)
        )
    return rows


def _mean_tokens(episodes: Sequence[Episode]) -> float:
    """Return the tokens per attempt, as the mean over tasks of each task's mean."""
    groups = group_by_task(episodes).values()
    return sum(sum(map(count_tokens, attempts)) / len(attempts) for attempts in groups) / len(groups) if groups else 0.0


def _get_canonical(run: RunSettings, tasks: Sequence[Task]) -> CanonicalAnswer:
    """Return the environment's ``canonical(task, text)``, or a default."""
    canonical: CanonicalAnswer | None = getattr(run.environment, "canonical", None)
    if canonical is None:
        return normalize_answer
    by_id = {task.id: task for task in tasks}  # tasks of recorded episodes lack their data
    return lambda task, text: canonical(by_id[task.id], text)
