"""Filter of leaks: held-out tasks, and answers without a legitimate source.

An answer leaks to an agent if it is in the agent's prompt without a legitimate source. Legitimate sources are the
question, the agent's observations so far, texts of agents visible to the agent, and the recipe's task-independent
prompt of the role. So the filter finds knowledge of a privileged teacher, and messages to the wrong agent. Computed
answers pass.
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
    """Filter that rejects held-out tasks and their near duplicates, and episodes with leaked answers.

    An answer is leaked if an agent read the answer without a legitimate source, or if a forbidden role said the answer.
    """

    # minimum similarity of a near duplicate, as the shared fraction beyond the text common to most tasks; 0 only
    # rejects equal tasks
    alike: Fraction = 0.8
    answers: Names = (
        "answer",
        "solution",
        "target",
    )  # fields of task data with secret answers, at any depth
    shortest: Count = 2  # minimum characters of an answer; shorter answers occur in any text
    silent: Names = ()  # roles that must not say an answer either, unless a legitimate source gave it to them

    def refused(self, candidates: Sequence[Candidate], world: World) -> Refused:
        """Return the episodes with leaks."""
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
    """Return the ids of tasks equal or similar to a held-out task.

    Args:
        tasks: tasks to check.
        held_out: held-out tasks.
        alike: minimum similarity; 0 only finds equal tasks.
    """
    ids, prompts = {task.id for task in held_out}, Counter(normal(task.prompt) for task in held_out)
    # for repeated prompts, only the data distinguishes tasks
    telling = [prompt for prompt, times in prompts.items() if times == 1]
    same, likeness = {*map(whole, held_out)}, Likeness.of(telling)
    found = set[str]()
    for task in tasks:
        nearest = likeness.nearest(normal(task.prompt)) if alike and telling else None
        if task.id in ids or whole(task) in same or (nearest and nearest[1] >= alike):
            found.add(task.id)
    return found


def accounted(episode: Episode, action: Action) -> Iterator[str]:
    """Yield the legitimate sources of an agent's answer: question, observations, visible texts, and their sources."""
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
    """Yield strings and numbers below given fields, at any depth, in the form of text.

    Args:
        data: data to search.
        fields: names of the fields.
        within: True below a matching field.

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
    """Return True if a text contains an answer as a separate word or number.

    >>> stands_in("56", "it is 56."), stands_in("56", "it is 1560"), stands_in("56", "it is 0.56")
    (True, False, False)
    """
    return re.search(rf"(?<![\w.-]){re.escape(answer)}(?!\w|[.,]\d)", text) is not None
