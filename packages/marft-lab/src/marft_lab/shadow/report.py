"""Report of a shadow: JSON, sentences and a plot."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from marft.common import atomic
from marft.common.texts import single_line
from marft_lab.shadow.comparison import ShadowState
from marft_lab.shadow.sequential_test import SequentialTest, Verdict
from marft_lab.shadow.sessions import SessionEvent
from marft_lab.shadow.settings import ShadowSettings

REPORT_FILE, PLOT_FILE = "report.json", "report.svg"
MAX_POINTS = 400  # maximum points of a curve
FIGURE_SIZE = (6.4, 3.2)


def build_report(state: ShadowState, identity: Mapping[str, object]) -> dict[str, object]:
    """Return the report as JSON data.

    All values except the skipped sessions follow from the journal.
    """
    lines, compared_events = state.events, _select_compared(state.events)
    left_out = Counter(line.why for line in lines if line.kind == "left_out")
    unanswered = sum(bool(line.why) for line in compared_events)
    return {
        "verdict": asdict(state.verdict),
        "about": dict(identity),
        "served": _mean([line.served for line in compared_events]),
        "shadow": _mean([line.shadow for line in compared_events]),
        "better": sum(line.difference > 0 for line in compared_events),
        "worse": sum(line.difference < 0 for line in compared_events),
        "shadow_without_answer": unanswered,
        "clipped": sum(line.clipped for line in compared_events),
        "left_out": dict(left_out),
        "dropped": sum(line.kind == "dropped" for line in lines),
        "tools": {
            "answered": sum(line.answered for line in lines),
            "refused": sum(line.refused for line in lines),
            "sessions_with_refused": sum(bool(line.refused) for line in lines),
        },
        "effects_refused": sum(line.effects for line in lines),
        "passed": asdict(state.skipped),
    }


def _explain_verdict(verdict: Mapping[str, Any], margin: float) -> str:
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


def explain_report(report: Mapping[str, Any], settings: ShadowSettings) -> Iterator[str]:
    """Yield the sentences that explain the numbers."""
    verdict, tools = report["verdict"], report["tools"]
    held = verdict["word"] == "hold" and verdict["final"]
    end = f"; it ends with {settings.max_sessions} sessions" if held else ""
    yield f"{verdict['word']}: {_explain_verdict(verdict, settings.margin)}{end}"
    not_promoted, not_stopped = "not better", "not worse"
    if settings.margin:
        not_promoted, not_stopped = (f"worse by {settings.margin:g} or {amount}" for amount in ("more", "less"))
    yield (
        f"a team that is {not_promoted} is promoted in {settings.false_promotions:.1%} of cases at most, and one that "
        f"is {not_stopped} stopped in {settings.false_stops:.1%}, however often one looks"
    )
    if report["shadow_without_answer"]:
        yield (
            f"{report['shadow_without_answer']} sessions had no answer of the shadow, which is worth "
            f"{settings.min_score:g}"
        )
    if tools["sessions_with_refused"]:
        yield (
            f"{tools['sessions_with_refused']} sessions had calls of tools without a recorded answer "
            f"({tools['refused']} calls): the shadow is held back there, and they "
            f"{'count' if settings.refused == 'count' else 'are left out'} (shadow.refused)"
        )
    if report["effects_refused"]:
        yield f"{report['effects_refused']} times a part of the shadow tried to have an effect, and was refused"
    if report["clipped"]:
        yield (
            f"{report['clipped']} sessions were worth less than shadow.min_score, or more than shadow.max_score: cut "
            "to it"
        )
    for reason, count in report["left_out"].items():
        yield f"{count} sessions were left out: {single_line(reason)}"
    passed = report["passed"]
    if report["dropped"]:
        yield f"{report['dropped']} sessions were dropped, because more waited than shadow.backlog"
    if passed["no_answer"]:
        yield f"{passed['no_answer']} sessions hold no answer of a whole team: of a role, failed, or old"
    for problem in passed["unreadable"]:
        yield single_line(problem)


def write_report(folder: Path, report: Mapping[str, object], state: ShadowState, settings: ShadowSettings) -> Path:
    """Write the report and its plot; return the path of the report."""
    atomic.write_file(folder / REPORT_FILE, json.dumps(report, indent=1, ensure_ascii=False) + "\n")
    compared_events = _select_compared(state.events)
    if compared_events:
        differences = [line.difference for line in compared_events]
        atomic.write_file(folder / PLOT_FILE, plot_differences(differences, settings))
    return folder / REPORT_FILE


def plot_differences(differences: Sequence[float], settings: ShadowSettings) -> str:
    """Plot the mean difference after each session with its bounds, as SVG."""
    from matplotlib.figure import Figure

    from marft.evaluation.html_pages import to_svg

    sequential_test, interval = SequentialTest(settings), max(1, len(differences) // MAX_POINTS)
    seen: list[Verdict] = []
    for number, difference in enumerate(differences, 1):
        verdict = sequential_test.add(difference)
        if number % interval == 0 or number == len(differences):
            seen.append(verdict)
    figure = Figure(figsize=FIGURE_SIZE, layout="constrained")
    axes = figure.subplots()
    at = [verdict.sessions for verdict in seen]
    axes.fill_between(at, [v.lower for v in seen], [v.upper for v in seen], color="C0", alpha=0.2, linewidth=0)
    axes.plot(at, [verdict.mean or 0.0 for verdict in seen], color="C0")
    axes.axhline(-settings.margin, color="black", linewidth=0.8, linestyle="--")
    axes.set_xlabel("sessions")
    axes.set_ylabel("score, shadow − served")
    return str(to_svg(figure))


def _select_compared(lines: Sequence[SessionEvent]) -> list[SessionEvent]:
    return [line for line in lines if line.kind == "compared"]


def _mean(values: Sequence[float | None]) -> float | None:
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None
