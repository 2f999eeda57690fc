"""Filter of unsuccessful episodes."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from marft.common.types import Episode
from marft.config.settings import Bounded
from marft_lab.synthesis.candidates import Candidate, Filter, FilterContext, Rejections


class Success(Filter):
    """Filter that rejects episodes without a score, without success, or with a low reward."""

    require_success: bool = Field(
        default=True, description="require success; without a known outcome, only the reward counts"
    )
    min_reward: Bounded | None = Field(default=None, description="minimum reward; none: no minimum")

    def reject(self, candidates: Sequence[Candidate], context: FilterContext) -> Rejections:  # noqa: ARG002
        """Return the unsuccessful episodes."""
        reasons = {place: self._rejection_reason(candidate.episode) for place, candidate in enumerate(candidates)}
        return {place: reason for place, reason in reasons.items() if reason}

    def _rejection_reason(self, episode: Episode) -> str:
        if not episode.is_scored:
            return "could not be scored"
        if self.require_success and episode.success is None and self.min_reward is None:
            return "nobody says whether it was solved (give the filter a least reward)"
        if self.require_success and episode.success is False:
            return "not solved"
        if self.min_reward is not None and episode.total_reward < self.min_reward:
            return f"earned less than {self.min_reward:g}"
        return ""
