"""What an arm of the comparison came to, task by task, and how it stands to the team on the same tasks."""

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
    """Sums of a task's attempts, and how many there were. ``cost`` is of all that was played for one of them."""

    measures: Mapping[Measure, Mapping[str, Ratio]]  # by task; those of which nothing is known are absent
    tokens: Mapping[str, Ratio]
    seconds: Mapping[str, Ratio]
    failed: int
    attempts: int  # that were played for one answer


@dataclass(frozen=True, slots=True)
class Value:
    """A mean over tasks, and what it is more than the team's on the tasks that both have. Intervals are of 95 %, drawn
    by task; absent where the tasks do not tell (see :func:`value_of`)."""

    value: float
    interval: Interval = None
    difference: float | None = None
    difference_interval: Interval = None


@dataclass(frozen=True, slots=True)
class Row:
    """One arm of a part, as tables show it."""

    part: str
    name: str
    values: Mapping[Measure, Value]
    tasks: int
    failed: int
    attempts: int
    tokens: float | None  # for one answer
    seconds: float | None


def by_task(episodes: Iterable[Episode]) -> dict[str, list[Episode]]:
    """The scored attempts at each task, in their order."""
    groups: dict[str, list[Episode]] = {}
    for episode in episodes:
        if episode.scored:
            groups.setdefault(episode.task.id, []).append(episode)
    return groups


def tokens_of(episode: Episode) -> float:
    """What was read and written, as ``cost_tokens`` counts it: ``Σ_a |prompt_a| + |tokens_a|``."""
    return float(sum(len(action.prompt) + len(action.tokens) for action in episode.actions))


def seconds_of(episode: Episode) -> float:
    """How long agents were busy, as ``cost_seconds`` counts it."""
    return sum(action.ended - action.started for action in episode.actions)


def scores_of(episodes: Sequence[Episode]) -> Scores:
    """Every attempt is an answer of its own."""
    groups = by_task(episodes)
    failed = sum(not episode.scored for episode in episodes)
    return _scores(groups, groups, failed, attempts=1)


def scores_of_chosen(chosen: Mapping[str, Episode], played: Groups, failed: int, attempts: int) -> Scores:
    """One answer a task, chosen among several attempts, which were all paid for."""
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
    """An arm beside the team.

    Args:
        team: what it is held against; None where it is the team itself.
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
    """The mean of a measure, with its interval, and how it stands to the team's; None where nothing is known.

    Args:
        shares: of attempts that succeed or fail. Where no two tasks differ, the interval is Wilson's, and that of a
            difference Agresti and Min's.
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
    """Whether each task was solved, where it always was or never."""
    whole = all(ratio.amount in (0.0, ratio.out_of) for ratio in scores.values())
    return {task: ratio.amount > 0 for task, ratio in scores.items()} if whole else None
