"""Run of a program for one step: a function on a separate thread, or a command with its child processes."""

from __future__ import annotations

import asyncio
import json
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

from marft.agents.outcome import Grade, Outcome
from marft.agents.reading import LARGEST_TEXT, RefusedError, flag, number, own_rewards
from marft.common.processes import SUBREAPER
from marft.common.texts import cut, storable
from marft.common.types import Task
from marft.common.user_modules import for_programs
from marft_serve.gateway.client import Client, environment

MOST_OUTPUT = 2**20  # bytes of a command's output to keep, from the end
KEYS = ("answer", "reward", "success", "agent_rewards")


async def call(
    function: Callable[..., object], task: Task, clients: Mapping[str, Client], grades: bool
) -> Outcome:  # fmt: skip
    """Call a function, blocking or async; return its outcome.

    Raises:
        RefusedError: the returned value is not a valid outcome.
    """
    returned = function(task, clients)
    return outcome_of(await returned if isinstance(returned, Awaitable) else returned, clients, grades)


async def command(
    words: Sequence[str], folder: str, task: Task, clients: Mapping[str, Client], grades: bool,
    masked: Callable[[str], str] = str,
) -> Outcome:  # fmt: skip
    """Run a command; read the outcome from the last line of its output.

    The command receives the task on standard input. The command and its child processes end when the command is
    done, when this coroutine is cancelled, and when this process ends.

    Args:
        words: the command and its arguments.
        folder: working directory; "" for the current one.
        task: the task.
        clients: clients by role, passed as environment variables.
        grades: True if the program returns the reward.
        masked: function that removes secrets from the output, before the output is cut.

    Raises:
        RefusedError: the command failed, or its last line is not a valid outcome.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-I", "-S", str(SUBREAPER), str(os.getpid()), *words,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        cwd=folder or None, start_new_session=True,
        env={**os.environ, **_beside_proxies(clients), **environment(clients), **for_programs(folder)},
    )  # fmt: skip
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        given = json.dumps({"id": task.id, "prompt": task.prompt, "data": dict(task.data)}, default=str)
        said, errors, _ = await asyncio.gather(
            _last(process.stdout), _last(process.stderr), _write(process.stdin, given.encode())
        )
        status = await process.wait()
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGINT)  # the supervisor process ends all of its children on SIGINT
            await process.wait()
    if status != 0:
        complaint = masked(storable(errors.decode("utf-8", "replace"))).strip()[-1000:]
        raise RefusedError(f"ended with status {status}: {complaint or 'it said nothing'}")
    return outcome_of(printed_last(said, masked), clients, grades)


def printed_last(said: bytes, masked: Callable[[str], str] = str) -> object:
    """Parse the output's last line, in JSON.

    Lines end only at ``\\n``; other line separators may occur within JSON.

    Raises:
        RefusedError: the line is not JSON.
    """
    line = said.strip().rpartition(b"\n")[2].decode("utf-8", "replace")
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise RefusedError(f"printed {cut(masked(line), 100) or 'nothing'!r} last, which is no JSON") from None


def outcome_of(result: object, roles: Collection[str], grades: bool) -> Outcome:
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
    table: Mapping[Any, Any] = result if isinstance(result, Mapping) else {"answer": result}
    if isinstance(result, bool | int | float) and grades:
        table = {"reward": result}
    unknown = [key for key in table if key not in KEYS]
    if unknown:
        raise RefusedError(f"returned a table with {str(unknown[0])[:100]!r}; it may have {', '.join(KEYS)}")
    text = _text(table.get("answer"))
    if not grades:
        if len(table) > 1:
            raise RefusedError('says what it earns, and the environment does: set graded_by = "program", or leave it')
        return Outcome(text=text)
    if "reward" not in table:
        raise RefusedError('says no reward; return one, or leave it to the environment (graded_by = "environment")')
    success = table.get("success")
    reward = number(table["reward"], "gave the team a reward of")
    return Outcome(
        text=text,
        grade=Grade(
            reward,
            None if success is None else flag(success, "success"),
            own_rewards(table.get("agent_rewards") or {}, roles),
        ),
    )


def _text(answer: object) -> str | None:
    if answer is None:
        return None
    if isinstance(answer, bool | int | float) and math.isfinite(answer):
        return str(answer)
    if not isinstance(answer, str) or storable(answer) != answer or len(answer) > LARGEST_TEXT:
        raise RefusedError(f"answered with a {type(answer).__name__}, which is no whole text")
    return str.__str__(answer)


async def _last(stream: asyncio.StreamReader) -> bytes:
    """Return the last bytes from a stream."""
    kept = b""
    while read := await stream.read(2**16):
        kept = (kept + read)[-MOST_OUTPUT:]
    return kept


async def _write(stream: asyncio.StreamWriter, text: bytes) -> None:
    with suppress(ConnectionError):  # the process has closed its input
        stream.write(text + b"\n")
        await stream.drain()
    stream.close()


def _beside_proxies(clients: Mapping[str, Client]) -> dict[str, str]:
    """Return environment variables to bypass proxies for the gateway."""
    hosts = {str(urlsplit(client.base_url).hostname) for client in clients.values()}
    told = [os.environ.get(name, "") for name in ("NO_PROXY", "no_proxy")]
    without = ",".join(dict.fromkeys(filter(None, [*",".join(told).split(","), *sorted(hosts)])))
    return {"NO_PROXY": without, "no_proxy": without}
