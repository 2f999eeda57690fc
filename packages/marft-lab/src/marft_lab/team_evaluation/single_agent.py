"""Single-agent comparison at the team's token budget: as many attempts per task as the team's tokens pay for."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from marft.agents.answers import extract_answer, find_answer, graded_text
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

CanonicalAnswer = Callable[[Task, str], str | None]
PART = "single"


def normalize_answer(task: Task, text: str) -> str | None:  # noqa: ARG001  custom forms may need the task
    """Return the stated answer of a text, without case and extra spacing; None without an answer.

    >>> normalize_answer(Task("t", "?"), "So the answer is  **Blue** ."), normalize_answer(Task("t", "?"), "  ")
    ('blue', None)
    """
    return " ".join(extract_answer(text).strip("*_ .").split()).casefold() or None


def answer_text(episode: Episode, role: str) -> str:
    """Return an agent's last text."""
    return next((graded_text(action) for action in reversed(episode.actions) if action.agent == role), "")


def best_attempt(attempts: Sequence[Episode]) -> Episode:
    """Return the first successful attempt, or else the first with the highest reward, like a perfect verifier."""
    return max(attempts, key=lambda episode: (episode.success is True, episode.total_reward))


def majority_vote(attempts: Sequence[Episode], role: str, canonical: CanonicalAnswer, seed: object) -> Episode:
    r"""Return the first attempt with the most frequent answer (self-consistency, Wang et al. 2023).

    Attempts without an answer have no vote. If some attempts mark their answer (``\boxed{}``, ``<answer>``), attempts
    without a mark have no vote either. Without any vote, a random attempt is returned.

    Args:
        attempts: attempts at one task.
        role: role of the agent.
        canonical: function that returns the canonical form of an answer.
        seed: seed of the draw among equally frequent answers.
    """
    texts = [answer_text(episode, role) for episode in attempts]
    marked = [bool(find_answer(text)) for text in texts]
    can_vote = [not any(marked) or mark for mark in marked]
    answers = [
        canonical(episode.task, text) if has_vote else None
        for episode, text, has_vote in zip(attempts, texts, can_vote, strict=True)
    ]
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return random.Random(repr(seed)).choice(list(attempts))
    max_votes = max(votes.values())
    chosen = random.Random(repr(seed)).choice(sorted(answer for answer, count in votes.items() if count == max_votes))
    return attempts[answers.index(chosen)]


def max_affordable(costs: Sequence[Sequence[float]], budget: float) -> int:
    """Return the largest ``n`` whose first ``n`` attempts per task fit the mean budget over tasks.

    The budget limits the mean cost over tasks. The result is 0 if one attempt exceeds the budget.

    Args:
        costs: cost of each attempt in order, for each task.
        budget: maximum mean cost per task.

    >>> max_affordable([[10, 10, 10], [10, 30, 10]], 25), max_affordable([[10], [10]], 5)
    (1, 0)
    """
    costs = [task_costs for task_costs in costs if task_costs]
    longest = max(map(len, costs), default=0)
    fits = (n for n in range(longest, 0, -1) if sum(sum(task_costs[:n]) for task_costs in costs) / len(costs) <= budget)
    return next(fits, 0)


def answer_role(run: RunSettings) -> str:
    """Return the role of the answering agent: the organization's answering role, or the last agent that answers."""
    answer_roles = [agent.role for agent in run.agents if agent.answers]
    return run.team.answer_only_role(answer_roles) or answer_roles[-1]


def find_problem(run: RunSettings) -> str:
    """Return the reason why a team has no single-agent arm; "" for a team with such an arm."""
    if run.team.writes_prompts:
        return "the team is a program, whose agents have no prompts but those that it makes: none can be asked alone"
    return ""


def build_single_agent_variants(run: RunSettings, weights: Mapping[str, str]) -> dict[str, TeamVariant]:
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
        for name, variant in build_single_agent_variants(context.run, context.variant.weights).items()
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
    episodes = [*first_episodes]
    if extra_count > 0:
        episodes += player.play(replace(variant, first_sample=context.variant.samples, samples=extra_count))
    groups = {task: sorted(attempts, key=lambda e: e.sample) for task, attempts in group_by_task(episodes).items()}
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
    rows = [build_row(PART, name, compute_scores(episodes), context.team)]
    if count < 2:
        return rows
    canonical = _get_canonical(context.run, player.tasks)
    first = {task: attempts[:count] for task, attempts in groups.items()}
    failed = sum(not episode.is_scored for episode in episodes)
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
