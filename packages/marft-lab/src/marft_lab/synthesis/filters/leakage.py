"""What would teach what may not be known: tasks that are held out, and answers that nobody had told.

An answer has leaked to an agent when it stands in what the agent read, and in nothing that accounts for it: neither the
question, nor what the environment showed this agent up to then, nor what the agents said that it had seen, nor what the
recipe tells its role whatever the task. So what a privileged teacher knows beforehand, or a message that went to the
wrong agent, is found, and an answer that was worked out is not.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marft.common.types import Action, Episode, Task
from marft.config.parts import FilterPart
from marft.config.settings import Count, Fraction, Names
from marft_envs.vetting.likeness import Likeness, normal, whole
from marft_lab.synthesis.candidates import Candidate, Refused, World

HELD_OUT = "its task is held out, or nearly one that is"


class Leakage(FilterPart):
    """Leaves out episodes of tasks that are held out, or nearly, and those in which an agent read an answer that nobody
    had told it, or said one that it may not."""

    # share of what two tasks have in common, beyond what most tasks have, from which on one is nearly the other; 0:
    # only what is the same is left out
    alike: Fraction = 0.8
    answers: Names = (
        "answer",
        "solution",
        "target",
    )  # fields of tasks' data, at any depth, that nobody may be told
    shortest: Count = 2  # characters of an answer; a shorter one stands in any text
    silent: Names = ()  # roles that may not say an answer either, but one that they were told

    def refused(self, candidates: Sequence[Candidate], world: World) -> Refused:
        """Those that would teach too much."""
        tasks = {candidate.episode.task.id: candidate.episode.task for candidate in candidates}
        near = nearly_held_out([*tasks.values()], world.held_out, self.alike)
        refused = {number: HELD_OUT for number, one in enumerate(candidates) if one.episode.task.id in near}
        for number, candidate in enumerate(candidates):
            why = next(self._leaks(candidate, world), "") if number not in refused else ""
            refused |= {number: why} if why else {}
        return refused

    def _leaks(self, candidate: Candidate, world: World) -> Iterator[str]:
        answers = [one for one in values_of(candidate.episode.task.data, self.answers) if len(one) >= self.shortest]
        for action in candidate.episode.actions if answers else ():
            known = normal("\n".join([world.told.get(action.agent, ""), *accounted(candidate.episode, action)]))
            secret = [answer for answer in answers if not stands_in(answer, known)]
            read = normal(candidate.read.get(action.id, ""))
            said = normal("\n".join([*action.intermediate_texts, action.own_text]))
            if any(stands_in(answer, read) for answer in secret):
                yield f"{action.agent} read an answer that nobody had told it"
            if action.agent in self.silent and any(stands_in(answer, said) for answer in secret):
                yield f"{action.agent} said an answer that it may not"


def nearly_held_out(tasks: Sequence[Task], held_out: Sequence[Task], alike: float) -> set[str]:
    """The ids of tasks that are among those held out, by id or by content, or nearly.

    Args:
        alike: share of what two have in common; 0 looks at what is the same alone.
    """
    ids, prompts = {task.id for task in held_out}, Counter(normal(task.prompt) for task in held_out)
    telling = [prompt for prompt, times in prompts.items() if times == 1]  # of others data say which task it is
    same, likeness = {*map(whole, held_out)}, Likeness.of(telling)
    found = set[str]()
    for task in tasks:
        nearest = likeness.nearest(normal(task.prompt)) if alike and telling else None
        if task.id in ids or whole(task) in same or (nearest and nearest[1] >= alike):
            found.add(task.id)
    return found


def accounted(episode: Episode, action: Action) -> Iterator[str]:
    """All that an agent may have an answer from: question, observations, what it saw, and what that had seen."""
    yield episode.task.prompt
    yield from (t.observation.seen_by(action.agent) for t in episode.transitions[: action.step + 1])
    by_id = {one.id: one for one in episode.actions}
    waiting, met = [*action.sees, *action.continues], set[str]()
    while waiting:
        name = waiting.pop()
        if name in met or name not in by_id:
            continue
        met.add(name)
        seen = by_id[name]
        yield from (*seen.intermediate_texts, seen.text, *(call.output for call in seen.calls))
        waiting += [*seen.continues, *(seen.sees if name in action.continues else ())]


def values_of(data: Any, fields: Sequence[str], within: bool = False) -> Iterator[str]:
    """Words and numbers under these fields, at any depth, as they would stand in a text.

    Args:
        within: it is below one of them already.

    >>> list(values_of({"entry": {"answer": "56", "why": "7"}, "solution": ["a b", 3]}, ["answer", "solution"]))
    ['56', 'a b', '3']
    >>> list(values_of({"questions": [{"answer": "Oslo"}, {"answer": "7"}]}, ["answer"]))
    ['oslo', '7']
    >>> list(values_of({"answer": {"value": "Oslo", "sure": True}, "target": [["7"]]}, ["answer", "target"]))
    ['oslo', '7']
    """
    match data:
        case Mapping():
            for key, value in data.items():
                yield from values_of(value, fields, within or key in fields)
        case list() | tuple():
            for one in data:
                yield from values_of(one, fields, within)
        case str() | int() | float() if within and not isinstance(data, bool):
            yield normal(str(data))


def stands_in(answer: str, text: str) -> bool:
    """Whether a text holds an answer as words or a number of its own.

    >>> stands_in("56", "it is 56."), stands_in("56", "it is 1560"), stands_in("56", "it is 0.56")
    (True, False, False)
    """
    return re.search(rf"(?<![\w.-]){re.escape(answer)}(?!\w|[.,]\d)", text) is not None
