"""What changed between two evaluated runs on the same tasks: every metric, over all tasks and by cohort; and gates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple
from xml.etree import ElementTree

from rich.table import Table
from rich.text import Text

from marft.evaluation.bootstrap import Difference, paired
from marft.evaluation.cohorts import cohorts_of
from marft.evaluation.gates import Verdict, by_metric, shown
from marft.runs.folder import RunFolder
from marft.texts import one_line

HEADINGS = ("tasks", "metric", "before", "after", "change", "95 % interval")


class Change(NamedTuple):
    """A metric of a cohort, ``level = 3``, or of all tasks."""

    cohort: str
    metric: str
    difference: Difference


def pairs_of(before: RunFolder, after: RunFolder) -> dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """By mode, what each run's last evaluated checkpoint did; its base, where no other was evaluated.

    Raises:
        ValueError: there is no mode in which both were evaluated, with what each task measured.
    """
    one, two = map(_last, (before, after))
    modes = sorted(one.keys() & two.keys())
    if not modes:
        raise ValueError(
            f"{before.path} and {after.path} were not evaluated in the same mode; run:  marft eval {before.path}  and"
            f"  marft eval {after.path}"
        )
    return {mode: (one[mode], two[mode]) for mode in modes}


def changes(before: Mapping[str, Any], after: Mapping[str, Any], by: str = "") -> list[Change]:
    """Every metric that both evaluations have, over all tasks and then by cohort.

    Args:
        by: a field of the tasks.

    Raises:
        ValueError: the tasks have no such field.
    """
    one, two = by_metric(before), by_metric(after)
    cohorts = {f"{by} = {value}": of for value, of in cohorts_of(after.get("fields", {}), by).items()} if by else {}
    found = []
    for cohort, tasks in {"all": None, **cohorts}.items():
        for metric in [name for name in one if name in two]:
            sides = ({t: r for t, r in of[metric].items() if tasks is None or t in tasks} for of in (one, two))
            difference = paired(*sides)
            if difference is not None:
                found.append(Change(cohort, metric, difference))
    return found


def changes_table(found: Sequence[Change], title: str) -> Table:
    """For the terminal."""
    table = Table(box=None, pad_edge=False, title=title, title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading in HEADINGS[:2] else "right", overflow="fold")
    for row in _rows(found):
        table.add_row(*(Text(one_line(cell)) for cell in row))
    return table


def as_markdown(found: Mapping[str, Sequence[Change]], verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """A page, by mode: the gates, and then what changed."""
    lines = []
    pipe = str.maketrans({"|": "\\|"})
    for mode, some in found.items():
        lines += [f"## {mode}", ""]
        lines += [f"- {'**failed**' if v.failed else 'passed'}: `{v.gate.text}`: {v.reason}" for v in verdicts[mode]]
        lines += ["", f"| {' | '.join(HEADINGS)} |", f"| {' | '.join('---' for _ in HEADINGS)} |"]
        lines += [f"| {' | '.join(one_line(cell).translate(pipe) for cell in row)} |" for row in _rows(some)]
        lines.append("")
    return "\n".join(lines)


def as_junit(verdicts: Mapping[str, Sequence[Verdict]]) -> str:
    """A test case for each gate, as CI services read them."""
    every = [(mode, verdict) for mode, some in verdicts.items() for verdict in some]
    failures = str(sum(verdict.failed for _, verdict in every))
    suite = ElementTree.Element("testsuite", name="marft compare", tests=str(len(every)), failures=failures)
    for mode, verdict in every:
        case = ElementTree.SubElement(suite, "testcase", classname=mode, name=verdict.gate.text)
        if verdict.failed:
            ElementTree.SubElement(case, "failure", message=one_line(verdict.reason))
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True) + "\n"


def _last(folder: RunFolder) -> dict[str, Mapping[str, Any]]:
    """By mode; checkpoints go by their steps, and ``base`` before all."""
    own: list[Mapping[str, Any]] = [
        e for e in folder.read_evaluations() if not e["shuffled_messages"] and e.get("measured")
    ]
    ordered = sorted(own, key=lambda e: (e["checkpoint"] != "base", str(e["checkpoint"])))
    return {evaluation["mode"]: evaluation for evaluation in ordered}


def _rows(found: Sequence[Change]) -> Iterator[tuple[str, ...]]:
    for cohort, metric, difference in found:
        value, change = shown(metric)
        low_high = difference.interval
        interval = f"{change(low_high[0])} to {change(low_high[1])}" if low_high else ""
        named = f"{difference.tasks}" if cohort == "all" else f"{difference.tasks}, {cohort}"
        yield named, metric, value(difference.before), value(difference.after), change(difference.gain), interval
