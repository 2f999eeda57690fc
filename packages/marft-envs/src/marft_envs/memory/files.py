"""Loading of public benchmark files: LoCoMo and LongMemEval."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from marft.agents.environment import Split
from marft.common.atomic import read_text
from marft.common.texts import storable
from marft.common.types import Task
from marft.envs.contents import CONTENT, content_of
from marft.envs.text_tables import twice_in
from marft.rewards.comparing import words_of
from marft_envs.memory.conversations import Chunk, Kind, Question
from marft_envs.memory.grading import NOT_MENTIONED

Layout = Literal["locomo", "longmemeval"]
LOCOMO_KINDS: Mapping[int, Kind] = {
    1: "multi",
    2: "temporal",
    3: "single",
    4: "single",
    5: "abstention",
}  # 3: open domain
LONGMEMEVAL_KINDS: Mapping[str, Kind] = {
    "single-session-user": "single",
    "single-session-assistant": "single",
    "multi-session": "multi",
    "temporal-reasoning": "temporal",
    "knowledge-update": "update",
}
RUBRIC = "single-session-preference"  # its answers are rubrics for a model judge
_SESSION = re.compile(r"^session_(\d+)$")


@dataclass(frozen=True, slots=True)
class Recorded:
    """Conversation from a file, with its questions."""

    name: str
    chunks: tuple[Chunk, ...]
    questions: tuple[Question, ...]


def read_conversations(path: str, layout: Layout, lines: int) -> list[Recorded]:
    """Read the conversations in a file.

    Args:
        path: path of the file.
        layout: layout of the file.
        lines: maximum lines of a session per chunk.

    Raises:
        ValueError: the file cannot be read, or has another layout.
    """
    try:
        rows = json.loads(read_text(path))
    except OSError as error:
        raise ValueError(f"environment: cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ValueError(f"environment: {path} is no JSON in UTF-8: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise ValueError(f"environment: {path} holds no list of conversations, as {layout} has them")
    read: Callable[[Any, int], Recorded | None] = _locomo if layout == "locomo" else _longmemeval
    found = []
    for number, row in enumerate(rows, 1):
        try:
            found.append(read(row, lines))  # None if it cannot be graded
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            what = f"has no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(
                f"environment: {path}, conversation {number} is not laid out as {layout}: {what}; is layout right?"
            ) from error
    conversations = [one for one in found if one is not None]
    twice = twice_in(one.name for one in conversations)
    if twice is not None:
        raise ValueError(f"environment: {path} has two conversations {twice!r}; take one out, or rename it")
    return conversations


def tasks_by_split(
    conversations: Sequence[Recorded], questions: int, kinds: Collection[str], retrieved: bool, written: bool, path: str
) -> dict[Split, list[Task]]:
    """Build tasks by split, each with up to ``questions`` questions about a single conversation.

    Conversations are ordered by a hash of their text. A tenth of them, at least one, is for validation, and as many for
    test. The rest is for training.

    Args:
        conversations: conversations of the file.
        questions: maximum questions per task.
        kinds: kinds of questions to use.
        retrieved: True if picking notes takes a step.
        written: True if writing notes on a chunk takes a step.
        path: path of the file, for error messages.

    Raises:
        ValueError: there are fewer than three conversations.
    """
    if len(conversations) < 3:
        raise ValueError(f"environment: {path} has {len(conversations)} conversations: a split each takes three")
    ordered = sorted(conversations, key=lambda one: _number_of(one.chunks))
    held_out = -(-len(ordered) // 10)
    parts: dict[Split, Sequence[Recorded]] = {
        "validation": ordered[:held_out], "test": ordered[held_out : 2 * held_out], "train": ordered[2 * held_out :]
    }  # fmt: skip
    return {split: list(_tasks(part, questions, kinds, retrieved, written)) for split, part in parts.items()}


def _tasks(
    part: Sequence[Recorded], count: int, kinds: Collection[str], retrieved: bool, written: bool
) -> Iterator[Task]:
    for one in part:
        asked = [question for question in one.questions if question.kind in kinds]
        content = content_of(*(chunk.text for chunk in one.chunks))
        for first in range(0, len(asked), count):
            some = asked[first : first + count]
            steps = (len(one.chunks) if written else 0) + len(some) * (2 if retrieved else 1)
            data = {
                "conversation": one.name, CONTENT: content, "fewest_steps": steps,
                "questions": [question.data() for question in some],
            }  # fmt: skip
            yield Task(
                f"{one.name}/{first // count}", "\n".join((f"{one.name}:", *(question.text for question in some))), data
            )


def _locomo(row: Any, lines: int) -> Recorded:
    """Parse an entry in ``locomo10.json``: numbered sessions, each a list of dated turns (snap-research/locomo)."""
    talk = row["conversation"]
    numbers = sorted(int(found[1]) for key in talk if (found := _SESSION.match(key)))
    chunks = list[Chunk]()
    for number in numbers:
        turns = [
            _turn(turn["speaker"], turn["text"], turn.get("blip_caption", "")) for turn in talk[f"session_{number}"]
        ]
        chunks += _pieces(_text(talk[f"session_{number}_date_time"]), turns, lines)
    asked = []
    for one in row["qa"]:
        kind = LOCOMO_KINDS[one["category"]]
        answer = "" if kind == "abstention" else _text(one["answer"])
        answer = answer.split(";")[0].strip() if one["category"] == 3 else answer
        asked.append(_question(kind, _text(one["question"]), answer, one["category"] == 1))
    return _recorded(_text(row["sample_id"]), chunks, asked)


def _longmemeval(row: Any, lines: int) -> Recorded | None:
    """Parse an entry in LongMemEval; None if its answer is a rubric.

    An entry has a question, and sessions with a user and an assistant (xiaowu0162/LongMemEval).
    """
    abstention = _text(row["question_id"]).endswith("_abs")
    if row["question_type"] == RUBRIC and not abstention:
        return None
    chunks = list[Chunk]()
    sessions = list(zip(row["haystack_dates"], row["haystack_sessions"], strict=True))
    for day, session in sorted(sessions, key=lambda pair: str(pair[0])):
        turns = [_turn(turn["role"], turn["content"], "") for turn in session]
        chunks += _pieces(_text(day), turns, lines)
    name = _text(row["question_id"])
    kind: Kind = "abstention" if abstention else LONGMEMEVAL_KINDS[row["question_type"]]
    text = f"{_text(row['question'])} (asked on {_text(row['question_date'])})"
    return _recorded(name, chunks, [_question(kind, text, _text(row["answer"]))])


def _recorded(name: str, chunks: Sequence[Chunk], asked: Sequence[Question]) -> Recorded:
    if not name or not chunks or not asked:
        raise ValueError("it has no name, no session with turns, or no questions")
    return Recorded(name, tuple(chunks), tuple(asked))


def _question(kind: Kind, text: str, answer: str, listed: bool = False) -> Question:
    """Build a question with the answer as its needed fact; for a list, each item is a needed fact.

    The files name relevant turns but no facts.
    """
    if kind == "abstention":
        return Question(kind, text, NOT_MENTIONED, ())
    if not words_of(answer):
        raise ValueError(f"the question {text[:80]!r} has no answer that can be compared: {answer[:80]!r}")
    parts = answer.split(",") if listed else [answer]
    return Question(kind, text, answer, tuple((part.strip(),) for part in parts if part.strip()), listed)


def _pieces(day: str, turns: Sequence[str], lines: int) -> Iterator[Chunk]:
    for first in range(0, len(turns), lines):
        yield Chunk(day, tuple(turns[first : first + lines]))


def _turn(speaker: Any, text: Any, picture: Any) -> str:
    seen = f" [shows a picture: {_text(picture)}]" if picture else ""
    return " ".join(f"{_text(speaker)}: {_text(text)}{seen}".split())


def _text(value: Any) -> str:
    """Return a text, or a number as text.

    Raises:
        TypeError: the value is neither.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"{json.dumps(value, default=str)[:80]} is no text")
    return storable(str(value))


def _number_of(chunks: Sequence[Chunk]) -> bytes:
    return blake2b("\n".join(chunk.text for chunk in chunks).encode(), digest_size=8).digest()
