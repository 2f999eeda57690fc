"""Run of a program for one step: a function on a separate thread, or a command with its child processes.

Secrets in the program's output are masked, including secrets cut in the middle.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from urllib.parse import urlsplit

from marft.agents.agents import Grade, Outcome
from marft.agents.environment_calls import (
    MAX_TEXT_CHARACTERS,
    RefusedError,
    validate_flag,
    validate_number,
    validate_rewards,
)
from marft.common.processes import SUBREAPER
from marft.common.texts import replace_surrogates, truncate
from marft.common.types import Task
from marft.common.user_modules import subprocess_env
from marft_serve.gateway.client import Client, build_environment

MAX_OUTPUT_BYTES = 2**20  # bytes of a command's output to keep, from the end
OUTCOME_KEYS = ("answer", "reward", "success", "agent_rewards")
MIN_MATCH_CHARS = 8  # minimum length of a match that is not a coincidence, in characters
MASK = "…"


async def call_function(
    function: Callable[..., object], task: Task, clients: Mapping[str, Client], grades: bool
) -> Outcome:
    """Call a function, blocking or async; return its outcome.

    Raises:
        RefusedError: the returned value is not a valid outcome.
    """
    returned = function(task, clients)
    return parse_outcome(await returned if isinstance(returned, Awaitable) else returned, clients, grades)


async def run_command(
    arguments: Sequence[str],
    folder: str,
    task: Task,
    clients: Mapping[str, Client],
    grades: bool,
    mask: Callable[[str], str] = str,
) -> Outcome:
    """Run a command; read the outcome from the last line of its output.

    The command receives the task on standard input. The command and its child processes end when the command is
    done, when this coroutine is cancelled, and when this process ends.

    Args:
        arguments: the command and its arguments.
        folder: working directory; "" for the current one.
        task: the task.
        clients: clients by role, passed as environment variables.
        grades: True if the program returns the reward.
        mask: function that removes secrets from the output, before the output is cut.

    Raises:
        RefusedError: the command failed, or its last line is not a valid outcome.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        str(SUBREAPER),
        str(os.getpid()),
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        cwd=folder or None,
        start_new_session=True,
        env={**os.environ, **_proxy_bypass_env(clients), **build_environment(clients), **subprocess_env(folder)},
    )
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        task_json = json.dumps({"id": task.id, "prompt": task.prompt, "data": dict(task.data)}, default=str)
        output, errors, _ = await asyncio.gather(
            _read_tail(process.stdout), _read_tail(process.stderr), _write(process.stdin, task_json.encode())
        )
        status = await process.wait()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)  # the supervisor process ends all of its children on SIGINT
            await process.wait()
    if status != 0:
        message = mask(replace_surrogates(errors.decode("utf-8", "replace"))).strip()[-1000:]
        raise RefusedError(f"ended with status {status}: {message or 'it said nothing'}")
    return parse_outcome(parse_last_line(output, mask), clients, grades)


def parse_last_line(output: bytes, mask: Callable[[str], str] = str) -> object:
    """Parse the output's last line, in JSON.

    Lines end only at ``\\n``; other line separators may occur within JSON.

    Raises:
        RefusedError: the line is not JSON.
    """
    line = output.strip().rpartition(b"\n")[2].decode("utf-8", "replace")
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise RefusedError(f"printed {truncate(mask(line), 100) or 'nothing'!r} last, which is no JSON") from None


def parse_outcome(result: object, roles: Collection[str], grades: bool) -> Outcome:
    """Convert a program's result: an answer, a reward, or a table with both.

    An answer is text, a number or None.

    Args:
        result: the result.
        roles: roles of the team.
        grades: True if the program returns the reward, False if the environment grades.

    Raises:
        RefusedError: the result is invalid, has a reward although the environment grades, or lacks a reward although
            the program grades.
    """
    table: Mapping[object, object] = result if isinstance(result, Mapping) else {"answer": result}
    if isinstance(result, bool | int | float) and grades:
        table = {"reward": result}
    unknown = [key for key in table if key not in OUTCOME_KEYS]
    if unknown:
        raise RefusedError(f"returned a table with {str(unknown[0])[:100]!r}; it may have {', '.join(OUTCOME_KEYS)}")
    text = _parse_answer(table.get("answer"))
    if not grades:
        if len(table) > 1:
            raise RefusedError('says what it earns, and the environment does: set graded_by = "program", or leave it')
        return Outcome(text=text)
    if "reward" not in table:
        raise RefusedError('says no reward; return one, or leave it to the environment (graded_by = "environment")')
    success = table.get("success")
    reward = validate_number(table["reward"], "gave the team a reward of")
    return Outcome(
        text=text,
        grade=Grade(
            reward,
            None if success is None else validate_flag(success, "success"),
            validate_rewards(table.get("agent_rewards") or {}, roles),
        ),
    )


def _parse_answer(answer: object) -> str | None:
    if answer is None:
        return None
    if isinstance(answer, bool | int | float) and math.isfinite(answer):
        return str(answer)
    if not isinstance(answer, str) or replace_surrogates(answer) != answer or len(answer) > MAX_TEXT_CHARACTERS:
        raise RefusedError(f"answered with a {type(answer).__name__}, which is no whole text")
    return str.__str__(answer)


async def _read_tail(stream: asyncio.StreamReader) -> bytes:
    """Return the last bytes from a stream."""
    tail = b""
    while chunk := await stream.read(2**16):
        tail = (tail + chunk)[-MAX_OUTPUT_BYTES:]
    return tail


async def _write(stream: asyncio.StreamWriter, text: bytes) -> None:
    with suppress(ConnectionError):  # the process has closed its input
        stream.write(text + b"\n")
        await stream.drain()
    stream.close()


def _proxy_bypass_env(clients: Mapping[str, Client]) -> dict[str, str]:
    """Return environment variables to bypass proxies for the gateway."""
    hosts = {str(urlsplit(client.base_url).hostname) for client in clients.values()}
    configured = [os.environ.get(name, "") for name in ("NO_PROXY", "no_proxy")]
    no_proxy = ",".join(dict.fromkeys(filter(None, [*",".join(configured).split(","), *sorted(hosts)])))
    return {"NO_PROXY": no_proxy, "no_proxy": no_proxy}


def mask_secrets(secrets: Sequence[str], text: str) -> str:
    """Replace every secret, or any part with eight or more characters, with ``…``.

    >>> mask_secrets(["abcdefghijklmnop"], "GET /e/abcdefghijklmnop/a and /e/abcdefghij")
    'GET /e/…/a and /e/…'
    """
    for secret in secrets:
        hidden = [False] * len(text)
        for start in range(len(secret) - MIN_MATCH_CHARS + 1):
            at = text.find(piece := secret[start : start + MIN_MATCH_CHARS])
            while at >= 0:
                hidden[at : at + MIN_MATCH_CHARS] = [True] * MIN_MATCH_CHARS
                at = text.find(piece, at + 1)
        if any(hidden):
            visible = [
                MASK if hide and not (position and hidden[position - 1]) else "" if hide else text[position]
                for position, hide in enumerate(hidden)
            ]
            text = "".join(visible)
    return text
