"""Chat templates as untrusted programs: third-party templates run in a process with a timeout.

Jinja's sandbox blocks access to files and the network, but not endless loops or single operations that take hours or
gigabytes. So this module replaces transformers' compiler. Each render of a third-party template is a request to
:mod:`marft.models.template_worker`, which is killed after a timeout. The same holds for parsing a turn with a response
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
from typing import Any

import jinja2
from jinja2 import TemplateError, TemplateSyntaxError
from transformers import PreTrainedTokenizerBase
from transformers.utils import chat_template_utils

from marft.common.errors import UserError
from marft.common.processes.child_process import ChildProcess, python_command
from marft.common.texts import format_error, sanitize
from marft.config.bundled import bundled_models

TIMEOUT_SECONDS = 5.0  # timeout for one prompt; templates take about a millisecond
MAX_TEMPLATE_LENGTH = 2**20  # maximum characters of a template's source
CHUNK_BYTES = 2**20
TEST_MESSAGE = "What is 12 + 34?"
TEST_CHATS = (
    [{"role": "user", "content": TEST_MESSAGE}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": TEST_MESSAGE}],
    [
        {"role": "user", "content": TEST_MESSAGE},
        {"role": "assistant", "content": "46"},
        {"role": "user", "content": TEST_MESSAGE},
    ],
)
RENDER_ERRORS = (
    TemplateError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError, MemoryError,
)  # errors from templates that cannot render a chat  # fmt: skip
HINT = "set chat_template to a Jinja file that works, or use an instruction-tuned model"
_compile_local = chat_template_utils._cached_compile_jinja_template


class TooSlowError(TemplateError):
    """Timeout during template rendering."""


class RemoteTemplate:
    """Template rendered in the worker process."""

    def __init__(self, source: str) -> None:
        if len(source) > MAX_TEMPLATE_LENGTH:
            raise UserError(f"it has {len(source):,} characters; at most {MAX_TEMPLATE_LENGTH:,} are read")
        self._source = source
        # a template that compiles in time in the worker also parses in time in this process
        _worker_client.request("render", source, None)

    @property
    def environment(self) -> jinja2.Environment:
        """Jinja environment from transformers."""
        environment: jinja2.Environment = _compile_local("").environment
        return environment

    def render(self, **variables: object) -> str:
        """Render the template and return the text.

        Raises:
            TooSlowError: rendering exceeded the timeout.
            TemplateError, ValueError, TypeError, MemoryError: raised by the template.
        """
        return str(_worker_client.request("render", self._source, variables))


def parse_turn(template: object, text: str, tools: Sequence[object]) -> dict[str, Any]:
    """Parse a turn's text with the response template of its tokenizer; return the message.

    Raises:
        TooSlowError: parsing exceeded the timeout.
        TemplateError, ValueError, TypeError, MemoryError: raised by transformers.
    """
    message = _worker_client.request("parse", template, text, list(tools))
    if not isinstance(message, dict):
        raise TypeError("a turn that is parsed is a message")
    return message


class _WorkerClient:
    """Client for the worker process, which starts on the first request."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._child: ChildProcess | None = None
        self._owner = 0

    def request(self, function: str, *arguments: object) -> object:
        """Run a function in the worker, by its name there."""
        request_line = json.dumps([function, *arguments]).encode()
        with self._lock:
            child = self._start_worker()
            try:
                child.socket.sendall(b"%r\n%s\n" % (TIMEOUT_SECONDS, request_line))
                answer: list[Any] = json.loads(_read_line(child.socket))
            except BaseException:
                self._stop_worker()  # a late response would be taken for the response to the next request
                raise
        if len(answer) == 1:
            return answer[0]
        raise _make_error(*answer)

    def _start_worker(self) -> ChildProcess:
        if self._child is None or self._owner != os.getpid():
            command = partial(python_command, "marft.models.template_worker")
            self._child, self._owner = ChildProcess("chat templates", command, quiet=True), os.getpid()
            try:
                _read_line(self._child.socket)
            except BaseException as error:
                output = "; ".join(self._child.output_tail) or format_error(error)
                self._stop_worker()
                raise RuntimeError(f"the process that renders chat templates did not start: {output}") from error
        return self._child

    def _stop_worker(self) -> None:
        if self._child is not None:
            self._child.close()
            self._child = None


_worker_client = _WorkerClient()


def check_template(tokenizer: PreTrainedTokenizerBase, options: dict[str, Any], label: str) -> None:
    """Render test chats to check a chat template. Only the first must succeed, because system messages are optional.

    Raises:
        UserError: the template times out, fails, or leaves out the user's text.
    """
    for number, (generation_prompt, chat) in enumerate(itertools.product((True, False), TEST_CHATS)):
        try:
            text = tokenizer.apply_chat_template(
                chat, tokenize=False, add_generation_prompt=generation_prompt, **options
            )
        except TooSlowError:
            raise UserError(
                f"{label} was still rendering after {TIMEOUT_SECONDS:g} s: it loops, or computes too much; {HINT}"
            ) from None
        except Exception as error:  # a template can raise anything
            if number == 0:
                raise UserError(f"{label} cannot render a message: {sanitize(format_error(error))}; {HINT}") from error
            continue
        if number == 0 and TEST_MESSAGE not in str(text):
            raise UserError(f"{label} does not show what a user says; {HINT}")


@cache
def _bundled_templates() -> frozenset[str]:
    """Return the chat templates of the bundled models."""
    files = (folder / "chat_template.jinja" for folder in bundled_models().values())
    return frozenset(file.read_text(encoding="utf-8") for file in files if file.is_file())


@lru_cache(32)
def _compile_template(template: str) -> jinja2.Template | RemoteTemplate:
    """Compile a bundled template; return a proxy for a third-party template."""
    if template not in _bundled_templates():
        return RemoteTemplate(template)
    compiled: jinja2.Template = _compile_local(template)
    return compiled


def _read_line(connection: socket.socket) -> bytes:
    """Read one line from the worker.

    Raises:
        RuntimeError: the worker has exited.
    """
    received = bytearray()
    while not received.endswith(b"\n"):
        chunk = connection.recv(CHUNK_BYTES)
        if not chunk:
            raise RuntimeError("the process that renders chat templates has ended")
        received += chunk
    return bytes(received)


def _make_error(kind: str, message: str, line: int | None) -> Exception:
    """Return the worker's error, with the same type if possible."""
    if kind == TooSlowError.__name__:
        return TooSlowError(message)
    error_class = getattr(jinja2, kind, None) or getattr(jinja2.exceptions, kind, None) or getattr(builtins, kind, None)
    if (
        not isinstance(error_class, type)
        or not issubclass(error_class, RENDER_ERRORS)
        or issubclass(error_class, UnicodeError)
    ):
        return TemplateError(f"{kind}: {message}")
    return error_class(message, line or 1) if issubclass(error_class, TemplateSyntaxError) else error_class(message)


# the replaced function is a cache with the same signature
chat_template_utils._compile_jinja_template = _compile_template
