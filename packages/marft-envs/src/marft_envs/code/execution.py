"""Judge's side outside the jail. Programs and inputs go in, and outcomes come out.

Right answers never enter the jail. Outputs are compared outside as plain values, so a program gains nothing by
manipulating its own process. In this process they stay undecoded text; :mod:`marft_envs.code.comparison` decodes them
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

from marft_envs.code import plain_values, replay, sandbox_program
from marft_envs.code.plain_values import encode

if TYPE_CHECKING:
    from marft.agents.sandbox.runner import SandboxSettings

OutcomeStatus = Literal["returned", "raised", "timed_out", "died", "too_much_output", "not_run"]
START_CODE = """
import os, sys
sys.path.insert(0, os.getcwd())
from marft_envs.code.sandbox_program import main
del sys.path[0]
main()
"""
PACKAGES = ("marft_envs", "marft_envs/code")
BYTES_PER_KB = 1024
CACHE_SIZE = 256  # maximum sources with cached imports
MAX_OUTPUT_KB = 64 * BYTES_PER_KB  # maximum output of all inputs together
EXTRA_SECONDS = 5.0  # extra seconds of the jail beyond the programs' limits
EXTRA_MB = 64  # extra memory of the jail beyond a program's limit
RECORD_HEADER = re.compile(
    rb"(\d{1,9}) (\d{1,9}) ([a-z_]+) (\d{1,9}) (\d{1,9})"
)  # header of a record (``sandbox_program.format_record``)
MAX_HEADER = 200  # maximum bytes of a header
_slots = threading.BoundedSemaphore(os.cpu_count() or 1)  # one jail per CPU core, over all judges


class JudgeError(Exception):
    """Failure of the judge. The program is not wrong: its episode leaves the batch and is counted."""


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """Function call with plain values."""

    entry: str
    arguments: tuple[Any, ...] = ()
    keywords: Mapping[str, Any] = field(default_factory=dict)

    def to_request(self) -> dict[str, object]:
        """Return the call in the order format for the jail."""
        return EncodedCall(encode([self.entry, list(self.arguments), dict(self.keywords)])).to_request()


@dataclass(frozen=True, slots=True)
class EncodedCall:
    """Call as the text ``[entry, arguments, keywords]``, decoded only in the jail."""

    text: str

    def to_request(self) -> dict[str, object]:
        """Return the call in the order format for the jail."""
        return {"kind": "call", "call": self.text}


@dataclass(frozen=True, slots=True)
class StdinInput:
    """Input for a complete program: standard input, arguments and files."""

    text: str
    argv: tuple[str, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)  # text files in the working directory, by name

    def to_request(self) -> dict[str, object]:
        """Return the input in the order format for the jail."""
        return {"kind": "feed", "text": self.text, "argv": list(self.argv), "files": dict(self.files)}


CaseInput = FunctionCall | StdinInput


@dataclass(frozen=True, slots=True)
class Outcome:
    """Outcome for an input. If it failed, ``error`` is the error.

    ``value`` is the printed text, or the returned value as text encoded by ``plain_values``, still undecoded. After the
    comparison it is the text for the report.
    """

    status: OutcomeStatus
    value: Any = None
    error: str = ""

    @property
    def is_ok(self) -> bool:
        """Return True if the program or call finished without an error."""
        return self.status == "returned"


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits for a program."""

    seconds: float = 2.0  # CPU seconds per input
    all_seconds: float = 20.0  # wall-clock seconds for all inputs of a program
    memory_mb: int = 512
    output_kb: int = 256  # KiB per input
    isolation: Literal["required", "none"] = "required"

    def sandbox_settings(self, programs: int, inputs: int) -> SandboxSettings:
        """Return limits for a jail with a number of programs and inputs."""
        # imported here: the comparison process does not need all settings
        from marft.agents.sandbox.runner import SandboxSettings

        cpu = math.ceil(self.seconds)
        return SandboxSettings(
            timeout_seconds=programs * self.all_seconds + EXTRA_SECONDS,
            cpu_seconds=math.ceil(self.all_seconds * programs) + cpu,
            memory_mb=self.memory_mb + EXTRA_MB,
            output_kb=min(MAX_OUTPUT_KB, 2 * programs * inputs * self.output_kb + BYTES_PER_KB),
            isolation=self.isolation,
        )


