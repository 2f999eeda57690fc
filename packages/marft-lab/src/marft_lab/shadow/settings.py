"""Settings of ``[shadow]``: a second team plays a served team's requests, and may be promoted."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.config.sections import Section
from marft.config.settings import Bounded, Count, Fraction, NonNegative, Positive, SmallCount

Rate = Annotated[float, Field(gt=0, lt=1)]


class ShadowSettings(Section):
    """Shadow evaluation: sampled sessions, scores and the test."""

    key: ClassVar[str] = "shadow"

    share: Fraction = 1.0  # fraction of the sessions to play, sampled by session name
    # score of a session: the reward terms and environment of a recipe (--grade), agreement with the served answer, or
    # user feedback (--feedback)
    score: Literal["rewards", "agreement", "feedback"] = "rewards"
    agreement: Literal["exact", "f1", "fuzzy", "math", "numeric"] = "exact"  # comparison of answers
    low: Bounded = 0.0  # minimum score, also of a missing answer; lower scores are clipped
    high: Bounded = 1.0  # maximum score; higher scores are clipped
    margin: NonNegative = 0.0  # tolerated loss of the mean score for a promotion, in units of the score
    # maximum probability of a promotion at a mean difference of at most -margin, over all looks
    false_promotions: Rate = 0.05
    false_stops: Rate = 0.05  # maximum probability of a stop at a mean difference of at least -margin, over all looks
    least: Count = 30  # minimum sessions before a decision
    most: Count = 10_000  # maximum sessions; then the verdict is hold without a decision
    # sessions with a call without a recorded result: count or leave out
    refused: Literal["count", "leave_out"] = "count"
    seconds: Positive = 600.0  # timeout of a session
    tries: SmallCount = 2  # unexpected process exits after which a session counts as failed
    endpoints: bool = False  # True to allow models behind endpoints, which may cost money
    backlog: Count = 256  # maximum pending sessions with --follow; the oldest are dropped and counted
    pause: bool = True  # True to suspend the shadow beside marft serve during requests
    idle_seconds: NonNegative = 0.2  # seconds without a request before the shadow resumes
    # CPU priority beside marft serve: only idle time, low, or normal
    priority: Literal["idle", "low", "normal"] = "idle"
    threads: Annotated[int, Field(ge=1, le=4096)] = 1  # torch CPU threads beside marft serve

    @model_validator(mode="after")
    def _check_bounds(self) -> ShadowSettings:
        if self.low >= self.high:
            raise PydanticCustomError("bounds", "low must be less than high: the least and the most a session is worth")
        if self.margin >= self.high - self.low:
            raise PydanticCustomError(
                "margin", "margin: nothing is worse by as much as all that a session can be worth"
            )
        if self.score != "rewards" and self.margin == 0:
            raise PydanticCustomError(
                "margin",
                "margin: held against the served answer, no other one is better; say by how much agreement may fall "
                "short, such as margin = 0.05",
            )
        if self.most < self.least:
            raise PydanticCustomError("most", "most: fewer than least, so that nothing could ever be said")
        return self
