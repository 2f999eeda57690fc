"""Loading of public benchmark files: LoCoMo and LongMemEval."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Literal

from marft.common.atomic import read_text
from marft.common.errors import UserError
from marft.common.texts import replace_surrogates
from marft.common.types import Task
from marft.config.interfaces.environment import Split
from marft.envs.table_files import find_duplicate
from marft.envs.tasks import DIGEST_KEY, digest_content
from marft.rewards.text_match import normalize_words
from marft_envs.memory.conversations import NOT_MENTIONED, Chunk, Kind, Question

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
RUBRIC_TYPE = "single-session-preference"  # its answers are rubrics for a model judge
_SESSION = re.compile(r"^session_(\d+)$")


@dataclass(frozen=True, slots=True)
class FileConversation:
    """Conversation from a file, with its questions."""

    name: str
    chunks: tuple[Chunk, ...]
    questions: tuple[Question, ...]


def read_conversations(path: str, layout: Layout, lines: int) -> list[FileConversation]:
    """Read the conversations in a file.

    Args:
        path: path of the file.
        layout: layout of the file.
        lines: maximum lines of a session per chunk.

    Raises:
        UserError: the file cannot be read, or has another layout.
    """
    try:
        rows = json.loads(read_text(path))
    except OSError as error:
        raise UserError(f"environment: cannot read {path}: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"environment: {path} is no JSON in UTF-8: {error}") from error
    if not isinstance(rows, list) or not rows:
        raise UserError(f"environment: {path} holds no list of conversations, as {layout} has them")
    parse_row: Callable[[object, int], FileConversation | None] = (
        _parse_locomo if layout == "locomo" else _parse_longmemeval
    )
    parsed = []
    for number, row in enumerate(rows, 1):
        try:
            parsed.append(parse_row(row, lines))  # None if it cannot be graded
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            problem = f"has no {error}" if isinstance(error, KeyError) else str(error)
            raise UserError(
                f"environment: {path}, conversation {number} is not laid out as {layout}: {problem}; is layout right?"
            ) from error
    conversations = [conversation for conversation in parsed if conversation is not None]
    twice = find_duplicate(conversation.name for conversation in conversations)
    if twice is not None:
        raise UserError(f"environment: {path} has two conversations {twice!r}; take one out, or rename it")
    return conversations


def build_tasks(
    conversations: Sequence[FileConversation],
    questions: int,
    kinds: Collection[str],
    retrieved: bool,
    written: bool,
    path: str,
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
        UserError: there are fewer than three conversations.
    """
    if len(conversations) < 3:
        raise UserError(f"environment: {path} has {len(conversations)} conversations: a split each takes three")
    ordered = sorted(conversations, key=lambda conversation: _hash_chunks(conversation.chunks))
    held_out = -(-len(ordered) // 10)
    parts: dict[Split, Sequence[FileConversation]] = {
        "validation": ordered[:held_out],
        "test": ordered[held_out : 2 * held_out],
        "train": ordered[2 * held_out :],
    }
    return {split: list(_make_tasks(part, questions, kinds, retrieved, written)) for split, part in parts.items()}


def _make_tasks(
    part: Sequence[FileConversation], count: int, kinds: Collection[str], retrieved: bool, written: bool
) -> Iterator[Task]:
    for conversation in part:
        questions = [question for question in conversation.questions if question.kind in kinds]
        content = digest_content(*(chunk.text for chunk in conversation.chunks))
        for first in range(0, len(questions), count):
            batch = questions[first : first + count]
            steps = (len(conversation.chunks) if written else 0) + len(batch) * (2 if retrieved else 1)
            data = {
                "conversation": conversation.name,
                DIGEST_KEY: content,
                "fewest_steps": steps,
                "questions": [question.to_dict() for question in batch],
            }
            yield Task(
                f"{conversation.name}/{first // count}",
                "\n".join((f"{conversation.name}:", *(question.text for question in batch))),
                data,
            )


def _parse_locomo(row: Any, lines: int) -> FileConversation:
    """Parse an entry in ``locomo10.json``: numbered sessions, each a list of dated turns (snap-research/locomo)."""
    conversation = row["conversation"]
    numbers = sorted(int(match[1]) for key in conversation if (match := _SESSION.match(key)))
    chunks = list[Chunk]()
    for number in numbers:
        turns = [
            _format_turn(turn["speaker"], turn["text"], turn.get("blip_caption", ""))
            for turn in conversation[f"session_{number}"]
        ]
        chunks += _split_chunks(_require_text(conversation[f"session_{number}_date_time"]), turns, lines)
    questions = []
    for qa_entry in row["qa"]:
        kind = LOCOMO_KINDS[qa_entry["category"]]
        answer = "" if kind == "abstention" else _require_text(qa_entry["answer"])
        answer = answer.split(";")[0].strip() if qa_entry["category"] == 3 else answer
        questions.append(_make_question(kind, _require_text(qa_entry["question"]), answer, qa_entry["category"] == 1))
    return _make_conversation(_require_text(row["sample_id"]), chunks, questions)


def _parse_longmemeval(row: Any, lines: int) -> FileConversation | None:
    """Parse an entry in LongMemEval; None if its answer is a rubric.

    An entry has a question, and sessions with a user and an assistant (xiaowu0162/LongMemEval).
    """
    abstention = _require_text(row["question_id"]).endswith("_abs")
    if row["question_type"] == RUBRIC_TYPE and not abstention:
        return None
    chunks = list[Chunk]()
    sessions = list(zip(row["haystack_dates"], row["haystack_sessions"], strict=True))
    for day, session in sorted(sessions, key=lambda pair: str(pair[0])):
        turns = [_format_turn(turn["role"], turn["content"], "") for turn in session]
        chunks += _split_chunks(_require_text(day), turns, lines)
    name = _require_text(row["question_id"])
    kind: Kind = "abstention" if abstention else LONGMEMEVAL_KINDS[row["question_type"]]
    text = f"{_require_text(row['question'])} (asked on {_require_text(row['question_date'])})"
    return _make_conversation(name, chunks, [_make_question(kind, text, _require_text(row["answer"]))])


def _make_conversation(name: str, chunks: Sequence[Chunk], questions: Sequence[Question]) -> FileConversation:
    if not name or not chunks or not questions:
        raise UserError("it has no name, no session with turns, or no questions")
    return FileConversation(name, tuple(chunks), tuple(questions))


def _make_question(kind: Kind, text: str, answer: str, listed: bool = False) -> Question:
    """Build a question with the answer as its needed fact; for a list, each item is a needed fact.

    The files name relevant turns but no facts.
    """
    if kind == "abstention":
        return Question(kind, text, NOT_MENTIONED, ())
    if not normalize_words(answer):
        raise UserError(f"the question {text[:80]!r} has no answer that can be compared: {answer[:80]!r}")
    parts = answer.split(",") if listed else [answer]
    return Question(kind, text, answer, tuple((part.strip(),) for part in parts if part.strip()), listed)


def _split_chunks(day: str, turns: Sequence[str], lines: int) -> Iterator[Chunk]:
    for first in range(0, len(turns), lines):
        yield Chunk(day, tuple(turns[first : first + lines]))


def _format_turn(speaker: Any, text: Any, picture: Any) -> str:
    caption = f" [shows a picture: {_require_text(picture)}]" if picture else ""
    return " ".join(f"{_require_text(speaker)}: {_require_text(text)}{caption}".split())


def _require_text(value: Any) -> str:
    """Return a text, or a number as text.

    Raises:
        TypeError: the value is neither.
    """
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise TypeError(f"{json.dumps(value, default=str)[:80]} is no text")
    return replace_surrogates(str(value))


def _hash_chunks(chunks: Sequence[Chunk]) -> bytes:
    return blake2b("\n".join(chunk.text for chunk in chunks).encode(), digest_size=8).digest()
