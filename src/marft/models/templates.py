"""Chat templates are programs that come with a model: they are tried out once, with a limit of time."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from marft.texts import raised, visible

SECONDS = 5.0  # for one prompt; templates take about a millisecond
SAID = "What is 12 + 34?"
CHATS = (
    [{"role": "user", "content": SAID}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": SAID}],
    [
        {"role": "user", "content": SAID},
        {"role": "assistant", "content": "46"},
        {"role": "user", "content": SAID},
    ],
)
CANNOT_RENDER = (
    TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError,
)  # what rendering a chat raises where a template does not take it  # fmt: skip
REMEDY = "set chat_template to a Jinja file that works, or use an instruction-tuned model"


class _TooLongError(Exception):
    """The limit of time is over."""


def check_template(tokenizer: PreTrainedTokenizerBase, options: dict[str, Any], what: str) -> None:
    """Render a few chats. Only the first must come out: not every template knows of system messages.

    Raises:
        ValueError: it does not end, fails, or leaves out what the user says.
    """
    for number, (asks, chat) in enumerate(itertools.product((True, False), CHATS)):
        try:
            with _limited(SECONDS):
                text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=asks, **options)
        except _TooLongError:
            raise ValueError(f"{what} was still rendering after {SECONDS:g} s: it loops; {REMEDY}") from None
        except Exception as error:
            if number == 0:
                raise ValueError(f"{what} cannot render a message: {visible(raised(error))}; {REMEDY}") from error
            continue
        if number == 0 and SAID not in str(text):
            raise ValueError(f"{what} does not show what a user says; {REMEDY}")


@contextmanager
def _limited(seconds: float) -> Iterator[None]:
    """Raise in whatever Python code runs in the block when its time is over, on any thread.

    By a trace function, for a thread cannot be ended and a signal reaches the main thread alone.
    """
    before, end = sys.gettrace(), time.monotonic() + seconds

    def look(frame: FrameType, event: str, argument: object) -> Any:  # noqa: ARG001
        if time.monotonic() > end:
            raise _TooLongError
        return look

    sys.settrace(look)
    try:
        yield
    finally:
        sys.settrace(before)
