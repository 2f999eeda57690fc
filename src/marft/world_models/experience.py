"""What a world model is fitted to: the newest steps of real episodes, and how they are written."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt, ValidationError

from marft import atomic
from marft.config.load import first_problem
from marft.world_models.interface import Lived, Outcome, Situation
from marft.world_models.trust import Trust

NAME = "world_model.json"


@dataclass(frozen=True, slots=True)
class Experience:
    """Steps that were lived, oldest first, and the lowest and highest return of a real episode so far."""

    lived: tuple[Lived, ...] = ()
    returns: tuple[float, float] | None = None

    @property
    def width(self) -> float:
        """How far returns differ."""
        return self.returns[1] - self.returns[0] if self.returns else 0.0

    def seen(self, returns: Sequence[float]) -> Experience:
        """With the returns of some more real episodes."""
        known = [*(self.returns or ()), *returns]
        return replace(self, returns=(min(known), max(known))) if known else self

    def with_steps(self, lived: Iterable[Lived], most: int) -> Experience:
        """With some more steps; of all of them the newest stay."""
        return replace(self, lived=(*self.lived, *lived)[-most:])


@dataclass(frozen=True, slots=True)
class Kept:
    """Where a run stands with its world model: fitted after step ``fitted`` to what was lived, and believed or not."""

    experience: Experience = Experience()
    trust: Trust = Trust()
    fitted: int = 0


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    observed: list[NonNegativeInt]  # numbers of texts
    done: list[NonNegativeInt]
    action: NonNegativeInt
    following: NonNegativeInt
    reward: FiniteFloat
    agent_rewards: dict[str, FiniteFloat]
    success: bool | None
    first: bool


class _Written(BaseModel):
    """What ``world_model.json`` of a checkpoint holds."""

    model_config = ConfigDict(extra="forbid", strict=True)

    fitted: NonNegativeInt
    on: bool
    steps: list[FiniteFloat]
    rewards: list[FiniteFloat]
    returns: list[FiniteFloat] | None
    texts: list[str]
    lived: list[_Row]


def write(folder: Path, kept: Kept) -> None:
    """Write it as ``world_model.json``, every text once."""
    numbers: dict[str, int] = {}

    def number(text: str) -> int:
        return numbers.setdefault(text, len(numbers))

    rows = [
        _Row(
            observed=[number(text) for text in one.situation.observed],
            done=[number(text) for text in one.situation.done],
            action=number(one.action),
            following=number(one.outcome.following),
            reward=one.outcome.reward,
            agent_rewards=dict(one.outcome.agent_rewards),
            success=one.outcome.success,
            first=one.first,
        )
        for one in kept.experience.lived
    ]
    returns = kept.experience.returns
    written = _Written(
        fitted=kept.fitted, on=kept.trust.on, steps=list(kept.trust.steps), rewards=list(kept.trust.rewards),
        returns=list(returns) if returns else None, texts=list(numbers), lived=rows,
    )  # fmt: skip
    (folder / NAME).write_text(written.model_dump_json() + "\n", encoding="utf-8")


def read(folder: Path) -> Kept:
    """What was written there; the beginning where nothing was.

    Raises:
        ValueError: it cannot be read.
    """
    file = folder / NAME
    if not file.is_file():
        return Kept()
    try:
        written = _Written.model_validate(atomic.read_json(file))
        lived = tuple(_lived(row, written.texts) for row in written.lived)
        low, high = written.returns or (0.0, 0.0)
    except (OSError, ValueError, IndexError) as error:
        why = first_problem(error) if isinstance(error, ValidationError) else error
        raise ValueError(f"{file} cannot be read: {why}; start a new run with --from") from None
    trust = Trust(written.on, tuple(written.steps), tuple(written.rewards))
    return Kept(Experience(lived, (low, high) if written.returns else None), trust, written.fitted)


def _lived(row: _Row, texts: Sequence[str]) -> Lived:
    situation = Situation(tuple(texts[n] for n in row.observed), tuple(texts[n] for n in row.done))
    own = tuple(sorted(row.agent_rewards.items()))
    outcome = Outcome(texts[row.following], row.reward, own, row.success)
    return Lived(situation, texts[row.action], outcome, row.first)