def run_programs(
    programs: Sequence[str],
    inputs: Sequence[CaseInput | EncodedCall],
    limits: Limits,
    setup_code: str = "",
    files: Mapping[str, bytes] | None = None,
) -> list[list[Outcome]]:
    """Run every program on every input in a single jail. Programs in the same jail must trust each other.

    This call blocks, also while as many jails are open as the machine has cores. It is thread-safe.

    Args:
        programs: sources of the programs.
        inputs: inputs for each program.
        limits: limits of each program.
        setup_code: code that runs before each program and shares its names. Line numbers do not count it.
        files: files in the working directory of all programs.

    Returns:
        One outcome per input for each program, with undecoded values.

    Raises:
        ValueError: the machine offers no isolation, and the limits require it.
        JudgeError: the jail failed.
    """
    from marft.agents.sandbox.runner import run_python

    if not programs or not inputs:
        return [[] for _ in programs]
    nonce = secrets.token_hex(16)
    request = {
        "nonce": nonce,
        "programs": list(programs),
        "inputs": [program_input.to_request() for program_input in inputs],
        "cpu_seconds": math.ceil(limits.seconds),
        "seconds": len(programs) * limits.all_seconds,
        "output_bytes": limits.output_kb * BYTES_PER_KB,
        "memory_bytes": limits.memory_mb << 20,
        "before": setup_code,
        "modules": _imported_modules(setup_code),
    }
    sandbox_files = {sandbox_program.REQUEST_FILE: json.dumps(request).encode(), **_package_files(), **(files or {})}
    with _slots:
        sandbox_result = run_python(
            START_CODE, limits.sandbox_settings(len(programs), len(inputs)), files=sandbox_files
        )
    records = _read_records(sandbox_result.stdout, nonce, len(programs) * len(inputs), limits.output_kb * BYTES_PER_KB)
    if not records and (sandbox_result.status == 97 or "Error" in sandbox_result.errors):
        raise JudgeError(
            f"the judge's own program failed: {sandbox_result.outcome}, {sandbox_result.errors.strip()[-300:]}"
        )
    missing = Outcome("timed_out" if sandbox_result.outcome == "timed_out" else "died", error=sandbox_result.outcome)
    return [[records.get((p, i), missing) for i in range(len(inputs))] for p in range(len(programs))]


@functools.lru_cache(CACHE_SIZE)
def _imported_modules(code: str) -> tuple[str, ...]:
    """Return the standard library modules imported by ``code``."""
    try:
        nodes = list(ast.walk(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ()
    named = [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    named += [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    return tuple(sorted({name for name in named if name in sys.stdlib_module_names}))


def _read_records(written: bytes, nonce: str, count: int, limit: int) -> dict[tuple[int, int], Outcome]:
    """Extract the first record for each program and input, without decoding values.

    Args:
        written: output of the jail.
        nonce: nonce at the start of each record.
        count: maximum number of records.
        limit: maximum bytes of a program's output.
    """
    records: dict[tuple[int, int], Outcome] = {}
    start, at = f"\n{nonce} ".encode(), 0
    for _ in range(count):
        at = written.find(start, at)
        end = written.find(b"\n", at + 1, at + MAX_HEADER)
        if at < 0 or end < 0:
            break
        header = RECORD_HEADER.fullmatch(written, at + len(start), end)
        at = end
        status = header[3].decode() if header else ""
        if header is None or status not in get_args(OutcomeStatus):
            continue
        program, index, message_bytes, output_bytes = (int(header[number]) for number in (1, 2, 4, 5))
        record_end = end + 1 + message_bytes + output_bytes
        if (
            message_bytes <= sandbox_program.MAX_MESSAGE_BYTES and output_bytes <= limit and record_end <= len(written)
        ):  # else it is cut off, or not ours
            message, text = written[end + 1 : end + 1 + message_bytes], written[record_end - output_bytes : record_end]
            outcome = Outcome(
                cast("OutcomeStatus", status), text.decode("utf-8", "replace"), message.decode("utf-8", "replace")
            )
            records.setdefault((program, index), outcome)
            at = record_end
    return records


@functools.cache
def _package_files() -> dict[str, bytes]:
    """Return our own source files for the jail, by path."""
    files = {f"{package}/__init__.py": b"" for package in PACKAGES}
    for module in (sandbox_program, plain_values, replay):
        assert module.__file__
        path = Path(module.__file__)
        files[f"{PACKAGES[-1]}/{path.name}"] = path.read_bytes()
    return files
