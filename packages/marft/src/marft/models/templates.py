"""Chat templates as untrusted programs: third-party templates run in a process with a timeout.

Jinja's sandbox blocks access to files and the network, but not endless loops or single operations that take hours or
gigabytes. So this module replaces transformers' compiler. Each render of a third-party template is a request to
:mod:`marft.models.template_process`, which is killed after a timeout. The same holds for parsing a turn with a response
template, which contains regular expressions.
"""

from __future__ import annotations

import builtins
import itertools
import json
import os
import socket
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from threading import Lock
from typing import Any, Protocol

import jinja2
from jinja2 import TemplateError, TemplateSyntaxError
from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

from marft.common.processes.child import Child
from marft.common.processes.python_here import python_here
from marft.common.texts import raised, visible
from marft.config.bundled import bundled_models

SECONDS = 5.0  # timeout for one prompt; templates take about a millisecond
MOST_TEMPLATE = 2**20  # maximum characters of a template's source
CHUNK = 2**20
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
)  # errors from templates that cannot render a chat  # fmt: skip
REMEDY = "set chat_template to a Jinja file that works, or use an instruction-tuned model"
_compile_here = chat_template_utils._cached_compile_jinja_template


class TooSlowError(TemplateError):
    """Timeout during template rendering."""


class Compiled(Protocol):
    """Compiled template: the part used by transformers."""

    @property
    def environment(self) -> jinja2.Environment: ...

    def render(self, **variables: object) -> str: ...


class RemoteTemplate:
    """Template rendered in the worker process."""

    def __init__(self, source: str) -> None:
        if len(source) > MOST_TEMPLATE:
            raise ValueError(f"it has {len(source):,} characters; at most {MOST_TEMPLATE:,} are read")
        self._source = source
        # a template that compiles in time in the worker also parses in time in this process
        _renderer.ask("render", source, None)

    @property
    def environment(self) -> jinja2.Environment:
        """Jinja environment from transformers."""
        environment: jinja2.Environment = _compile_here("").environment
        return environment

    def render(self, **variables: object) -> str:
        """Render the template and return the text.

        Raises:
            TooSlowError: rendering exceeded the timeout.
            TemplateError, ValueError, TypeError, MemoryError: raised by the template.
        """
        return str(_renderer.ask("render", self._source, variables))


def parsed_turn(template: object, text: str, tools: Sequence[object]) -> dict[str, Any]:
    """Parse a turn's text with the response template of its tokenizer; return the message.

    Raises:
        TooSlowError: parsing exceeded the timeout.
        TemplateError, ValueError, TypeError, MemoryError: raised by transformers.
    """
    message = _renderer.ask("parse", template, text, list(tools))
    if not isinstance(message, dict):
        raise TypeError("a turn that is parsed is a message")
    return message


class _Renderer:
    """Client for the worker process, which starts on the first request."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._child: Child | None = None
        self._owner = 0

    def ask(self, work: str, *asked: object) -> object:
        """Run a function in the worker, by its name there."""
        request = json.dumps([work, *asked]).encode()
        with self._lock:
            child = self._started()
            try:
                child.socket.sendall(b"%r\n%s\n" % (SECONDS, request))
                answer: list[Any] = json.loads(_line(child.socket))
            except BaseException:
                self._end()  # a late response would be taken for the response to the next request
                raise
        if len(answer) == 1:
            return answer[0]
        raise _error(*answer)

    def _started(self) -> Child:
        if self._child is None or self._owner != os.getpid():
            command = partial(python_here, "marft.models.template_process")
            self._child, self._owner = Child("chat templates", command, quiet=True), os.getpid()
            try:
                _line(self._child.socket)
            except BaseException as error:
                said = "; ".join(self._child.said) or raised(error)
                self._end()
                raise RuntimeError(f"the process that renders chat templates did not start: {said}") from error
        return self._child

    def _end(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None


_renderer = _Renderer()


def check_template(tokenizer: PreTrainedTokenizerBase, options: dict[str, Any], what: str) -> None:
    """Render test chats to check a chat template. Only the first must succeed, because system messages are optional.

    Raises:
        ValueError: the template times out, fails, or leaves out the user's text.
    """
    for number, (asks, chat) in enumerate(itertools.product((True, False), CHATS)):
        try:
            text = tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=asks, **options)
        except TooSlowError:
            raise ValueError(
                f"{what} was still rendering after {SECONDS:g} s: it loops, or computes too much; {REMEDY}"
            ) from None
        except Exception as error:
            if number == 0:
                raise ValueError(f"{what} cannot render a message: {visible(raised(error))}; {REMEDY}") from error
            continue
        if number == 0 and SAID not in str(text):
            raise ValueError(f"{what} does not show what a user says; {REMEDY}")


@cache
def _bundled() -> frozenset[str]:
    """Return the chat templates of the bundled models."""
    files = (folder / "chat_template.jinja" for folder in bundled_models().values())
    return frozenset(file.read_text(encoding="utf-8") for file in files if file.is_file())


@cache
def _compile_bundled(template: str) -> Compiled:
    compiled: Compiled = _compile_here(template)
    return compiled


def _compile(template: str) -> Compiled:
    """Compile a bundled template; return a proxy for a third-party template."""
    return _compile_bundled(template) if template in _bundled() else _remote(template)


@lru_cache(32)
def _remote(template: str) -> RemoteTemplate:
    return RemoteTemplate(template)


def _line(connection: socket.socket) -> bytes:
    """Read one line from the worker.

    Raises:
        RuntimeError: the worker has exited.
    """
    read = bytearray()
    while not read.endswith(b"\n"):
        chunk = connection.recv(CHUNK)
        if not chunk:
            raise RuntimeError("the process that renders chat templates has ended")
        read += chunk
    return bytes(read)


def _error(kind: str, message: str, line: int | None) -> Exception:
    """Return the worker's error, with the same type if possible."""
    if kind == TooSlowError.__name__:
        return TooSlowError(message)
    found = getattr(jinja2, kind, None) or getattr(jinja2.exceptions, kind, None) or getattr(builtins, kind, None)
    if not isinstance(found, type) or not issubclass(found, CANNOT_RENDER) or issubclass(found, UnicodeError):
        return TemplateError(f"{kind}: {message}")
    return found(message, line or 1) if issubclass(found, TemplateSyntaxError) else found(message)


# the replaced function is a cache with the same signature
chat_template_utils._compile_jinja_template = _compile  # type: ignore[assignment]
