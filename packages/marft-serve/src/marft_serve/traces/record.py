"""Data types for traces in any format.

An episode has turns of agents, and each turn is one model answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from marft.agents.rendering import ChatMessage
from marft.common.texts import one_line
from marft.common.types import Task, Tool, ToolCall
from marft.common.usage import Usage

UNNAMED = "assistant"  # name of an agent without a name
MOST_TURNS = 256  # per episode
MOST_REASONS, MOST_PLACES = 200, 5  # maximum numbers of stored reasons, and of places per reason


class UnreadableError(ValueError):
    """Invalid or unsupported part of a trace; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class TracedTurn:
    """One answer of a model.

    >>> turn = TracedTurn("0", ("planner",), ({"role": "user", "content": "2 + 3 + 4 ="},), "2 + 3 = 5, leaving 5 + 4")
    >>> turn.agent
    'planner'

    Args:
        id: id of the turn, unique in the episode.
        names: names of the agent, from the innermost (a node) to the outermost (the enclosing agent).
        messages: the prompt, as chat messages.
        text: the answer, without reasoning and tool calls.
        thought: reasoning before the answer.
        calls: tool calls with their results.
        unanswered: positions of the calls whose result is unknown.
        tools: the offered tools.
        model: name of the model.
        usage: token counts; None if unknown.
        started: start in seconds, on one clock per episode; 0 if unknown.
        ended: end in seconds, on the same clock.
        parents: ids of the turns that this turn depends on; if empty, the messages show the dependencies.
        weight: 0 for a turn that is not trained, else 1.
        whole: False if a token limit cut the answer.
        place: file and line number.
    """

    id: str
    names: tuple[str, ...]
    messages: tuple[ChatMessage, ...]
    text: str
    thought: str = ""
    calls: tuple[ToolCall, ...] = ()
    unanswered: tuple[int, ...] = ()
    tools: tuple[Tool, ...] = ()
    model: str = ""
    usage: Usage | None = None
    started: float = 0.0
    ended: float = 0.0
    parents: tuple[str, ...] = ()
    weight: float = 1.0
    whole: bool = True
    place: str = ""

    @property
    def agent(self) -> str:
        """Innermost name of the agent."""
        return self.names[0] if self.names else UNNAMED


@dataclass(frozen=True, slots=True)
class TracedEpisode:
    """One attempt at a task.

    Args:
        id: id of the episode.
        turns: turns in order of their start.
        task: id of the task, or the whole task with its data for grading; "" if unknown.
        answer: the final message.
        reward: recorded reward; None if unknown.
        seed: seed of the MARFT run that recorded the trace; None for other traces. With ``attempt``, it reproduces a
            random session.
        attempt: number of the attempt at the task in that run; None for other traces.
        metadata: further recorded data.
        place: file and line number of the start.
    """

    id: str
    turns: tuple[TracedTurn, ...]
    task: str | Task = ""
    answer: str = ""
    reward: float | None = None
    seed: int | None = None
    attempt: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    place: str = ""


class Tally:
    """Counter for skipped items by reason, with their first places."""

    def __init__(self) -> None:
        self.skipped: dict[str, tuple[int, list[str]]] = {}

    def skip(self, what: str, why: str, place: str) -> None:
        """Count a skipped item.

        Args:
            what: ``"line"``, ``"span"``, ``"turn"``, ``"episode"`` or ``"trace"``.
            why: the reason.
            place: file and line number.
        """
        reason = f"{what}: {one_line(why)}"
        if reason not in self.skipped and len(self.skipped) >= MOST_REASONS:
            reason = f"{what}: other reasons"
        count, places = self.skipped.get(reason, (0, []))
        self.skipped[reason] = (count + 1, [*places, place] if len(places) < MOST_PLACES else places)

    def count(self, what: str = "") -> int:
        """Return the number of skipped items, for a kind or in total."""
        return sum(count for reason, (count, _) in self.skipped.items() if not what or reason.startswith(f"{what}:"))

    def lines(self) -> Iterator[str]:
        """Yield ``3 × turn: …  (traces.jsonl:7, …)`` for each reason, the most frequent first."""
        for reason, (count, places) in sorted(self.skipped.items(), key=lambda item: -item[1][0]):
            more = ", …" if count > len(places) else ""
            yield f"{count} × {reason}  ({', '.join(places)}{more})"
