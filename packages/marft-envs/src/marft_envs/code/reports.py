"""Short reports for the team on visible cases and their outcomes."""

from __future__ import annotations

from marft.common.texts import cut
from marft_envs.code.judging import Call, Outcome
from marft_envs.code.plain import shown
from marft_envs.code.problems import Case

LONGEST = 200  # maximum characters of a value
MOST = 6  # maximum reported cases
ENDINGS = {
    "timed_out": "ran out of time", "too_much_output": "printed too much", "died": "ended the process",
    "not_run": "was not run: no time was left",
}  # fmt: skip
RIGHT = "right"


def case_in_words(case: Case) -> str:
    """Describe a case: ``f(2) == 5``, or its input and output texts."""
    if isinstance(case.given, Call):
        return f"{call_in_words(case.given)} == {cut(shown(case.right[0]), LONGEST)}"
    return f"Input:\n{cut(case.given.text, LONGEST).rstrip()}\nOutput:\n{cut(str(case.right[0]), LONGEST).rstrip()}"


def call_in_words(call: Call) -> str:
    """Describe a call: ``f(2, y=[1])``."""
    words = [*map(shown, call.arguments), *(f"{key}={shown(value)}" for key, value in call.keywords.items())]
    return cut(f"{call.entry}({', '.join(words)})", LONGEST)


def report(cases: tuple[tuple[Case, Outcome, bool], ...]) -> str:
    """Report cases, one per line, wrong cases first: ``f(2) gives 6, not 5``; ``f(1) gives 4: right``.

    Args:
        cases: cases with their outcomes in report form (:class:`marft_envs.code.comparing.Reader`), and True if right.
    """
    ordered = sorted(cases, key=lambda entry: entry[2])
    return "\n".join(_line(*entry) for entry in ordered[:MOST])


def _line(case: Case, outcome: Outcome, right: bool) -> str:
    if isinstance(case.given, Call):
        what, wanted = call_in_words(case.given), shown(case.right[0])
    else:
        what, wanted = cut(f"Input {case.given.text.strip()!r}", LONGEST), repr(str(case.right[0]).strip())
    if outcome.how == "raised":
        return f"{what} fails: {cut(outcome.said, LONGEST)}"
    if not outcome.fine:
        return f"{what} {ENDINGS[outcome.how]}"
    told = f"{what} gives {outcome.value}"
    return f"{told}: {RIGHT}" if right else f"{told}, not {cut(wanted, LONGEST)}"
