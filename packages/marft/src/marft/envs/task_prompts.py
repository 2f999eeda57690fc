"""Check that agents read the task in every step, not only in their first prompt."""

from __future__ import annotations

import re
from collections.abc import Iterable

from marft.common.types import AgentProfile

MIN_TASK_WORDS = 3  # shorter tasks are not checked
MIN_STATED_SHARE = 0.9  # minimum share of the task's words in a prompt that states the task
MIN_REPEATED_SHARE = 0.5  # minimum share of the task's words in a prompt that repeats the task
TASK_LOST_REMEDY = 'set memory = "own" for the agent, or repeat the task in each observation'


def loses_task(task: str, first: str, later: str) -> bool:
    """Return True if the first prompt states the task, and a later prompt does not repeat it.

    Only words count, because the numbers and signs of a state may change with each step.

    >>> task = "Guess my number, from 1 to 10."
    >>> loses_task(task, task, "Wrong. Guess again."), loses_task(task, task, f"{task} It is not 7.")
    (True, False)
    """
    words = _words(task)
    if len(words) < MIN_TASK_WORDS or len(words & _words(first)) < MIN_STATED_SHARE * len(words):
        return False
    return len(words & _words(later)) < MIN_REPEATED_SHARE * len(words)


def roles_that_lose_task(task: str, turns: Iterable[tuple[AgentProfile, str]]) -> list[str]:
    """Return the roles whose first prompt states the task, and whose later prompts do not repeat it.

    Args:
        task: prompt of the task.
        turns: the profile and the observation of each action by an agent without memory, in order.
    """
    first_prompts: dict[str, str] = {}
    roles: dict[str, None] = {}
    for profile, observation in turns:
        prompt = "\n".join((profile.instructions, profile.guidance, observation))
        if loses_task(task, first_prompts.setdefault(profile.role, prompt), prompt):
            roles[profile.role] = None
    return list(roles)


def _words(text: str) -> set[str]:
    return {word.casefold() for word in re.findall(r"[^\W\d_]+", text)}
