"""Chat templates are programs that come with a model. All but our own run in a process that can be stopped.

Jinja's sandbox keeps a template from files and the network, not from a loop, or from one operation that takes hours or
gigabytes. So transformers' compiler is replaced here: each render of another model's template is a request to
:mod:`marft.models.template_process`, which is ended when it takes too long. So is each turn that is parsed by a
response template, which has regular expressions of its own.
"""

from __future__ import annotations

import builtins
import itertools
import json
import os
import socket
from collections.abc import Sequence
from functools import cache, lru_cache, partial
from pathlib import Path
from threading import Lock
from typing import Any, Protocol

import jinja2
from jinja2 import TemplateError, TemplateSyntaxError
from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

from marft.common.processes.child import Child
from marft.common.processes.python_here import python_here
from marft.common.texts import raised, visible

SECONDS = 5.0  # for one prompt; templates take about a millisecond
MOST_TEMPLATE = 2**20  # characters of a template's source
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
)  # what rendering a chat raises where a template does not take it  # fmt: skip
REMEDY = "set chat_template to a Jinja file that works, or use an instruction-tuned model"
_compile_here = chat_template_utils._cached_compile_jinja_template


class TooSlowError(TemplateError):
    """A template was still at work at the time limit."""


class Compiled(Protocol):
    """The part of a compiled template that transformers uses."""

    @property
    def environment(self) -> jinja2.Environment: ...

    def render(self, **variables: object) -> str: ...


class RemoteTemplate:
    """A template that is rendered in the other process."""

    def __init__(self, source: str) -> None:
        if len(source) > MOST_TEMPLATE:
            raise ValueError(f"it has {len(source):,} characters; at most {MOST_TEMPLATE:,} are read")
        self._source = source
        _renderer.ask("render", source, None)  # what compiles in time there is parsed in time here

    @property
    def environment(self) -> jinja2.Environment:
        """transformers' environment of templates."""
        environment: jinja2.Environment = _compile_here("").environment
        return environment

    def render(self, **variables: object) -> str:
        """Return the text.

        Raises:
            TooSlowError: the time is over.
            TemplateError, ValueError, TypeError, MemoryError: whatever the template raises.
        """
        return str(_renderer.ask("render", self._source, variables))


def parsed_turn(template: object, text: str, tools: Sequence[object]) -> dict[str, Any]:
    """Parse a turn's text by the response template of its tokenizer → the message that it is.

    Raises:
        TooSlowError: the time is over.
        TemplateError, ValueError, TypeError, MemoryError: whatever transformers raises.
    """
    message = _renderer.ask("parse", template, text, list(tools))
    if not isinstance(message, dict):
        raise TypeError("a turn that is parsed is a message")
    return message


class _Renderer:
    """The connection to the process, which starts with the first request."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._child: Child | None = None
        self._owner = 0

    def ask(self, work: str, *asked: object) -> object:
        """Have something done, by its name there."""
        request = json.dumps([work, *asked]).encode()
        with self._lock:
            child = self._started()
            try:
                child.socket.sendall(b"%r\n%s\n" % (SECONDS, request))
                answer: list[Any] = json.loads(_line(child.socket))
            except BaseException:
                self._end()  # its answer to this request is none to the next one
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
    """Render a few chats. Only the first must come out: not every template knows of system messages.

    Raises:
        ValueError: it does not end, fails, or leaves out what the user says.
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
    """The templates of the models that come with the package."""
    folder = Path(__file__).parent
    return frozenset(path.read_text(encoding="utf-8") for path in folder.glob("tiny*/chat_template.jinja"))


@cache
def _compile_bundled(template: str) -> Compiled:
    compiled: Compiled = _compile_here(template)
    return compiled


def _compile(template: str) -> Compiled:
    """Return our own templates compiled, and a stand-in for those of others."""
    return _compile_bundled(template) if template in _bundled() else _remote(template)


@lru_cache(32)
def _remote(template: str) -> RemoteTemplate:
    return RemoteTemplate(template)


def _line(connection: socket.socket) -> bytes:
    """Read one line of the process.

    Raises:
        RuntimeError: the process has ended.
    """
    read = bytearray()
    while not read.endswith(b"\n"):
        chunk = connection.recv(CHUNK)
        if not chunk:
            raise RuntimeError("the process that renders chat templates has ended")
        read += chunk
    return bytes(read)


def _error(kind: str, message: str, line: int | None) -> Exception:
    """The error that the process met, of the same type where that can be raised here."""
    if kind == TooSlowError.__name__:
        return TooSlowError(message)
    found = getattr(jinja2, kind, None) or getattr(jinja2.exceptions, kind, None) or getattr(builtins, kind, None)
    if not isinstance(found, type) or not issubclass(found, CANNOT_RENDER) or issubclass(found, UnicodeError):
        return TemplateError(f"{kind}: {message}")
    return found(message, line or 1) if issubclass(found, TemplateSyntaxError) else found(message)


chat_template_utils._compile_jinja_template = _compile  # type: ignore[assignment]  # a cache of the same signature
