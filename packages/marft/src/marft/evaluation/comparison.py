"""Comparison between two evaluated teams: gates and metric changes, for people, CI and Python."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from marft.common.errors import UserError
from marft.common.texts import join_names
from marft.evaluation.gates import check_gates, group_by_metric
from marft.evaluation.metric_changes import Comparison, compare_metrics, find_outcome_changes
from marft.evaluation.tool_definitions import check_tools

DIGEST_DIGITS = 8  # shown digits of a digest
SavedEvaluation = Mapping[str, Any]  # a saved evaluation


class EvaluationConditions(NamedTuple):
    """Evaluation conditions: mode, scenarios and team.

    Args:
        mode: ``greedy`` or ``sampled``.
        scenarios: digest of the set of scenarios; "" for held-out tasks.
        team: digest of the team's reorganization; "" for the team as trained.
    """

    mode: str
    scenarios: str = ""
    team: str = ""


def compare_evaluations(
    before: Sequence[SavedEvaluation],
    after: Sequence[SavedEvaluation],
    names: tuple[str, str],
    gates: Sequence[str] = (),
    by: str = "",
    *,
    other_tools: bool = False,
    after_as: str = "",
) -> Comparison:
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
        UserError: the sides have no evaluation in common, tasks with the same ID differ, tool definitions differ, or a
            gate or field is invalid.
    """
    _check_evaluated(before, after, names)
    if after_as:
        before, after = [e for e in before if not e.get("reorganized")], _select_team(after, after_as, names[1])
    pairs = _match_evaluations(before, after, names)
    for pair in pairs.values():
        if not other_tools:
            check_tools(*pair, names)
    return Comparison(
        {label: check_gates(gates, *pair) for label, pair in pairs.items()},
        {label: compare_metrics(*pair, by) for label, pair in pairs.items()},
        {
            label: find_outcome_changes(*(group_by_metric(side).get("accuracy", {}) for side in pair))
            for label, pair in pairs.items()
        },
    )


def _match_evaluations(
    before: Sequence[SavedEvaluation], after: Sequence[SavedEvaluation], names: tuple[str, str]
) -> dict[str, tuple[SavedEvaluation, SavedEvaluation]]:
    before_latest, after_latest = _latest_evaluations(before), _latest_evaluations(after)
    both = sorted(before_latest.keys() & after_latest.keys())
    labels = [_format_label(after_latest[conditions]) for conditions in both]
    pairs = {}
    for conditions, label in zip(both, labels, strict=True):
        name = f"{label} ({_short_digests(conditions)})" if labels.count(label) > 1 else label
        pairs[name] = before_latest[conditions], after_latest[conditions]
    if not any(before.get("measured") and after.get("measured") for before, after in pairs.values()):
        raise UserError(_describe_mismatch(before_latest, after_latest, names))
    for pair in pairs.values():
        _check_tasks(*pair, names)
    return pairs


def _latest_evaluations(evaluations: Sequence[SavedEvaluation]) -> dict[EvaluationConditions, SavedEvaluation]:
    """Return the last evaluation for each set of conditions.

    Checkpoints are ordered by step. ``base`` and evaluations without measurements come first, so ``base`` never
    replaces another evaluated checkpoint.
    """

    def sort_key(evaluation: SavedEvaluation) -> tuple[bool, bool, int, str]:
        name = str(evaluation["checkpoint"])
        return name != "base", bool(evaluation.get("measured")), len(name), name

    ordered = sorted((e for e in evaluations if not e["shuffled_messages"]), key=sort_key)
    return {_get_conditions(e): e for e in ordered}


def _get_conditions(evaluation: SavedEvaluation) -> EvaluationConditions:
    scenarios, team = (evaluation.get(key, {}).get("digest", "") for key in ("scenarios", "reorganized"))
    return EvaluationConditions(evaluation["mode"], scenarios, team)


def _select_team(evaluations: Sequence[SavedEvaluation], name: str, run: str) -> list[SavedEvaluation]:
    """Return the evaluations with the team reorganized as ``name``, without the reorganization's digest.

    Raises:
        UserError: no such evaluation exists.
    """
    matches: list[SavedEvaluation] = [
        {**e, "reorganized": {"name": name}} for e in evaluations if _team_name(e) == name
    ]
    if not matches:
        names = sorted({_team_name(e) for e in evaluations} - {""})
        available = ", ".join(names) or "nothing else than it was trained as"
        raise UserError(
            f"{run} was not evaluated as {name!r}, but as {available}; evaluate it:  marft eval {shlex.quote(run)} "
            f"--team-file {shlex.quote(name + '.toml')}"
        )
    return matches


