"""Judge's side outside the jail. Programs and inputs go in, and outcomes come out.

Right answers never enter the jail. Outputs are compared outside as plain values, so a program gains nothing by
manipulating its own process. In this process they stay undecoded text; :mod:`marft_envs.code.comparing` decodes them
elsewhere.
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
MOST_KEPT = 256  # maximum sources with cached imports
MOST_OUTPUT_KB = 64 * KILOBYTE  # maximum output of all inputs together
LONGER = 5.0  # extra seconds of the jail beyond the programs' limits
SPARE_MB = 64  # extra memory of the jail beyond a program's limit
HEAD = re.compile(rb"(\d{1,9}) (\d{1,9}) ([a-z_]+) (\d{1,9}) (\d{1,9})")  # header of a record (``inside.record``)
MOST_HEAD = 200  # maximum bytes of a header
_places = threading.BoundedSemaphore(os.cpu_count() or 1)  # one jail per CPU core, over all judges


class JudgingError(Exception):
    """Failure of the judge. The program is not wrong: its episode leaves the batch and is counted."""


@dataclass(frozen=True, slots=True)
class Call:
    """Function call with plain values."""

    entry: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def order(self) -> dict[str, object]:
        """Return the call in the order format for the jail."""
        return EncodedCall(encode([self.entry, list(self.arguments), dict(self.keywords)])).order()


@dataclass(frozen=True, slots=True)
class EncodedCall:
    """Call as the text ``[entry, arguments, keywords]``, decoded only in the jail."""

    text: str

    def order(self) -> dict[str, object]:
        """Return the call in the order format for the jail."""
        return {"kind": "call", "call": self.text}


@dataclass(frozen=True, slots=True)
class Feed:
    """Input for a complete program: standard input, arguments and files."""

    text: str
    argv: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # text files in the working directory, by name

    def order(self) -> dict[str, object]:
        """Return the input in the order format for the jail."""
        return {"kind": "feed", "text": self.text, "argv": list(self.argv), "files": dict(self.files)}


Given = Call | Feed


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome for an input. If it failed, ``said`` is the error.

    ``value`` is the printed text, or the returned value as text encoded by ``plain``, still undecoded. After the
    comparison it is the text for the report.
    """

    how: How
    value: Any = None
    said: str = ""

    @property
    def fine(self) -> bool:
        """Return True if the program or call finished without an error."""
        return self.how == "returned"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for a program."""

    seconds: float = 2.0  # CPU seconds per input
    all_seconds: float = 20.0  # wall-clock seconds for all inputs of a program
    memory_mb: int = 512
    output_kb: int = 256  # KiB per input
    isolation: Literal["required", "none"] = "required"

    def of_jail(self, programs: int, inputs: int) -> SandboxSettings:
        """Return limits for a jail with a number of programs and inputs."""
        from marft.agents.sandbox.settings import (
            SandboxSettings,  # imported here: the comparison process does not need all settings
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
    """Run every program on every input in a single jail. Programs in the same jail must trust each other.

    This call blocks, also while as many jails are open as the machine has cores. It is thread-safe.

    Args:
        programs: sources of the programs.
        inputs: inputs for each program.
        limits: limits of each program.
        before: code that runs before each program and shares its names. Line numbers do not count it.
        files: files in the working directory of all programs.

    Returns:
        One outcome per input for each program, with undecoded values.

    Raises:
        ValueError: the machine offers no isolation, and the limits require it.
        JudgingError: the jail failed.
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
    """Return the standard library modules imported by ``code``."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    named = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    named += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return tuple(sorted({name for name in named if name in sys.stdlib_module_names}))


def _read(written: bytes, nonce: str, count: int, most: int) -> dict[tuple[int, int], Outcome]:
    """Extract the first record for each program and input, without decoding values.

    Args:
        written: output of the jail.
        nonce: nonce at the start of each record.
        count: maximum number of records.
        most: maximum bytes of a program's output.
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
    """Return our own source files for the jail, by path."""
    files = {f"{package}/__init__.py": b"" for package in PACKAGES}
    for module in (inside, plain, replay):
        assert module.__file__
        path = Path(module.__file__)
        files[f"{PACKAGES[-1]}/{path.name}"] = path.read_bytes()
    return files
