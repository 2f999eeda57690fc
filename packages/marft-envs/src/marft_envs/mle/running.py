"""Run of a team's program in the sandbox: public files in, submission.csv out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from marft.agents.sandbox.runner import run_python
from marft.agents.sandbox.settings import SandboxSettings

PROGRAM, SUBMISSION = "solution.py", "submission.csv"
PRINTED = 4000  # characters of the program's output to keep, from the end
AROUND = f"""
import contextlib, io, json, runpy, traceback
printed = io.StringIO()
with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
    try:
        runpy.run_path({PROGRAM!r}, run_name="__main__")
    except SystemExit:
        pass
    except BaseException as error:
        print("".join(traceback.format_exception_only(error)))
try:
    with open({SUBMISSION!r}, encoding="utf-8") as file:
        left = file.read()
except (OSError, UnicodeDecodeError):
    left = None
print(json.dumps([printed.getvalue()[-{PRINTED}:], left]))
"""
TEXT = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
TOLD = re.compile(rf"\[{TEXT}, (?:{TEXT}|null)\]")  # two JSON texts and nothing nested
ENDED = {
    "timed_out": "it ran out of time", "killed": "it was ended by a limit of time, memory or files",
    "too_much_output": "its submission is too large", "failed": "it ended before it was through",
    "finished": "it ended before it was through",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Left:
    """Result of a program.

    Args:
        printed: last part of the program's output, or the reason for its end.
        submission: content of submission.csv; None if missing or not UTF-8.
    """

    printed: str
    submission: str | None


def run(program: str, public: Mapping[str, bytes], limits: SandboxSettings) -> Left:
    """Run a program with the public files in the sandbox, without any answers.

    Raises:
        ValueError: the machine offers no isolation, and the limits require it.
    """
    ran = run_python(AROUND, limits, files={**public, PROGRAM: program.encode("utf-8", "replace")})
    try:
        told = TOLD.fullmatch(ran.output.rstrip("\n").rpartition("\n")[2])
        printed, submission = json.loads(told[0]) if told else (ENDED[ran.outcome], None)
    except ValueError:  # invalid JSON string
        return Left(ENDED[ran.outcome], None)
    return Left(printed.strip(), submission)
