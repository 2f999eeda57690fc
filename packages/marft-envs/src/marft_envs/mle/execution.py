"""Run of a team's program in the sandbox: public files in, submission.csv out."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

from marft.agents.sandbox.runner import run_python
from marft.agents.sandbox.settings import SandboxSettings

PROGRAM_FILE, SUBMISSION_FILE = "solution.py", "submission.csv"
MAX_PRINTED = 4000  # characters of the program's output to keep, from the end
RUNNER_CODE = f"""
import contextlib, io, json, runpy, traceback
printed = io.StringIO()
with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
    try:
        runpy.run_path({PROGRAM_FILE!r}, run_name="__main__")
    except SystemExit:
        pass
    except BaseException as error:
        print("".join(traceback.format_exception_only(error)))
try:
    with open({SUBMISSION_FILE!r}, encoding="utf-8") as file:
        left = file.read()
except (OSError, UnicodeDecodeError):
    left = None
print(json.dumps([printed.getvalue()[-{MAX_PRINTED}:], left]))
"""
TEXT_PATTERN = r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'
RESULT_PATTERN = re.compile(rf"\[{TEXT_PATTERN}, (?:{TEXT_PATTERN}|null)\]")  # two JSON texts and nothing nested
OUTCOME_TEXTS = {
    "timed_out": "it ran out of time",
    "killed": "it was ended by a limit of time, memory or files",
    "too_much_output": "its submission is too large",
    "failed": "it ended before it was through",
    "finished": "it ended before it was through",
}


@dataclass(frozen=True, slots=True)
class ProgramResult:
    """Result of a program.

    Args:
        printed: last part of the program's output, or the reason for its end.
        submission: content of submission.csv; None if missing or not UTF-8.
    """

    printed: str
    submission: str | None


def run_program(program: str, public: Mapping[str, bytes], limits: SandboxSettings) -> ProgramResult:
    """Run a program with the public files in the sandbox, without any answers.

    Raises:
        ValueError: the machine offers no isolation, and the limits require it.
    """
    sandbox_result = run_python(RUNNER_CODE, limits, files={**public, PROGRAM_FILE: program.encode("utf-8", "replace")})
    try:
        result_match = RESULT_PATTERN.fullmatch(sandbox_result.output.rstrip("\n").rpartition("\n")[2])
        printed, submission = (
            json.loads(result_match[0]) if result_match else (OUTCOME_TEXTS[sandbox_result.outcome], None)
        )
    except ValueError:  # invalid JSON string
        return ProgramResult(OUTCOME_TEXTS[sandbox_result.outcome], None)
    return ProgramResult(printed.strip(), submission)
