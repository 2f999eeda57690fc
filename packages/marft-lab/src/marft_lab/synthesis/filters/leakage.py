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

from pydantic import Field

from marft.common.types import Action, Episode, Task
from marft.config.settings import Count, Fraction, Names
from marft_envs.env_check.similarity import SimilarityIndex, normalize, task_text
from marft_lab.synthesis.candidates import Candidate, Filter, FilterContext, Rejections

HELD_OUT_REASON = "its task is held out, or nearly one that is"


class Leakage(Filter):
    """Filter that rejects held-out tasks and their near duplicates, and episodes with leaked answers.

    An answer is leaked if an agent read the answer without a legitimate source, or if a forbidden role said the answer.
    """

    min_similarity: Fraction = Field(
        default=0.8,
        description=(
            "minimum similarity of a near duplicate: shared fraction beyond the text common to most tasks; 0: reject "
            "only equal tasks"
        ),
    )
    answer_fields: Names = Field(
        default=("answer", "solution", "target"), description="fields of task data with secret answers, at any depth"
    )
    min_chars: Count = Field(
        default=2, description="minimum characters of an answer; shorter answers occur in every text"
    )
    silent_roles: Names = Field(default=(), description="roles that may state an answer only from a legitimate source")

    def reject(self, candidates: Sequence[Candidate], context: FilterContext) -> Rejections:
        """Return the episodes with leaks."""
        tasks = {candidate.episode.task.id: candidate.episode.task for candidate in candidates}
        held_out_ids = find_near_duplicates([*tasks.values()], context.held_out, self.min_similarity)
        rejections = {
            number: HELD_OUT_REASON for number, one in enumerate(candidates) if one.episode.task.id in held_out_ids
        }
        for number, candidate in enumerate(candidates):
            reason = next(self._find_leaks(candidate, context), "") if number not in rejections else ""
            rejections |= {number: reason} if reason else {}
        return rejections

    def _find_leaks(self, candidate: Candidate, context: FilterContext) -> Iterator[str]:
        answers = [
            value
            for value in field_values(candidate.episode.task.data, self.answer_fields)
            if len(value) >= self.min_chars
        ]
        for action in candidate.episode.actions if answers else ():
            sources = normalize(
                "\n".join([context.role_prompts.get(action.agent, ""), *legitimate_sources(candidate.episode, action)])
            )
            secret = [answer for answer in answers if not contains_answer(answer, sources)]
            prompt = normalize(candidate.prompts.get(action.id, ""))
            output = normalize("\n".join([*action.intermediate_texts, action.agent_text]))
            if any(contains_answer(answer, prompt) for answer in secret):
                yield f"{action.agent} read an answer that nobody had told it"
            if action.agent in self.silent_roles and any(contains_answer(answer, output) for answer in secret):
                yield f"{action.agent} said an answer that it may not"


def find_near_duplicates(tasks: Sequence[Task], held_out: Sequence[Task], min_similarity: float) -> set[str]:
    """Return the ids of tasks equal or similar to a held-out task.

    Args:
        tasks: tasks to check.
        held_out: held-out tasks.
        min_similarity: minimum similarity; 0 only finds equal tasks.
    """
    ids, prompts = {task.id for task in held_out}, Counter(normalize(task.prompt) for task in held_out)
    # for repeated prompts, only the data distinguishes tasks
    unique_prompts = [prompt for prompt, times in prompts.items() if times == 1]
    held_out_keys, similarity = {*map(task_text, held_out)}, SimilarityIndex.from_texts(unique_prompts)
    matches = set[str]()
    for task in tasks:
        nearest = similarity.find_nearest(normalize(task.prompt)) if min_similarity and unique_prompts else None
        if task.id in ids or task_text(task) in held_out_keys or (nearest and nearest[1] >= min_similarity):
            matches.add(task.id)
    return matches


def legitimate_sources(episode: Episode, action: Action) -> Iterator[str]:
    """Yield the legitimate sources of an agent's answer: question, observations, visible texts, and their sources."""
    yield episode.task.prompt
    yield from (t.observation.for_role(action.agent) for t in episode.transitions[: action.step + 1])
    by_id = {earlier.id: earlier for earlier in episode.actions}
    pending, visited = [*action.sees, *action.continues], set[str]()
    while pending:
        name = pending.pop()
        if name in visited or name not in by_id:
            continue
        visited.add(name)
        seen = by_id[name]
        yield from (*seen.intermediate_texts, seen.text, *(call.output for call in seen.calls))
        pending += [*seen.continues, *(seen.sees if name in action.continues else ())]


def field_values(data: object, fields: Sequence[str], within: bool = False) -> Iterator[str]:
    """Yield strings and numbers below given fields, at any depth, in the form of text.

    Args:
        data: data to search.
        fields: names of the fields.
        within: True below a matching field.

    >>> list(field_values({"entry": {"answer": "56", "why": "7"}, "solution": ["a b", 3]}, ["answer", "solution"]))
    ['56', 'a b', '3']
    >>> list(field_values({"questions": [{"answer": "Oslo"}, {"answer": "7"}]}, ["answer"]))
    ['oslo', '7']
    >>> list(field_values({"answer": {"value": "Oslo", "sure": True}, "target": [["7"]]}, ["answer", "target"]))
    ['oslo', '7']
    """
    match data:
        case Mapping():
            for key, value in data.items():
                yield from field_values(value, fields, within or key in fields)
        case list() | tuple():
            for item in data:
                yield from field_values(item, fields, within)
        case str() | int() | float() if within and not isinstance(data, bool):
            yield normalize(str(data))


def contains_answer(answer: str, text: str) -> bool:
    """Return True if a text contains an answer as a separate word or number.

    >>> contains_answer("56", "it is 56."), contains_answer("56", "it is 1560"), contains_answer("56", "it is 0.56")
    (True, False, False)
    """
    return re.search(rf"(?<![\w.-]){re.escape(answer)}(?!\w|[.,]\d)", text) is not None
