"""What did not come to anything."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.types import Episode
from marft.config.parts import FilterPart
from marft.config.settings import Bounded
from marft_lab.synthesis.candidates import Candidate, Refused, World


class Success(FilterPart):
    """Leaves out episodes that could not be scored, that did not solve their task, or that earned too little."""

    solved: bool = True  # only what solved its task; where the environment cannot tell, reward alone counts
    reward: Bounded | None = None  # the least that an episode earned; none given: any

    def refused(self, candidates: Sequence[Candidate], world: World) -> Refused:  # noqa: ARG002
        """Those that failed."""
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
