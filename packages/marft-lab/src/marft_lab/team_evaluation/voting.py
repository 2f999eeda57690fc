"""Combination of a single agent's attempts at a task: the best attempt, or a majority vote."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

from marft.agents.answers import extract_answer, find_answer, graded_text
from marft.common.types import Episode, Task

CanonicalAnswer = Callable[[Task, str], str | None]


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
