"""Chance of its own for each match of a package whose modules all draw from Python's one global stream.

Sessions run on threads at the same time: seeding a stream that they share would make a match depend on the others.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_now = threading.local()


class OfThisMatch:
    """Stands for the module ``random`` inside the package: its functions draw from the match that is played on this
    thread, and where none is from the global stream."""

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_now, "random", random), name, None) or getattr(random, name)


@contextmanager
def drawing_from(stream: random.Random) -> Iterator[None]:
    """What the package draws on this thread comes from ``stream``."""
    before = getattr(_now, "random", random)
    _now.random = stream
    try:
        yield
    finally:
        _now.random = before


def take_over(package: str) -> None:
    """Have all modules of a package that are loaded draw from their matches."""
    inside = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == package]
    for module in inside:
        if getattr(module, "random", None) is random:
            vars(module)["random"] = OfThisMatch()
