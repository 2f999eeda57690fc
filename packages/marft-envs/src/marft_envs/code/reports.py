"""Short reports for the team on visible cases and their outcomes."""

from __future__ import annotations

from marft.common.texts import truncate
from marft_envs.code.execution import FunctionCall, Outcome
from marft_envs.code.plain_values import safe_repr
from marft_envs.code.problems import Case

MAX_VALUE = 200  # maximum characters of a value
MAX_CASES = 6  # maximum reported cases
STATUS_TEXTS = {
    "timed_out": "ran out of time",
    "too_much_output": "printed too much",
    "died": "ended the process",
    "not_run": "was not run: no time was left",
}
RIGHT_TEXT = "right"


def describe_case(case: Case) -> str:
    """Describe a case: ``f(2) == 5``, or its input and output texts."""
    if isinstance(case.input, FunctionCall):
        return f"{describe_call(case.input)} == {truncate(safe_repr(case.expected[0]), MAX_VALUE)}"
    expected = truncate(str(case.expected[0]), MAX_VALUE).rstrip()
    return f"Input:\n{truncate(case.input.text, MAX_VALUE).rstrip()}\nOutput:\n{expected}"


def describe_call(call: FunctionCall) -> str:
    """Describe a call: ``f(2, y=[1])``."""
    words = [*map(safe_repr, call.arguments), *(f"{key}={safe_repr(value)}" for key, value in call.keywords.items())]
    return truncate(f"{call.entry}({', '.join(words)})", MAX_VALUE)


def format_report(cases: tuple[tuple[Case, Outcome, bool], ...]) -> str:
    """Report cases, one per line, wrong cases first: ``f(2) gives 6, not 5``; ``f(1) gives 4: right``.

    Args:
        cases: cases with their outcomes in report form (:class:`marft_envs.code.comparison.OutputReader`), and True if
            right.
    """
    ordered = sorted(cases, key=lambda entry: entry[2])
    return "\n".join(_format_line(*entry) for entry in ordered[:MAX_CASES])


def _format_line(case: Case, outcome: Outcome, right: bool) -> str:
    if isinstance(case.input, FunctionCall):
        call_text, expected = describe_call(case.input), safe_repr(case.expected[0])
    else:
        call_text, expected = (
            truncate(f"Input {case.input.text.strip()!r}", MAX_VALUE),
            repr(str(case.expected[0]).strip()),
        )
    if outcome.status == "raised":
        return f"{call_text} fails: {truncate(outcome.error, MAX_VALUE)}"
    if not outcome.is_ok:
        return f"{call_text} {STATUS_TEXTS[outcome.status]}"
    gives_text = f"{call_text} gives {outcome.value}"
    return f"{gives_text}: {RIGHT_TEXT}" if right else f"{gives_text}, not {truncate(expected, MAX_VALUE)}"
