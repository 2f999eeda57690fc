"""Several attempts of one agent at a task, made into one: the best, or that whose answer most of them gave."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

from marft.agents.answers import find_answer, stated_answer, text_said
from marft.common.types import Episode, Task

Canonical = Callable[[Task, str], str | None]


def stated(task: Task, text: str) -> str | None:  # noqa: ARG001  a canonical form of one's own may need it
    """What a text states as its answer, but for spacing and capitals; None where there is nothing.

    >>> stated(Task("t", "?"), "So the answer is  **Blue** ."), stated(Task("t", "?"), "  ")
    ('blue', None)
    """
    return " ".join(stated_answer(text).strip("*_ .").split()).casefold() or None


def answer_text(episode: Episode, role: str) -> str:
    """The last thing that an agent said."""
    return next((text_said(action) for action in reversed(episode.actions) if action.agent == role), "")


def best(attempts: Sequence[Episode]) -> Episode:
    """The attempt that solved the task, or else earned most: what a perfect verifier would choose. The first of
    several."""
    return max(attempts, key=lambda episode: (episode.success is True, episode.total_reward))


def voted(attempts: Sequence[Episode], role: str, canonical: Canonical, seed: object) -> Episode:
    r"""The first attempt that gives the most frequent answer (self-consistency, Wang et al. 2023).

    An attempt that gives none has no vote. Where some mark their answer (``\boxed{}``, ``<answer>``), those that do not
    have none either.

    Args:
        seed: draws among answers that are equally frequent.
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
    """The largest ``n`` for which the first ``n`` attempts at a task cost no more than the budget, on average over the
    tasks; 0 where one does.

    Args:
        costs: of the attempts at each task, in their order.

    >>> affordable([[10, 10, 10], [10, 30, 10]], 25), affordable([[10], [10]], 5)
    (1, 0)
    """
    costs = [each for each in costs if each]
    longest = max(map(len, costs), default=0)
    fits = (n for n in range(longest, 0, -1) if sum(sum(each[:n]) for each in costs) / len(costs) <= budget)
    return next(fits, 0)
