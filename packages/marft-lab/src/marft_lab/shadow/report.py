"""Report of a shadow: JSON, sentences and a plot."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from marft.common import atomic
from marft.common.texts import one_line
from marft_lab.shadow.comparing import State
from marft_lab.shadow.evidence import Evidence, Verdict
from marft_lab.shadow.journal import Line
from marft_lab.shadow.settings import ShadowSettings

REPORT, PICTURE = "report.json", "report.svg"
POINTS = 400  # maximum points of a curve
INCHES = (6.4, 3.2)


def report_of(state: State, about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the report as JSON data.

    All values except the skipped sessions follow from the journal.
    """
    lines, compared = state.lines, _compared(state.lines)
    left_out = Counter(line.why for line in lines if line.kind == "left_out")
    unanswered = sum(bool(line.why) for line in compared)
    return {
        "verdict": asdict(state.verdict),
        "about": dict(about),
        "served": _mean([line.served for line in compared]),
        "shadow": _mean([line.shadow for line in compared]),
        "better": sum(_difference(line) > 0 for line in compared),
        "worse": sum(_difference(line) < 0 for line in compared),
        "shadow_without_answer": unanswered,
        "clipped": sum(line.clipped for line in compared),
        "left_out": dict(left_out),
        "dropped": sum(line.kind == "dropped" for line in lines),
        "tools": {
            "answered": sum(line.answered for line in lines),
            "refused": sum(line.refused for line in lines),
            "sessions_with_refused": sum(bool(line.refused) for line in lines),
        },
        "effects_refused": sum(line.effects for line in lines),
        "passed": asdict(state.passed),
    }


def _meaning(verdict: Mapping[str, Any], margin: float) -> str:
    """Return the meaning of a verdict; with a margin, promotion shows non-inferiority instead of improvement."""
    if verdict["word"] == "hold":
        return "nothing is shown yet"
    if not margin:
        which = "better" if verdict["word"] == "promote" else "worse"
        return f"shown to be {which} than the served team, by the rules given"
    if verdict["word"] == "stop":
        return f"shown to be worse than the served team by more than the margin, {margin:g}"
    also = ", and better than it" if verdict["lower"] > 0 else ""
    return f"shown to be worse than the served team by less than the margin, {margin:g}{also}"


def sentences(report: Mapping[str, Any], settings: ShadowSettings) -> Iterator[str]:
    """Yield the sentences that explain the numbers."""
    verdict, tools = report["verdict"], report["tools"]
    end = "" if verdict["word"] != "hold" or not verdict["final"] else f"; it ends with {settings.most} sessions"
    yield f"{verdict['word']}: {_meaning(verdict, settings.margin)}{end}"
    not_promoted, not_stopped = (
        (f"worse by {settings.margin:g} or more", f"worse by {settings.margin:g} or less")
        if settings.margin
        else ("not better", "not worse")
    )
    yield (
        f"a team that is {not_promoted} is promoted in {settings.false_promotions:.1%} of cases at most, and one that "
        f"is {not_stopped} stopped in {settings.false_stops:.1%}, however often one looks"
    )
    if report["shadow_without_answer"]:
        yield f"{report['shadow_without_answer']} sessions had no answer of the shadow, which is worth {settings.low:g}"
    if tools["sessions_with_refused"]:
        yield (
            f"{tools['sessions_with_refused']} sessions had calls of tools without a recorded answer "
            f"({tools['refused']} calls): the shadow is held back there, and they "
            f"{'count' if settings.refused == 'count' else 'are left out'} (shadow.refused)"
        )
    if report["effects_refused"]:
        yield f"{report['effects_refused']} times a part of the shadow tried to have an effect, and was refused"
    if report["clipped"]:
        yield f"{report['clipped']} sessions were worth less than shadow.low, or more than shadow.high: cut to it"
    for why, count in report["left_out"].items():
        yield f"{count} sessions were left out: {one_line(why)}"
    passed = report["passed"]
    if report["dropped"]:
        yield f"{report['dropped']} sessions were dropped, because more waited than shadow.backlog"
    if passed["no_answer"]:
        yield f"{passed['no_answer']} sessions hold no answer of a whole team: of a role, failed, or old"
    for problem in passed["unreadable"]:
        yield one_line(problem)


def write_report(folder: Path, report: Mapping[str, Any], state: State, settings: ShadowSettings) -> Path:
    """Write the report and its plot; return the path of the report."""
    atomic.write_file(folder / REPORT, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    compared = _compared(state.lines)
    if compared:
        atomic.write_file(folder / PICTURE, picture([_difference(line) for line in compared], settings))
    return folder / REPORT


def picture(differences: Sequence[float], settings: ShadowSettings) -> str:
    """Plot the mean difference after each session with its bounds, as SVG."""
    from matplotlib.figure import Figure

    from marft.evaluation.pages import svg

    evidence, every = Evidence(settings), max(1, len(differences) // POINTS)
    seen: list[Verdict] = []
    for number, difference in enumerate(differences, 1):
        verdict = evidence.add(difference)
        if number % every == 0 or number == len(differences):
            seen.append(verdict)
    figure = Figure(figsize=INCHES, layout="constrained")
    axes = figure.subplots()
    at = [verdict.sessions for verdict in seen]
    axes.fill_between(at, [v.lower for v in seen], [v.upper for v in seen], color="C0", alpha=0.2, linewidth=0)
    axes.plot(at, [verdict.mean or 0.0 for verdict in seen], color="C0")
    axes.axhline(-settings.margin, color="black", linewidth=0.8, linestyle="--")
    axes.set_xlabel("sessions")
    axes.set_ylabel("score, shadow − served")
    return str(svg(figure))


def _compared(lines: Sequence[Line]) -> list[Line]:
    return [line for line in lines if line.kind == "compared"]


def _difference(line: Line) -> float:
    assert line.served is not None
    assert line.shadow is not None
    return line.shadow - line.served


def _mean(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