def _describe_mismatch(
    before: Mapping[EvaluationConditions, SavedEvaluation],
    after: Mapping[EvaluationConditions, SavedEvaluation],
    names: tuple[str, str],
) -> str:
    teams = [sorted({_team_name(e) for e in side.values()} - {""}) for side in (before, after)]
    same_conditions = {conditions._replace(team="") for conditions in before} & {
        conditions._replace(team="") for conditions in after
    }
    if any(teams) and same_conditions:
        descriptions = [
            f"{name} as {', '.join(team) or 'it was trained'}" for name, team in zip(names, teams, strict=True)
        ]
        return (
            f"not evaluated as the same team: {' and '.join(descriptions)}; evaluate both with the same --team-file, "
            "or hold the second against the first as it was trained:  marft compare "
            f"{' '.join(map(shlex.quote, names))} --team-name {shlex.quote((teams[1] or teams[0])[0])}"
        )
    sets = [sorted({_describe_scenarios(e) for e in side.values() if e.get("scenarios")}) for side in (before, after)]
    if any(sets):
        descriptions = [
            f"{name} on {', '.join(on) or 'no set of scenarios'}" for name, on in zip(names, sets, strict=True)
        ]
        return (
            f"not evaluated on the same scenarios: {' and '.join(descriptions)}; evaluate both on the same file, as it "
            f"is:  marft eval {names[0]} {names[1]} --scenarios FILE"
        )
    base_command = "marft eval " + " ".join(map(shlex.quote, names))
    modes = ",".join(sorted({conditions.mode for side in (before, after) for conditions in side}))
    command = f"{base_command} --mode {modes}" if modes else base_command
    return (
        f"{names[0]} and {names[1]} were not evaluated in the same mode, or no task of theirs could be scored; run:  "
        f"{command}"
    )


def _check_evaluated(
    before: Sequence[SavedEvaluation], after: Sequence[SavedEvaluation], names: tuple[str, str]
) -> None:
    """Check for evaluations on both sides.

    Raises:
        UserError: one or both sides have no evaluation.
    """
    missing = [name for name, side in zip(names, (before, after), strict=True) if not side]
    if missing:
        verb = "have" if len(missing) > 1 else "has"
        raise UserError(
            f"{' and '.join(missing)} {verb} no evaluation; this evaluates both, and plays "
            f"nothing again that was played before:  marft eval {' '.join(map(shlex.quote, names))}"
        )


def _check_tasks(before: SavedEvaluation, after: SavedEvaluation, names: tuple[str, str]) -> None:
    """Check that tasks with the same ID are the same task.

    Raises:
        UserError: the prompts of some tasks differ.
    """
    before_prompts, after_prompts = before.get("prompts", {}), after.get("prompts", {})
    different = [
        task for task in before_prompts if task in after_prompts and before_prompts[task] != after_prompts[task]
    ]
    if different:
        raise UserError(
            f"{names[0]} and {names[1]} were evaluated on different tasks of the same names: "
            f"{join_names(different)}. Evaluate both on the same environment"
        )


def _format_label(evaluation: SavedEvaluation) -> str:
    scenario_set = evaluation.get("scenarios", {}).get("name", "")
    team = _team_name(evaluation)
    return str(evaluation["mode"]) + (f" on {scenario_set}" if scenario_set else "") + (f" as {team}" if team else "")


def _short_digests(conditions: EvaluationConditions) -> str:
    """Return the first digits of the scenario and team digests, to distinguish evaluations with the same names."""
    return " ".join(digest[:DIGEST_DIGITS] for digest in (conditions.scenarios, conditions.team) if digest)


def _team_name(evaluation: SavedEvaluation) -> str:
    """Return the name of a team's reorganization; "" for the team as trained."""
    return str(evaluation.get("reorganized", {}).get("name", ""))


def _describe_scenarios(evaluation: SavedEvaluation) -> str:
    scenarios = evaluation["scenarios"]
    return f"{scenarios['name']!r} ({scenarios['digest'][:DIGEST_DIGITS]})"
