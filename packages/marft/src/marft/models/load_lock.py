"""Lock that serializes model loading within the process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_LOAD_LOCK = threading.RLock()


def with_load_lock(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function to run under a process-wide load lock.

    While ``transformers`` loads a model, it changes process-wide state: torch's default dtype, functions in
    ``torch.nn.init``, and lazily imported modules.
    """

    @wraps(function)
    def locked(*arguments: P.args, **options: P.kwargs) -> T:
        with _LOAD_LOCK:
            return function(*arguments, **options)

    return locked
