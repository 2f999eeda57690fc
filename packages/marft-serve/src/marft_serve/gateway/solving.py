"""How a program is run for one step: a function on a thread of its own, or a command with all that it starts."""

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

MOST_OUTPUT = 2**20  # bytes of what a command prints that are kept: the last ones
KEYS = ("answer", "reward", "success", "agent_rewards")


async def call(
    function: Callable[..., object], task: Task, clients: Mapping[str, Client], grades: bool
) -> Outcome:  # fmt: skip
    """Call a function, which may block or be awaited → what it came to.

    Raises:
        RefusedError: it returned something that is no outcome.
    """
    returned = function(task, clients)
    return outcome_of(await returned if isinstance(returned, Awaitable) else returned, clients, grades)


async def command(
    words: Sequence[str], folder: str, task: Task, clients: Mapping[str, Client], grades: bool,
    masked: Callable[[str], str] = str,
) -> Outcome:  # fmt: skip
    """Run a command: the task is on its standard input, and the last line that it prints is what it came to.

    Args:
        masked: takes secrets out of what it printed, before that is cut.

    It ends, and all that it has started with it, when it is done, when this is cancelled, and when this process ends.

    Raises:
        RefusedError: it failed, or its last line is no outcome.
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
                process.send_signal(signal.SIGINT)  # which its keeper takes for: end all, now
            await process.wait()
    if status != 0:
        complaint = masked(storable(errors.decode("utf-8", "replace"))).strip()[-1000:]
        raise RefusedError(f"ended with status {status}: {complaint or 'it said nothing'}")
    return outcome_of(printed_last(said, masked), clients, grades)


def printed_last(said: bytes, masked: Callable[[str], str] = str) -> object:
    """What the last line says. A line ends at ``\\n`` alone: other ends of lines may stand within JSON.

    Raises:
        RefusedError: it is no JSON.
    """
    line = said.strip().rpartition(b"\n")[2].decode("utf-8", "replace")
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        raise RefusedError(f"printed {cut(masked(line), 100) or 'nothing'!r} last, which is no JSON") from None


def outcome_of(result: object, roles: Collection[str], grades: bool) -> Outcome:
    """What a program came to: an answer in words or nothing, a number that is its reward, or a table of both.

    Args:
        grades: whether the program, and not the environment, says what it earns.

    Raises:
        RefusedError: it is none, or says a reward where the environment grades, or none where the program does.
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
    """The last bytes of what is printed."""
    kept = b""
    while read := await stream.read(2**16):
        kept = (kept + read)[-MOST_OUTPUT:]
    return kept


async def _write(stream: asyncio.StreamWriter, text: bytes) -> None:
    with suppress(ConnectionError):  # it reads no more
        stream.write(text + b"\n")
        await stream.drain()
    stream.close()


def _beside_proxies(clients: Mapping[str, Client]) -> dict[str, str]:
    """The gateway is on this machine, whatever proxies there are."""
    hosts = {str(urlsplit(client.base_url).hostname) for client in clients.values()}
    told = [os.environ.get(name, "") for name in ("NO_PROXY", "no_proxy")]
    without = ",".join(dict.fromkeys(filter(None, [*",".join(told).split(","), *sorted(hosts)])))
    return {"NO_PROXY": without, "no_proxy": without}
