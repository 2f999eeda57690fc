"""Experience buffer of a world model: the newest transitions of real episodes, and their file format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt, ValidationError

from marft.common import atomic
from marft.config.load import first_problem
from marft_lab.world_models.interface import Lived, Outcome, Situation
from marft_lab.world_models.trust import Trust

NAME = "world_model.json"


@dataclass(frozen=True, slots=True)
class Experience:
    """Experience buffer: transitions, oldest first, and the range of returns over real episodes.

    Returns are those of the team ("") and of each agent with individual rewards.
    """

    lived: tuple[Lived, ...] = ()
    returns: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def widths(self) -> dict[str, float]:
        """Range of returns, by role."""
        return {role: high - low for role, (low, high) in self.returns.items()} or {"": 0.0}

    def seen(self, returns: Sequence[Mapping[str, float]]) -> Experience:
        """Return the buffer with the returns of more real episodes; a missing role earned 0."""
        found = dict(self.returns)
        for role in sorted({"", *found, *(role for one in returns for role in one)} if returns else ()):
            before = found.get(role, (0.0, 0.0) if self.returns else ())
            known = [*before, *(one.get(role, 0.0) for one in returns)]
            found[role] = min(known), max(known)
        return replace(self, returns=found)

    def with_steps(self, lived: Iterable[Lived], most: int) -> Experience:
        """Return the buffer with more transitions, limited to the newest ``most`` transitions."""
        return replace(self, lived=(*self.lived, *lived)[-most:])


@dataclass(frozen=True, slots=True)
class Kept:
    """State of a world model in a run: experience, trust, and the training step of the last fit."""

    experience: Experience = Experience()
    trust: Trust = Trust()
    fitted: int = 0


class _Row(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    observed: list[NonNegativeInt]  # indices of texts
    done: list[NonNegativeInt]
    action: NonNegativeInt
    following: NonNegativeInt
    reward: FiniteFloat
    agent_rewards: dict[str, FiniteFloat]
    success: bool | None
    first: bool


class _Written(BaseModel):
    """Content of ``world_model.json`` in a checkpoint."""

    model_config = ConfigDict(extra="forbid", strict=True)

    fitted: NonNegativeInt
    on: bool
    steps: list[FiniteFloat]
    rewards: list[FiniteFloat]
    returns: dict[str, list[FiniteFloat]]
    texts: list[str]
    lived: list[_Row]


def write(folder: Path, kept: Kept) -> None:
    """Write the state as ``world_model.json``, with every text once."""
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
    returns = {role: list(both) for role, both in kept.experience.returns.items()}
    written = _Written(
        fitted=kept.fitted, on=kept.trust.on, steps=list(kept.trust.steps), rewards=list(kept.trust.rewards),
        returns=returns, texts=list(numbers), lived=rows,
    )  # fmt: skip
    (folder / NAME).write_bytes(f"{written.model_dump_json()}\n".encode())


def read(folder: Path) -> Kept:
    """Read the state from a folder; an empty state if the file is missing.

    Raises:
        ValueError: unreadable file.
    """
    file = folder / NAME
    if not file.is_file():
        return Kept()
    try:
        written = _Written.model_validate(atomic.read_json(file))
        lived = tuple(_lived(row, written.texts) for row in written.lived)
        returns = {role: (low, high) for role, (low, high) in written.returns.items()}
    except (OSError, ValueError, IndexError) as error:
        why = first_problem(error) if isinstance(error, ValidationError) else error
        raise ValueError(f"{file} cannot be read: {why}; start a new run with --from") from None
    trust = Trust(written.on, tuple(written.steps), tuple(written.rewards))
    return Kept(Experience(lived, returns), trust, written.fitted)


def _lived(row: _Row, texts: Sequence[str]) -> Lived:
    situation = Situation(tuple(texts[n] for n in row.observed), tuple(texts[n] for n in row.done))
    outcome = Outcome(texts[row.following], row.reward, tuple(row.agent_rewards.items()), row.success)
    return Lived(situation, texts[row.action], outcome, row.first)
