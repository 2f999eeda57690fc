"""Filter of unsuccessful episodes."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Episode
from marft.config.parts import FilterPart
from marft.config.settings import Bounded
from marft_lab.synthesis.candidates import Candidate, Refused, World


class Success(FilterPart):
    """Filter that rejects episodes without a score, without success, or with a low reward."""

    solved: bool = True  # True to require success; without a known outcome only the reward counts
    reward: Bounded | None = None  # minimum reward; none accepts any

    def refused(self, candidates: Sequence[Candidate], world: World) -> Refused:  # noqa: ARG002
        """Return the unsuccessful episodes."""
        found = {place: self._why(candidate.episode) for place, candidate in enumerate(candidates)}
        return {place: why for place, why in found.items() if why}

    def _why(self, episode: Episode) -> str:
        if not episode.scored:
            return "could not be scored"
        if self.solved and episode.success is None and self.reward is None:
            return "nobody says whether it was solved (give the filter a least reward)"
        if self.solved and episode.success is False:
            return "not solved"
        if self.reward is not None and episode.total_reward < self.reward:
            return f"earned less than {self.reward:g}"
        return ""
