"""Experience buffer of a world model: the newest transitions of real episodes, and their file format."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, FiniteFloat, NonNegativeInt, ValidationError

from marft.common import atomic
from marft.common.errors import UserError
from marft.config.load import first_problem
from marft_lab.world_models.interface import History, ObservedTransition, Outcome
from marft_lab.world_models.trust import Trust

FILE_NAME = "world_model.json"


@dataclass(frozen=True, slots=True)
class ExperienceBuffer:
    """Experience buffer: transitions, oldest first, and the range of returns over real episodes.

    Returns are those of the team ("") and of each agent with individual rewards.
    """

    transitions: tuple[ObservedTransition, ...] = ()
    returns: Mapping[str, tuple[float, float]] = field(default_factory=dict)

    @property
    def return_ranges(self) -> dict[str, float]:
        """Range of returns, by role."""
        return {role: high - low for role, (low, high) in self.returns.items()} or {"": 0.0}

    def add_returns(self, returns: Sequence[Mapping[str, float]]) -> ExperienceBuffer:
        """Return the buffer with the returns of more real episodes; a missing role earned 0."""
        ranges = dict(self.returns)
        for role in sorted(
            {"", *ranges, *(role for episode_returns in returns for role in episode_returns)} if returns else ()
        ):
            before = ranges.get(role, (0.0, 0.0) if self.returns else ())
            values = [*before, *(episode_returns.get(role, 0.0) for episode_returns in returns)]
            ranges[role] = min(values), max(values)
        return replace(self, returns=ranges)

    def add_transitions(self, transitions: Iterable[ObservedTransition], max_size: int) -> ExperienceBuffer:
        """Return the buffer with more transitions, limited to the newest ``max_size`` transitions."""
        return replace(self, transitions=(*self.transitions, *transitions)[-max_size:])


@dataclass(frozen=True, slots=True)
class WorldModelState:
    """State of a world model in a run: experience, trust, and the training step of the last fit."""

    buffer: ExperienceBuffer = ExperienceBuffer()
    trust: Trust = Trust()
    fit_step: int = 0


class _TransitionRow(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    observed: list[NonNegativeInt]  # indices of texts
    done: list[NonNegativeInt]
    action: NonNegativeInt
    following: NonNegativeInt
    reward: FiniteFloat
    agent_rewards: dict[str, FiniteFloat]
    success: bool | None
    first: bool


class _StateFile(BaseModel):
    """Content of ``world_model.json`` in a checkpoint."""

    model_config = ConfigDict(extra="forbid", strict=True)

    fitted: NonNegativeInt
    on: bool
    steps: list[FiniteFloat]
    rewards: list[FiniteFloat]
    returns: dict[str, list[FiniteFloat]]
    texts: list[str]
    lived: list[_TransitionRow]


def write_state(folder: Path, state: WorldModelState) -> None:
    """Write the state as ``world_model.json``, with every text once."""
    numbers: dict[str, int] = {}

    def number(text: str) -> int:
        return numbers.setdefault(text, len(numbers))

    rows = [
        _TransitionRow(
            observed=[number(text) for text in transition.history.observations],
            done=[number(text) for text in transition.history.actions],
            action=number(transition.action),
            following=number(transition.outcome.next_observation),
            reward=transition.outcome.reward,
            agent_rewards=dict(transition.outcome.agent_rewards),
            success=transition.outcome.success,
            first=transition.is_first,
        )
        for transition in state.buffer.transitions
    ]
    returns = {role: list(both) for role, both in state.buffer.returns.items()}
    content = _StateFile(
        fitted=state.fit_step,
        on=state.trust.enabled,
        steps=list(state.trust.steps),
        rewards=list(state.trust.rewards),
        returns=returns,
        texts=list(numbers),
        lived=rows,
    )
    (folder / FILE_NAME).write_bytes(f"{content.model_dump_json()}\n".encode())


def read_state(folder: Path) -> WorldModelState:
    """Read the state from a folder; an empty state if the file is missing.

    Raises:
        UserError: unreadable file.
    """
    file = folder / FILE_NAME
    if not file.is_file():
        return WorldModelState()
    try:
        content = _StateFile.model_validate(atomic.read_json(file))
        transitions = tuple(_parse_transition(row, content.texts) for row in content.lived)
        returns = {role: (low, high) for role, (low, high) in content.returns.items()}
    except (OSError, ValueError, IndexError) as error:
        reason = first_problem(error) if isinstance(error, ValidationError) else error
        raise UserError(f"{file} cannot be read: {reason}; start a new run with --init-from") from None
    trust = Trust(content.on, tuple(content.steps), tuple(content.rewards))
    return WorldModelState(ExperienceBuffer(transitions, returns), trust, content.fitted)


def _parse_transition(row: _TransitionRow, texts: Sequence[str]) -> ObservedTransition:
    history = History(tuple(texts[n] for n in row.observed), tuple(texts[n] for n in row.done))
    outcome = Outcome(texts[row.following], row.reward, tuple(row.agent_rewards.items()), row.success)
    return ObservedTransition(history, texts[row.action], outcome, row.first)
