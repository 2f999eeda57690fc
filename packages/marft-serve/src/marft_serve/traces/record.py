"""What traces say, whatever wrote them: an episode is turns of agents, each one answer of a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from marft.agents.rendering import ChatMessage
from marft.common.texts import one_line
from marft.common.types import Task, Tool, ToolCall
from marft.common.usage import Usage

UNNAMED = "assistant"  # an agent whose name no trace says
MOST_TURNS = 256  # of an episode
MOST_REASONS, MOST_PLACES = 200, 5  # that are kept


class UnreadableError(ValueError):
    """Something in a trace means nothing here; the message says what."""


@dataclass(frozen=True, slots=True)
class TracedTurn:
    """One answer of a model.

    >>> turn = TracedTurn("0", ("planner",), ({"role": "user", "content": "2 + 3 + 4 ="},), "2 + 3 = 5, leaving 5 + 4")
    >>> turn.agent
    'planner'

    Args:
        id: of its own in the episode.
        names: what the trace calls the agent, from the innermost (a node) to the outermost (the agent around it).
        messages: what it was asked, as chat templates take it.
        text: what it said, without thought and calls.
        thought: what it wrote for itself before that.
        calls: of tools, with what they answered.
        unanswered: places of those whose answer the trace does not have.
        tools: that it was offered.
        model: the model's name.
        started: seconds, of any clock that is the same within the episode; 0 where that is not known.
        parents: ids of the turns that it is known to depend on; none: what its messages show.
        weight: 0 where it is not to be trained.
        whole: whether it came to its end, and was not cut off by a limit of tokens.
        place: the file and line that it stands in.
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
        return self.names[0] if self.names else UNNAMED


@dataclass(frozen=True, slots=True)
class TracedEpisode:
    """One attempt at a task, as a trace has it.

    Args:
        turns: in the order in which they began.
        task: the id that the trace gives its task, or the task itself with what grading needs; "" where it says none.
        answer: what was said last.
        reward: what the trace says that it earned.
        seed: of the run that it was played in, where it is one of ours; so is its ``attempt`` at the task. A session
            that is random is the same again under both.
        metadata: what else it says of itself.
        place: the file and line where it begins.
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
    """What was left out, by reason: how often, and where first."""

    def __init__(self) -> None:
        self.skipped: dict[str, tuple[int, list[str]]] = {}

    def skip(self, what: str, why: str, place: str) -> None:
        """Count one.

        Args:
            what: ``"line"``, ``"span"``, ``"turn"``, ``"episode"`` or ``"trace"``.
            place: file and line.
        """
        reason = f"{what}: {one_line(why)}"
        if reason not in self.skipped and len(self.skipped) >= MOST_REASONS:
            reason = f"{what}: other reasons"
        count, places = self.skipped.get(reason, (0, []))
        self.skipped[reason] = (count + 1, [*places, place] if len(places) < MOST_PLACES else places)

    def count(self, what: str = "") -> int:
        """How many were left out, of a kind or of all."""
        return sum(count for reason, (count, _) in self.skipped.items() if not what or reason.startswith(f"{what}:"))

    def lines(self) -> Iterator[str]:
        """``3 × turn: …  (traces.jsonl:7, …)``, the most frequent first."""
        for reason, (count, places) in sorted(self.skipped.items(), key=lambda item: -item[1][0]):
            more = ", …" if count > len(places) else ""
            yield f"{count} × {reason}  ({', '.join(places)}{more})"
