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

_thread_state = threading.local()


class MatchRandom:
    """Replacement for the module ``random`` inside the package.

    Its functions draw from the stream of the current thread's match. Without a match they use the global stream.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(getattr(_thread_state, "random", random), name, None) or getattr(random, name)


@contextmanager
def use_stream(stream: random.Random) -> Iterator[None]:
    """Context manager: the package draws from ``stream`` on this thread."""
    previous = getattr(_thread_state, "random", random)
    _thread_state.random = stream
    try:
        yield
    finally:
        _thread_state.random = previous


def patch_random(package: str) -> None:
    """Make every loaded module in a package draw from its match's stream."""
    modules = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == package]
    for module in modules:
        if getattr(module, "random", None) is random:
            vars(module)["random"] = MatchRandom()
