"""Filter of duplicate episodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

from pydantic import Field

from marft.common.types import Episode
from marft.config.parts import FilterPart
from marft_envs.vetting.likeness import jaccard, normal, shingles, whole
from marft_lab.synthesis.candidates import Candidate, Refused, World


class Duplicates(FilterPart):
    """Filter that rejects repetitions of an earlier episode at the same task; the first episode stays.

    Tasks with equal content count as the same task, even with different ids.
    """

    # minimum fraction of shared three-word sequences for duplicates; 1 requires equal words, without case and spacing
    alike: Annotated[float, Field(gt=0, le=1)] = 1.0

    def refused(self, candidates: Sequence[Candidate], world: World) -> Refused:  # noqa: ARG002
        """Return the repeated episodes."""
        refused: dict[int, str] = {}
        kept: dict[str, list[tuple[str, set[str]]]] = {}
        for number, candidate in enumerate(candidates):
            text = said(candidate.episode)
            mine = (text, shingles(text) if self.alike < 1 else set[str]())
            before = kept.setdefault(whole(candidate.episode.task), [])
            if any(self._same(mine, other) for other in before):
                refused[number] = "says what another one says"
            else:
                before.append(mine)
        return refused

    def _same(self, mine: tuple[str, set[str]], other: tuple[str, set[str]]) -> bool:
        return mine[0] == other[0] or (self.alike < 1 and jaccard(mine[1], other[1]) >= self.alike)


def said(episode: Episode) -> str:
    """Return the agents' texts with their roles and tool calls."""
    words = []
    for action in episode.actions:
        calls = [f"{call.name} {call.arguments}" for call in action.calls]
        words.append(normal(" ".join([action.agent, *action.intermediate_texts, action.own_text, *calls])))
    return "\n".join(words)
