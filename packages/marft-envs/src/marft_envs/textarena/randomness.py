"""A separate random stream for each match, in a package built on Python's global stream.

Sessions run on several threads. Seeding a shared stream would make a match depend on the others.
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
    """Replacement for the module ``random`` inside the package.

    Its functions draw from the stream of the current thread's match. Without a match they use the global stream.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_now, "random", random), name, None) or getattr(random, name)


@contextmanager
def drawing_from(stream: random.Random) -> Iterator[None]:
    """Context manager: the package draws from ``stream`` on this thread."""
    before = getattr(_now, "random", random)
    _now.random = stream
    try:
        yield
    finally:
        _now.random = before


def take_over(package: str) -> None:
    """Make every loaded module in a package draw from its match's stream."""
    inside = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == package]
    for module in inside:
        if getattr(module, "random", None) is random:
            vars(module)["random"] = OfThisMatch()
