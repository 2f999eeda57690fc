"""Combination of a single agent's attempts at a task: the best attempt, or a majority vote."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

from marft.agents.answers import find_answer, stated_answer, text_said
from marft.common.types import Episode, Task

Canonical = Callable[[Task, str], str | None]


def stated(task: Task, text: str) -> str | None:  # noqa: ARG001  custom forms may need the task
    """Return the stated answer of a text, without case and extra spacing; None without an answer.

    >>> stated(Task("t", "?"), "So the answer is  **Blue** ."), stated(Task("t", "?"), "  ")
    ('blue', None)
    """
    return " ".join(stated_answer(text).strip("*_ .").split()).casefold() or None


def answer_text(episode: Episode, role: str) -> str:
    """Return an agent's last text."""
    return next((text_said(action) for action in reversed(episode.actions) if action.agent == role), "")


def best(attempts: Sequence[Episode]) -> Episode:
    """Return the first successful attempt, or else the first with the highest reward, like a perfect verifier."""
    return max(attempts, key=lambda episode: (episode.success is True, episode.total_reward))


def voted(attempts: Sequence[Episode], role: str, canonical: Canonical, seed: object) -> Episode:
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
    counted = [not any(marked) or mark for mark in marked]
    answers = [
        canonical(episode.task, text) if counts else None
        for episode, text, counts in zip(attempts, texts, counted, strict=True)
    ]
    votes = Counter(answer for answer in answers if answer is not None)
    if not votes:
        return random.Random(repr(seed)).choice(list(attempts))
    most = max(votes.values())
    chosen = random.Random(repr(seed)).choice(sorted(answer for answer, count in votes.items() if count == most))
    return attempts[answers.index(chosen)]


def affordable(costs: Sequence[Sequence[float]], budget: float) -> int:
    """Return the largest ``n`` whose first ``n`` attempts per task fit the mean budget over tasks.

    The budget limits the mean cost over tasks. The result is 0 if one attempt exceeds the budget.

    Args:
        costs: cost of each attempt in order, for each task.
        budget: maximum mean cost per task.

    >>> affordable([[10, 10, 10], [10, 30, 10]], 25), affordable([[10], [10]], 5)
    (1, 0)
    """
    costs = [each for each in costs if each]
    longest = max(map(len, costs), default=0)
    fits = (n for n in range(longest, 0, -1) if sum(sum(each[:n]) for each in costs) / len(costs) <= budget)
    return next(fits, 0)
