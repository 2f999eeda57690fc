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

    share: Fraction = Field(default=1.0, description="fraction of the sessions to play, sampled by session name")
    score: Literal["rewards", "agreement", "feedback"] = Field(
        default="rewards",
        description=(
            "score of a session: reward terms and environment of a recipe (--grade), agreement with the served answer, "
            "or user feedback (--feedback)"
        ),
    )
    agreement: Literal["exact", "f1", "fuzzy", "math", "numeric"] = Field(
        default="exact", description="comparison of answers"
    )
    min_score: Bounded = Field(
        default=0.0, description="minimum score, also of a missing answer; lower scores are clipped"
    )
    max_score: Bounded = Field(default=1.0, description="maximum score; higher scores are clipped")
    margin: NonNegative = Field(
        default=0.0, description="tolerated loss of the mean score for a promotion, in units of the score"
    )
    false_promotions: Rate = Field(
        default=0.05,
        description="maximum probability of a promotion at a mean difference of at most -margin, over all looks",
    )
    false_stops: Rate = Field(
        default=0.05,
        description="maximum probability of a stop at a mean difference of at least -margin, over all looks",
    )
    min_sessions: Count = Field(default=30, description="minimum sessions before a decision")
    max_sessions: Count = Field(
        default=10_000, description="maximum sessions; then the verdict is hold without a decision"
    )
    refused: Literal["count", "skip"] = Field(
        default="count", description="sessions with a call without a recorded result: count or leave out"
    )
    timeout_seconds: Positive = Field(default=600.0, description="timeout of a session")
    max_retries: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=1,
        description="retries of a session after an unexpected process exit; then the session counts as failed",
    )
    allow_endpoints: bool = Field(default=False, description="allow models behind endpoints, at possible cost")
    backlog: Count = Field(
        default=256, description="maximum pending sessions with --follow; the oldest are dropped and counted"
    )
    pause: bool = Field(default=True, description="suspend the shadow beside marft serve during requests")
    resume_after_idle_seconds: NonNegative = Field(
        default=0.2, description="seconds without a request before the shadow resumes"
    )
    priority: Literal["idle", "low", "normal"] = Field(
        default="idle", description="CPU priority beside marft serve: only idle time, low, or normal"
    )
    threads: Annotated[int, Field(ge=1, le=4096)] = Field(default=1, description="torch CPU threads beside marft serve")

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
