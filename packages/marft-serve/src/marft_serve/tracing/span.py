"""A span as it is exported, whatever it is written as; and ids that are the same whenever an episode is exported."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum

from marft.common.texts import cut, storable

LONGEST = 65_536  # characters of one text in an attribute
Value = str | bool | int | float | Sequence[str]


class Kind(IntEnum):
    """OTLP's ``Span.SpanKind``."""

    INTERNAL = 1
    CLIENT = 3


@dataclass(frozen=True, slots=True)
class Link:
    """A span that another one depends on, which may be of another trace."""

    trace: str
    span: str
    attributes: Mapping[str, Value]


@dataclass(frozen=True, slots=True)
class Span:
    """One span.

    Args:
        trace: 32 hexadecimal digits.
        id: 16 of them.
        parent: the id of the span that it lies in; "" for a root.
        started: nanoseconds since 1970.
        ended: the same.
        failed: whether what it stands for did not come to its end.
        error: why not, in words.
    """

    trace: str
    id: str
    parent: str
    name: str
    kind: Kind
    started: int
    ended: int
    attributes: Mapping[str, Value]
    links: tuple[Link, ...] = ()
    failed: bool = False
    error: str = ""


def trace_id(run: str, episode: str) -> str:
    """The id of an episode's trace, from the run's identity and :attr:`marft.common.types.Episode.name`.

    >>> trace_id("r", "train/0 t #0") == trace_id("r", "train/0 t #0") != trace_id("r", "train/0 t #1")
    True
    """
    return _digest(run, episode)[:32]


def span_id(trace: str, *names: object) -> str:
    """The id of a span in a trace, from what it is called there."""
    return _digest(trace, *names)[:16]


def plain(text: str, most: int = LONGEST) -> str:
    """A text as every receiver takes it: of bounded length, without halves of characters, and without NUL, which some
    databases refuse.

    >>> plain("a\\x00b\\ud83d")
    'a�b?'
    """
    return storable(cut(text, most)).replace("\0", "\ufffd")


def _digest(*names: object) -> str:
    words = json.dumps([str(name) for name in names])
    return hashlib.sha256(words.encode()).hexdigest()
