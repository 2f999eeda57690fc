"""Settings of ``[shadow]``: a second team plays a served team's requests, and may be promoted."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.config.sections import Section
from marft.config.settings import Bounded, Count, Fraction, NonNegative, Positive

Rate = Annotated[float, Field(gt=0, lt=1)]


class ShadowSettings(Section):
    """Shadow evaluation: sampled sessions, scores and the test."""

    key: ClassVar[str] = "shadow"

    share: Fraction = 1.0  # fraction of the sessions to play, sampled by session name
    # score of a session: the reward terms and environment of a recipe (--grade), agreement with the served answer, or
    # user feedback (--feedback)
    score: Literal["rewards", "agreement", "feedback"] = "rewards"
    agreement: Literal["exact", "f1", "fuzzy", "math", "numeric"] = "exact"  # comparison of answers
    min_score: Bounded = 0.0  # minimum score, also of a missing answer; lower scores are clipped
    max_score: Bounded = 1.0  # maximum score; higher scores are clipped
    margin: NonNegative = 0.0  # tolerated loss of the mean score for a promotion, in units of the score
    # maximum probability of a promotion at a mean difference of at most -margin, over all looks
    false_promotions: Rate = 0.05
    false_stops: Rate = 0.05  # maximum probability of a stop at a mean difference of at least -margin, over all looks
    min_sessions: Count = 30  # minimum sessions before a decision
    max_sessions: Count = 10_000  # maximum sessions; then the verdict is hold without a decision
    # sessions with a call without a recorded result: count or leave out
    refused: Literal["count", "skip"] = "count"
    timeout_seconds: Positive = 600.0  # timeout of a session
    # retries of a session after an unexpected process exit; then the session counts as failed
    max_retries: Annotated[int, Field(ge=0, le=10_000)] = 1
    allow_endpoints: bool = False  # True to allow models behind endpoints, which may cost money
    backlog: Count = 256  # maximum pending sessions with --follow; the oldest are dropped and counted
    pause: bool = True  # True to suspend the shadow beside marft serve during requests
    idle_seconds: NonNegative = 0.2  # seconds without a request before the shadow resumes
    # CPU priority beside marft serve: only idle time, low, or normal
    priority: Literal["idle", "low", "normal"] = "idle"
    threads: Annotated[int, Field(ge=1, le=4096)] = 1  # torch CPU threads beside marft serve

    @model_validator(mode="after")
    def _check_bounds(self) -> ShadowSettings:
        if self.min_score >= self.max_score:
            raise PydanticCustomError(
                "bounds", "min_score must be less than max_score: the least and the most a session is worth"
            )
        if self.margin >= self.max_score - self.min_score:
            raise PydanticCustomError(
                "margin", "margin: nothing is worse by as much as all that a session can be worth"
            )
        if self.score != "rewards" and self.margin == 0:
            raise PydanticCustomError(
                "margin",
                "margin: held against the served answer, no other one is better; say by how much agreement may fall "
                "short, such as margin = 0.05",
            )
        if self.max_sessions < self.min_sessions:
            raise PydanticCustomError(
                "max_sessions", "max_sessions: fewer than min_sessions, so that nothing could ever be said"
            )
        return self
