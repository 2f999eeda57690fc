"""Comparison between two evaluated teams: gates and metric changes, for people, CI and Python."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from marft.evaluation.changes import Change, as_junit, as_markdown, changes
from marft.evaluation.definitions import check_tools
from marft.evaluation.gates import Verdict, by_metric, judged
from marft.evaluation.in_short import as_html, as_text, in_a_line
from marft.evaluation.turned import Turned, turned
from marft.runs.folder import RunFolder

NAMED = 5  # maximum number of tasks in an error message
SHOWN = 8  # shown digits of a digest
Saved = Mapping[str, Any]  # a saved evaluation


class Under(NamedTuple):
    """Evaluation conditions: mode, scenarios and team.

    Args:
        mode: ``greedy`` or ``sampled``.
        scenarios: digest of the set of scenarios; "" for held-out tasks.
        team: digest of the team's reorganization; "" for the team as trained.
    """

    mode: str
    scenarios: str = ""
    team: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Comparison:
    """Gate verdicts, metric changes and changed task outcomes between two teams.

    All are keyed by evaluation conditions, such as ``greedy`` or ``sampled on smoke``.

    ``passed`` is True if every gate held. ``reasons`` lists the reasons of the failed gates. Printed, or as the last
    value of a notebook cell, a comparison is a small table.
    """

    verdicts: Mapping[str, Sequence[Verdict]]
    changes: Mapping[str, Sequence[Change]]
    turned: Mapping[str, Turned]

    def __repr__(self) -> str:
        return f"Comparison({in_a_line(self.changes, self.verdicts)})"

    def __str__(self) -> str:
        return as_text(self.changes, self.verdicts, self.turned)

    def _repr_html_(self) -> str:
        return as_html(self.changes, self.verdicts, self.turned)

    @property
    def passed(self) -> bool:
        """True if no gate failed."""
        return not self.reasons

    @property
    def reasons(self) -> list[str]:
        """Failure reason for each failed gate."""
        return [
            f"{verdict.gate.text} ({label}): {verdict.reason}"
            for label, some in self.verdicts.items()
            for verdict in some
            if verdict.failed
        ]

    def as_markdown(self) -> str:
        """Return a Markdown page with the gates and the changes."""
        return as_markdown(self.changes, self.verdicts, self.turned)

    def as_junit(self) -> str:
        """Return the gates as test cases, in JUnit XML."""
        return as_junit(self.verdicts, self.turned)


def compared(
    before: Sequence[Saved], after: Sequence[Saved], names: tuple[str, str], gates: Sequence[str] = (), by: str = "",
    *, other_tools: bool = False, after_as: str = "",
) -> Comparison:  # fmt: skip
    """Compare two sets of saved evaluations.

    The comparison covers each mode and each set of scenarios that both have. It takes the last checkpoint of each side,
    or the base if no other checkpoint was evaluated.

    Args:
        names: the names of both sides, for messages.
        gates: conditions that fail the comparison (see :class:`marft.evaluation.gates.Gate`).
        by: a field of tasks; changes are also shown for each of its values.
        other_tools: allow evaluations with different tool definitions.
        after_as: name of a reorganization. The reorganized team after is compared with the team before as trained.
            Without it, only teams with the same reorganization are compared.

    Raises:
        ValueError: the sides have no evaluation in common, tasks with the same ID differ, tool definitions differ, or a
            gate or field is invalid.
    """
    _check_evaluated(before, after, names)
    if after_as:
        before, after = [e for e in before if not e.get("reorganized")], _known_as(after, after_as, names[1])
    pairs = _pairs(before, after, names)
    for pair in pairs.values():
        if not other_tools:
            check_tools(*pair, names)
    return Comparison(
        {label: judged(gates, *pair) for label, pair in pairs.items()},
        {label: changes(*pair, by) for label, pair in pairs.items()},
        {label: turned(*(by_metric(side).get("accuracy", {}) for side in pair)) for label, pair in pairs.items()},
    )


def saved_in(folder: RunFolder) -> list[dict[str, object]]:
    """Return a run's evaluations, including evaluations on scenarios.

    Raises:
        ValueError: an evaluation cannot be read.
    """
    return folder.read_evaluations(scenarios=True)


def _pairs(before: Sequence[Saved], after: Sequence[Saved], names: tuple[str, str]) -> dict[str, tuple[Saved, Saved]]:
    one, two = _last(before), _last(after)
    both = sorted(one.keys() & two.keys())
    labels = [_label(two[under]) for under in both]
    pairs = {
        f"{label} ({_digests(under)})" if labels.count(label) > 1 else label: (one[under], two[under])
        for under, label in zip(both, labels, strict=True)
    }
    if not any(before.get("measured") and after.get("measured") for before, after in pairs.values()):
        raise ValueError(_nothing_in_common(one, two, names))
    for pair in pairs.values():
        _check_tasks(*pair, names)
    return pairs


def _last(evaluations: Sequence[Saved]) -> dict[Under, Saved]:
    """Return the last evaluation for each set of conditions.

    Checkpoints are ordered by step. ``base`` and evaluations without measurements come first, so ``base`` never
    replaces another evaluated checkpoint.
    """

    def place(one: Saved) -> tuple[bool, bool, int, str]:
        name = str(one["checkpoint"])
        return name != "base", bool(one.get("measured")), len(name), name

    ordered = sorted((e for e in evaluations if not e["shuffled_messages"]), key=place)
    return {_under(e): e for e in ordered}


def _under(evaluation: Saved) -> Under:
    scenarios, team = (evaluation.get(key, {}).get("digest", "") for key in ("scenarios", "reorganized"))
    return Under(evaluation["mode"], scenarios, team)


def _known_as(evaluations: Sequence[Saved], name: str, run: str) -> list[Saved]:
    """Return the evaluations with the team reorganized as ``name``, without the reorganization's digest.

    Raises:
        ValueError: no such evaluation exists.
    """
    found: list[Saved] = [{**e, "reorganized": {"name": name}} for e in evaluations if _team(e) == name]
    if not found:
        known = ", ".join(sorted({_team(e) for e in evaluations if _team(e)})) or "nothing else than it was trained as"
        raise ValueError(
            f"{run} was not evaluated as {name!r}, but as {known}; evaluate it:  marft eval {shlex.quote(run)} --as "
            f"{shlex.quote(name + '.toml')}"
        )
    return found


def _nothing_in_common(one: Mapping[Under, Saved], two: Mapping[Under, Saved], names: tuple[str, str]) -> str:
    teams = [sorted({_team(e) for e in side.values()} - {""}) for side in (one, two)]
    alike = {under._replace(team="") for under in one} & {under._replace(team="") for under in two}
    if any(teams) and alike:
        said = [f"{name} as {', '.join(team) or 'it was trained'}" for name, team in zip(names, teams, strict=True)]
        return (
            f"not evaluated as the same team: {' and '.join(said)}; evaluate both --as the same file, or hold the "
            f"second against the first as it was trained:  marft compare {' '.join(map(shlex.quote, names))} --as "
            f"{shlex.quote((teams[1] or teams[0])[0])}"
        )
    sets = [sorted({_on(e) for e in side.values() if e.get("scenarios")}) for side in (one, two)]
    if any(sets):
        said = [f"{name} on {', '.join(on) or 'no set of scenarios'}" for name, on in zip(names, sets, strict=True)]
        return (
            f"not evaluated on the same scenarios: {' and '.join(said)}; evaluate both on the same file, as it is:  "
            f"marft eval {names[0]} {names[1]} --scenarios FILE"
        )
    both = "marft eval " + " ".join(map(shlex.quote, names))
    modes = ",".join(sorted({under.mode for side in (one, two) for under in side}))
    again = f"{both} --mode {modes}" if modes else both
    return (
        f"{names[0]} and {names[1]} were not evaluated in the same mode, or no task of theirs could be scored; run:  "
        f"{again}"
    )


def _check_evaluated(before: Sequence[Saved], after: Sequence[Saved], names: tuple[str, str]) -> None:
    """Check for evaluations on both sides.

    Raises:
        ValueError: one or both sides have no evaluation.
    """
    never = [name for name, side in zip(names, (before, after), strict=True) if not side]
    if never:
        have = "have" if len(never) > 1 else "has"
        raise ValueError(
            f"{' and '.join(never)} {have} no evaluation; this evaluates both, and plays "
            f"nothing again that was played before:  marft eval {' '.join(map(shlex.quote, names))}"
        )


def _check_tasks(before: Saved, after: Saved, names: tuple[str, str]) -> None:
    """Check that tasks with the same ID are the same task.

    Raises:
        ValueError: the prompts of some tasks differ.
    """
    one, two = before.get("prompts", {}), after.get("prompts", {})
    other = [task for task in one if task in two and one[task] != two[task]]
    if other:
        more = f" and {len(other) - NAMED} more" if len(other) > NAMED else ""
        raise ValueError(
            f"{names[0]} and {names[1]} were evaluated on different tasks of the same names: "
            f"{', '.join(other[:NAMED])}{more}. Evaluate both on the same environment"
        )


def _label(evaluation: Saved) -> str:
    on = evaluation.get("scenarios", {}).get("name", "")
    team = _team(evaluation)
    return str(evaluation["mode"]) + (f" on {on}" if on else "") + (f" as {team}" if team else "")


def _digests(under: Under) -> str:
    """Return the first digits of the scenario and team digests, to distinguish evaluations with the same names."""
    return " ".join(digest[:SHOWN] for digest in (under.scenarios, under.team) if digest)


def _team(evaluation: Saved) -> str:
    """Return the name of a team's reorganization; "" for the team as trained."""
    return str(evaluation.get("reorganized", {}).get("name", ""))


def _on(evaluation: Saved) -> str:
    scenarios = evaluation["scenarios"]
    return f"{scenarios['name']!r} ({scenarios['digest'][:SHOWN]})"
