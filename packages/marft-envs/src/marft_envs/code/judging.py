"""The judge's side outside: programs and inputs go into a jail, and what came of each comes back.

A right answer never goes in. What a program returns or prints is compared out here, as plain values, so that nothing
that it does to its own process earns it anything: it has to know the answer. It stays undecoded text in this process:
:mod:`marft_envs.code.comparing` has it read elsewhere.
"""

from __future__ import annotations

import ast
import functools
import json
import math
import os
import re
import secrets
import sys
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast, get_args

from marft_envs.code import inside, plain, replay
from marft_envs.code.plain import encode

if TYPE_CHECKING:
    from marft.agents.sandbox.settings import SandboxSettings

How = Literal["returned", "raised", "timed_out", "died", "too_much_output", "not_run"]
BEGIN = """
import os, sys
sys.path.insert(0, os.getcwd())
from marft_envs.code.inside import main
del sys.path[0]
main()
"""
PACKAGES = ("marft_envs", "marft_envs/code")
KILOBYTE = 1024
MOST_KEPT = 256  # codes whose imports are remembered
MOST_OUTPUT_KB = 64 * KILOBYTE  # of all inputs together
LONGER = 5.0  # seconds that the jail has beyond what the programs in it have
SPARE_MB = 64  # that the jail has beyond what one program has
HEAD = re.compile(rb"(\d{1,9}) (\d{1,9}) ([a-z_]+) (\d{1,9}) (\d{1,9})")  # of a record: ``inside.record`` writes it
MOST_HEAD = 200  # bytes of it
_places = threading.BoundedSemaphore(os.cpu_count() or 1)  # a jail for each core, whoever judges


class JudgingError(Exception):
    """A program could not be judged. It is not wrong: its episode leaves the batch and is counted."""


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a function, with plain values."""

    entry: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def order(self) -> dict[str, object]:
        return EncodedCall(encode([self.entry, list(self.arguments), dict(self.keywords)])).order()


@dataclass(frozen=True, slots=True)
class EncodedCall:
    """A call as the text of ``[entry, arguments, keywords]``, which is decoded in the jail alone."""

    text: str

    def order(self) -> dict[str, object]:
        return {"kind": "call", "call": self.text}


@dataclass(frozen=True, slots=True)
class Feed:
    """A whole program that reads standard input, and prints."""

    text: str
    argv: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # beside it

    def order(self) -> dict[str, object]:
        return {"kind": "feed", "text": self.text, "argv": list(self.argv), "files": dict(self.files)}


Given = Call | Feed


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one input; ``said`` is the error of one that failed.

    ``value`` is what a program printed, or the text of what a call returned, as ``plain`` writes it: nobody has
    decoded it. Once it is compared, it is what a report shows of that.
    """

    how: How
    value: Any = None
    said: str = ""

    @property
    def fine(self) -> bool:
        return self.how == "returned"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a program may take."""

    seconds: float = 2.0  # of processor time, for each input
    all_seconds: float = 20.0  # on the clock, for all inputs of a program
    memory_mb: int = 512
    output_kb: int = 256  # for each input
    isolation: Literal["required", "none"] = "required"

    def of_jail(self, programs: int, inputs: int) -> SandboxSettings:
        """Limits of a jail in which so many programs meet so many inputs."""
        from marft.agents.sandbox.settings import (
            SandboxSettings,  # not where results are compared: it imports all settings
        )

        cpu = math.ceil(self.seconds)
        return SandboxSettings(
            seconds=programs * self.all_seconds + LONGER, cpu_seconds=math.ceil(self.all_seconds * programs) + cpu,
            memory_mb=self.memory_mb + SPARE_MB, output_kb=min(MOST_OUTPUT_KB, 2 * programs * inputs * self.output_kb
            + KILOBYTE), isolation=self.isolation,
        )  # fmt: skip


def outcomes(
    programs: Sequence[str], inputs: Sequence[Given | EncodedCall], limits: Limits, before: str = "",
    files: Mapping[str, bytes] | None = None,
) -> list[list[Outcome]]:  # fmt: skip
    """Run every program on every input, all in one jail: programs of one jail have to trust each other.

    Blocks, also until fewer jails are open than the machine has cores. Safe to call from many threads.

    Args:
        before: code that runs before each program, whose names are there for it; lines are counted without it.
        files: what lies in the working folder of all programs.

    Returns:
        By program, one outcome an input, whose value is text that nobody has decoded.

    Raises:
        ValueError: the machine offers no isolation, and the limits require it.
        JudgingError: there is no jail after all.
    """
    from marft.agents.sandbox.runner import run_python

    if not programs or not inputs:
        return [[] for _ in programs]
    nonce = secrets.token_hex(16)
    order = {
        "nonce": nonce, "programs": list(programs), "inputs": [given.order() for given in inputs],
        "cpu_seconds": math.ceil(limits.seconds), "seconds": len(programs) * limits.all_seconds,
        "output_bytes": limits.output_kb * KILOBYTE, "memory_bytes": limits.memory_mb << 20, "before": before,
        "modules": _modules_of(before),
    }  # fmt: skip
    here = {inside.ORDER: json.dumps(order).encode(), **_our_files(), **(files or {})}
    with _places:
        ran = run_python(BEGIN, limits.of_jail(len(programs), len(inputs)), files=here)
    found = _read(ran.written, nonce, len(programs) * len(inputs), limits.output_kb * KILOBYTE)
    if not found and (ran.status == 97 or "Error" in ran.errors):
        raise JudgingError(f"the judge's own program failed: {ran.outcome}, {ran.errors.strip()[-300:]}")
    lost = Outcome("timed_out" if ran.outcome == "timed_out" else "died", said=ran.outcome)
    return [[found.get((p, i), lost) for i in range(len(inputs))] for p in range(len(programs))]


@functools.lru_cache(MOST_KEPT)
def _modules_of(code: str) -> tuple[str, ...]:
    """Modules of the standard library that code imports."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    named = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    named += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return tuple(sorted({name for name in named if name in sys.stdlib_module_names}))


def _read(written: bytes, nonce: str, count: int, most: int) -> dict[tuple[int, int], Outcome]:
    """What our own records say, the first about each program and input: found and cut out, not decoded.

    Args:
        count: of records that there may be.
        most: bytes of a program's output.
    """
    found: dict[tuple[int, int], Outcome] = {}
    start, at = f"\n{nonce} ".encode(), 0
    for _ in range(count):
        at = written.find(start, at)
        end = written.find(b"\n", at + 1, at + MOST_HEAD)
        if at < 0 or end < 0:
            break
        head = HEAD.fullmatch(written, at + len(start), end)
        at = end
        how = head[3].decode() if head else ""
        if head is None or how not in get_args(How):
            continue
        program, index, said, output = (int(head[number]) for number in (1, 2, 4, 5))
        until = end + 1 + said + output
        if said <= inside.MOST_SAID and output <= most and until <= len(written):  # else it is cut off, or not ours
            words, text = written[end + 1 : end + 1 + said], written[until - output : until]
            outcome = Outcome(cast("How", how), text.decode("utf-8", "replace"), words.decode("utf-8", "replace"))
            found.setdefault((program, index), outcome)
            at = until
    return found


@functools.cache
def _our_files() -> dict[str, bytes]:
    """What is ours in the jail."""
    files = {f"{package}/__init__.py": b"" for package in PACKAGES}
    for module in (inside, plain, replay):
        assert module.__file__
        path = Path(module.__file__)
        files[f"{PACKAGES[-1]}/{path.name}"] = path.read_bytes()
    return files
