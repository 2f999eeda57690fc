"""Data types for traces in any format.

An episode has turns of agents, and each turn is one model answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from marft.agents.prompt_messages import ChatMessage
from marft.common.errors import UserError
from marft.common.texts import single_line
from marft.common.types import Task, Tool, ToolCall
from marft.common.usage import Usage

DEFAULT_AGENT_NAME = "assistant"  # name of an agent without a name
MAX_TURNS = 256  # per episode
MAX_REASONS, MAX_LOCATIONS = 200, 5  # maximum numbers of stored reasons, and of places per reason


class UnreadableError(UserError):
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
        reasoning: reasoning before the answer.
        calls: tool calls with their results.
        missing_results: positions of the calls whose result is unknown.
        tools: the offered tools.
        model: name of the model.
        usage: token counts; None if unknown.
        start_time: start in seconds, on one clock per episode; 0 if unknown.
        end_time: end in seconds, on the same clock.
        parents: ids of the turns that this turn depends on; if empty, the messages show the dependencies.
        weight: 0 for a turn that is not trained, else 1.
        complete: False if a token limit cut the answer.
        location: file and line number.
    """

    id: str
    names: tuple[str, ...]
    messages: tuple[ChatMessage, ...]
    text: str
    reasoning: str = ""
    calls: tuple[ToolCall, ...] = ()
    missing_results: tuple[int, ...] = ()
    tools: tuple[Tool, ...] = ()
    model: str = ""
    usage: Usage | None = None
    start_time: float = 0.0
    end_time: float = 0.0
    parents: tuple[str, ...] = ()
    weight: float = 1.0
    complete: bool = True
    location: str = ""

    @property
    def agent(self) -> str:
        """Innermost name of the agent."""
        return self.names[0] if self.names else DEFAULT_AGENT_NAME


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
        location: file and line number of the start.
    """

    id: str
    turns: tuple[TracedTurn, ...]
    task: str | Task = ""
    answer: str = ""
    reward: float | None = None
    seed: int | None = None
    attempt: int | None = None
    metadata: Mapping[str, str] = field(default_factory=dict)
    location: str = ""


class SkipCounter:
    """Counter for skipped items by reason, with their first places."""

    def __init__(self) -> None:
        self.skipped: dict[str, tuple[int, list[str]]] = {}

    def skip(self, kind: str, explanation: str, location: str) -> None:
        """Count a skipped item.

        Args:
            kind: ``"line"``, ``"span"``, ``"turn"``, ``"episode"`` or ``"trace"``.
            explanation: the reason.
            location: file and line number.
        """
        reason = f"{kind}: {single_line(explanation)}"
        if reason not in self.skipped and len(self.skipped) >= MAX_REASONS:
            reason = f"{kind}: other reasons"
        count, locations = self.skipped.get(reason, (0, []))
        self.skipped[reason] = (count + 1, [*locations, location] if len(locations) < MAX_LOCATIONS else locations)

    def count(self, kind: str = "") -> int:
        """Return the number of skipped items, for a kind or in total."""
        return sum(count for reason, (count, _) in self.skipped.items() if not kind or reason.startswith(f"{kind}:"))

    def format_lines(self) -> Iterator[str]:
        """Yield ``3 × turn: …  (traces.jsonl:7, …)`` for each reason, the most frequent first."""
        for reason, (count, locations) in sorted(self.skipped.items(), key=lambda item: -item[1][0]):
            more = ", …" if count > len(locations) else ""
            yield f"{count} × {reason}  ({', '.join(locations)}{more})"
