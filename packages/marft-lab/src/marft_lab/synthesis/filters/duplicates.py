"""Filter of duplicate episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from marft.common.types import Episode
from marft_envs.env_check.similarity import jaccard, normalize, shingles, task_text
from marft_lab.synthesis.candidates import Candidate, Filter, FilterContext, Rejections


class Duplicates(Filter):
    """Filter that rejects repetitions of an earlier episode at the same task; the first episode stays.

    Tasks with equal content count as the same task, even with different ids.
    """

    min_similarity: Annotated[float, Field(gt=0, le=1)] = Field(
        default=1.0,
        description=(
            "minimum share of common three-word sequences in duplicates; 1: equal words, apart from case and spacing"
        ),
    )

    def reject(self, candidates: Sequence[Candidate], context: FilterContext) -> Rejections:  # noqa: ARG002
        """Return the repeated episodes."""
        rejections: dict[int, str] = {}
        seen: dict[str, list[tuple[str, set[str]]]] = {}
        for number, candidate in enumerate(candidates):
            text = normalized_text(candidate.episode)
            current = (text, shingles(text) if self.min_similarity < 1 else set[str]())
            before = seen.setdefault(task_text(candidate.episode.task), [])
            if any(self._is_duplicate(current, earlier) for earlier in before):
                rejections[number] = "says what another one says"
            else:
                before.append(current)
        return rejections

    def _is_duplicate(self, current: tuple[str, set[str]], earlier: tuple[str, set[str]]) -> bool:
        return current[0] == earlier[0] or (
            self.min_similarity < 1 and jaccard(current[1], earlier[1]) >= self.min_similarity
        )


def normalized_text(episode: Episode) -> str:
    """Return the agents' texts with their roles and tool calls."""
    words = []
    for action in episode.actions:
        calls = [f"{call.name} {call.arguments}" for call in action.calls]
        words.append(normalize(" ".join([action.agent, *action.intermediate_texts, action.agent_text, *calls])))
    return "\n".join(words)
