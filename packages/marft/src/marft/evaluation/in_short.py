"""Comparison summaries: a few lines for terminals, and HTML for notebooks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from marft.common.texts import one_line
from marft.evaluation.changes import HEADINGS, Change, rows_of
from marft.evaluation.gates import Verdict
from marft.evaluation.turned import Turned

SHOWN = HEADINGS[1:]  # the title states the number of tasks
LEFT = 1  # number of left-aligned columns


def in_a_line(changes: Mapping[str, Sequence[Change]], verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """Summarize the change in accuracy, or else in reward, for each evaluation, with the number of failed gates."""
    said = []
    for label, some in changes.items():
        first = {change.metric: change for change in reversed(_of_team(some))}
        found = first.get("accuracy") or first.get("reward")
        if found:
            ((_, metric, before, after, change, interval),) = rows_of([found])
            said.append(
                f"{one_line(label)}: {metric} {before} → {after} ({change}{f', {interval}' if interval else ''})"
            )
        else:
            said.append(one_line(label))
    return "; ".join([*said, *([_gates(verdicts)] if _gates(verdicts) else [])])


def as_text(
    changes: Mapping[str, Sequence[Change]], verdicts: Mapping[str, Sequence[Verdict]], turned: Mapping[str, Turned]
) -> str:
    """Return the team's metric changes, changed outcomes and gates as text."""
    lines = list[str]()
    for label, some in changes.items():
        team = _of_team(some)
        lines += [_title(label, team), *_aligned([SHOWN, *_cells(team)])]
        lines += [f"of all tasks {turned[label].sentence}"] if turned[label].sentence else []
        lines += [f"{_word(one)}: {one_line(one.gate.text)}: {one_line(one.reason)}" for one in verdicts[label]]
        lines.append("")
    return "\n".join(lines).rstrip()


def as_html(
    changes: Mapping[str, Sequence[Change]], verdicts: Mapping[str, Sequence[Verdict]], turned: Mapping[str, Turned]
) -> str:
    """Return the team's metric changes, changed outcomes and gates as HTML for a notebook."""
    parts = list[str]()
    for label, some in changes.items():
        team = _of_team(some)
        body = "".join(_row(cells, "td") for cells in _cells(team))
        parts += [f"<p><b>{_shown(_title(label, team))}</b></p>", f"<table>{_row(SHOWN, 'th')}{body}</table>"]
        parts += [f"<p>of all tasks {_shown(turned[label].sentence)}</p>"] if turned[label].sentence else []
        said = "".join(
            f"<li><b>{_word(one)}</b>: <code>{_shown(one.gate.text)}</code>: {_shown(one.reason)}</li>"
            for one in verdicts[label]
        )
        parts += [f"<ul>{said}</ul>"] if said else []
    return "\n".join(parts)


def _of_team(some: Sequence[Change]) -> list[Change]:
    """Return the changes in the team's metrics over all tasks."""
    return [change for change in some if change.cohort == "all" and not change.metric.startswith("agents/")]


def _title(label: str, team: Sequence[Change]) -> str:
    tasks = max((change.difference.tasks for change in team), default=0)
    return f"{one_line(label)}, {tasks} tasks"


def _cells(some: Sequence[Change]) -> Iterator[Sequence[str]]:
    return (tuple(one_line(cell) for cell in cells[1:]) for cells in rows_of(some))


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for cells in rows:
        padded = [
            cell.ljust(width) if number < LEFT else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        lines.append("  ".join(padded).rstrip())
    return lines


def _row(cells: Sequence[str], kind: str) -> str:
    told = [
        f'<{kind} style="text-align: {"left" if number < LEFT else "right"}">{_shown(cell)}</{kind}>'
        for number, cell in enumerate(cells)
    ]
    return f"<tr>{''.join(told)}</tr>"


def _gates(verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    every = [verdict for some in verdicts.values() for verdict in some]
    failed = sum(verdict.failed for verdict in every)
    return f"{failed} of {len(every)} gates failed" if every else ""


def _word(verdict: Verdict) -> str:
    return "failed" if verdict.failed else "passed"


def _shown(text: str) -> str:
    return escape(one_line(text))
