"""A second team that plays what a served team was asked, and when it may take its place."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from marft.config.sections import Section
from marft.config.settings import Bounded, Count, Few, Fraction, NotNegative, Positive

Rate = Annotated[float, Field(gt=0, lt=1)]


class ShadowSettings(Section):
    """Which sessions ``marft shadow`` plays again, what they are worth, and what has to be shown."""

    key: ClassVar[str] = "shadow"

    share: Fraction = 1.0  # of the sessions that are played; which ones follows from their names
    # what a session is worth: what terms and environment of a recipe say (--grade), whether the served answer is given
    # again, or what users said of it (--feedback)
    score: Literal["rewards", "agreement", "feedback"] = "rewards"
    agreement: Literal["exact", "f1", "fuzzy", "math", "numeric"] = "exact"  # how answers are compared
    low: Bounded = 0.0  # the least that a session can be worth: what no answer is worth; what is less counts as this
    high: Bounded = 1.0  # the most; what is more counts as this
    margin: NotNegative = 0.0  # by how much it may be worse on average and still be promoted, in the unit of scores
    false_promotions: Rate = 0.05  # how often one that is not better than that is promoted, at most, over all looks
    false_stops: Rate = 0.05  # how often one that is not worse than that is stopped, at most
    least: Count = 30  # sessions before anything is said
    most: Count = 10_000  # sessions after which it is held, where nothing was shown
    refused: Literal["count", "leave_out"] = "count"  # sessions in which a call had no recorded answer
    seconds: Positive = 600.0  # for a session
    tries: Few = 2  # processes that may end with a session, unasked, before that has failed
    endpoints: bool = False  # also ask models behind endpoints, which costs what they cost
    backlog: Count = 256  # sessions that wait while sessions are followed; the oldest are dropped, and counted
    pause: bool = True  # beside marft serve: stand still while any request is answered
    idle_seconds: NotNegative = 0.2  # without a request, after which it goes on
    # beside marft serve: whether it has only the time of the processor that nobody else wants, little, or its share
    priority: Literal["idle", "low", "normal"] = "idle"
    threads: Annotated[int, Field(ge=1, le=4096)] = 1  # CPU threads of torch beside marft serve

    @model_validator(mode="after")
    def _has_room(self) -> ShadowSettings:
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
