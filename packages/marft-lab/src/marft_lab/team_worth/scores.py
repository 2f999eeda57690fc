"""Scores of an arm by task, and comparison with the team on the same tasks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from marft.common.types import Episode
from marft.evaluation.intervals import paired_difference, wilson
from marft.evaluation.paired import average, paired
from marft.evaluation.trajectories.ratio import Ratio

Measure = Literal["accuracy", "reward"]
MEASURES: tuple[Measure, ...] = ("accuracy", "reward")
Interval = tuple[float, float] | None
Groups = Mapping[str, Sequence[Episode]]  # attempts by task


@dataclass(frozen=True, slots=True)
class Scores:
    """An arm's scores: sums over a task's attempts, with the number of attempts.

    Tokens and seconds include all attempts played for an answer.
    """

    measures: Mapping[Measure, Mapping[str, Ratio]]  # by task; measures without known values are empty
    tokens: Mapping[str, Ratio]
    seconds: Mapping[str, Ratio]
    failed: int
    attempts: int  # attempts played per answer


@dataclass(frozen=True, slots=True)
class Value:
    """Mean over tasks, and its difference to the team's mean on common tasks.

    Intervals are 95 % intervals over tasks. They are None if the tasks do not determine them (see :func:`value_of`).
    """

    value: float
    interval: Interval = None
    difference: float | None = None
    difference_interval: Interval = None


@dataclass(frozen=True, slots=True)
class Row:
    """Table row of an arm."""

    part: str
    name: str
    values: Mapping[Measure, Value]
    tasks: int
    failed: int
    attempts: int
    tokens: float | None  # per answer
    seconds: float | None


def by_task(episodes: Iterable[Episode]) -> dict[str, list[Episode]]:
    """Return the scored attempts by task, in order."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.scored:
            groups.setdefault(episode.task.id, []).append(episode)
    return groups


def tokens_of(episode: Episode) -> float:
    """Return the number of read and sampled tokens, as in ``cost_tokens``: ``Σ_a |prompt_a| + |tokens_a|``."""
    return float(sum(len(action.prompt) + len(action.tokens) for action in episode.actions))


def seconds_of(episode: Episode) -> float:
    """Return the seconds of all actions, as in ``cost_seconds``."""
    return sum(action.ended - action.started for action in episode.actions)


def scores_of(episodes: Sequence[Episode]) -> Scores:
    """Return scores with every attempt as a separate answer."""
    groups = by_task(episodes)
    failed = sum(not episode.scored for episode in episodes)
    return _scores(groups, groups, failed, attempts=1)


def scores_of_chosen(chosen: Mapping[str, Episode], played: Groups, failed: int, attempts: int) -> Scores:
    """Return scores with a chosen answer per task; the costs include every played attempt."""
    scores = _scores({task: [episode] for task, episode in chosen.items()}, played, failed, attempts)
    tokens, seconds = ({t: Ratio(r.amount) for t, r in some.items()} for some in (scores.tokens, scores.seconds))
    return replace(scores, tokens=tokens, seconds=seconds)


def _scores(answers: Groups, played: Groups, failed: int, attempts: int) -> Scores:
    known = {task: [float(e.success) for e in some if e.success is not None] for task, some in answers.items()}
    return Scores(
        {
            "accuracy": {task: Ratio(sum(some), len(some)) for task, some in known.items() if some},
            "reward": {task: Ratio(sum(e.total_reward for e in some), len(some)) for task, some in answers.items()},
        },
        {task: Ratio(sum(map(tokens_of, some)), len(some)) for task, some in played.items()},
        {task: Ratio(sum(map(seconds_of, some)), len(some)) for task, some in played.items()},
        failed,
        attempts,
    )


def row_of(part: str, name: str, scores: Scores, team: Scores | None = None) -> Row:
    """Return an arm's table row.

    Args:
        part: name of the part.
        name: name of the arm.
        scores: scores of the arm.
        team: scores to compare with; None for the team itself.
    """
    values = {}
    for measure in MEASURES:
        against = team.measures[measure] if team else None
        found = value_of(scores.measures[measure], against, shares=measure == "accuracy")
        if found is not None:
            values[measure] = found
    return Row(
        part, name, values, len(scores.measures["reward"]), scores.failed, scores.attempts,
        Ratio.total(scores.tokens.values()).value, Ratio.total(scores.seconds.values()).value,
    )  # fmt: skip


def value_of(
    scores: Mapping[str, Ratio], team: Mapping[str, Ratio] | None = None, *, shares: bool = False
) -> Value | None:
    """Return the mean of a measure with its interval, and its difference to the team; None without known values.

    Args:
        scores: values of the arm, by task.
        team: values of the team, by task.
        shares: True for success rates. If no two tasks differ, the interval is Wilson's, and the interval of a
            difference is Agresti and Min's.
    """
    found = average(scores)
    if found is None:
        return None
    mean, own = found
    outcomes = _outcomes(scores) if shares else None
    own = own or (wilson(sum(outcomes.values()), len(outcomes)) if outcomes else None)
    if team is None or (against := paired(team, scores)) is None:
        return Value(mean, own)
    interval = against.interval
    if shares and interval is None:
        both = team.keys() & scores.keys()
        before, after = (_outcomes({task: some[task] for task in both}) for some in (team, scores))
        interval = paired_difference([*before.values()], [*after.values()])[1] if before and after else None
    return Value(mean, own, against.gain, interval)


def _outcomes(scores: Mapping[str, Ratio]) -> dict[str, bool] | None:
    """Return each task's success if its attempts agree on every task; else None."""
    whole = all(ratio.amount in (0.0, ratio.out_of) for ratio in scores.values())
    return {task: ratio.amount > 0 for task, ratio in scores.items()} if whole else None
