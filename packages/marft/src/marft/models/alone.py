"""Loading of models, by one thread of the process at a time."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
_LOADING = threading.RLock()


def one_at_a_time(function: Callable[P, T]) -> Callable[P, T]:
    """Let one thread at a time call any of the functions that this decorates.

    While it loads, ``transformers`` changes what belongs to the whole process: torch's default dtype, the functions of
    ``torch.nn.init``, modules that are imported when they are first asked for.
    """

    @wraps(function)
    def alone(*arguments: P.args, **options: P.kwargs) -> T:
        with _LOADING:
            return function(*arguments, **options)

    return alone
