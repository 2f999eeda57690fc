"""Answers of an evaluation: whether training helped and whether messages matter, from paired intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from marft.evaluation.answers import (
    Answer,
    EvaluatedTarget,
    TargetKind,
    advise_tasks,
    answer_questions,
    summarize_advice,
)
from marft.evaluation.intervals import mean_interval, paired_difference, wilson_interval


def evaluated(
    checkpoint: str,
    outcomes: Sequence[bool] = (),
    rewards: Sequence[float] = (),
    *,
    shuffled: bool = False,
    mode: str = "greedy",
    **more: Any,
) -> dict[str, Any]:
    """A saved evaluation, of which the rewards are the outcomes unless they are given."""
    paid = list(rewards) or [float(outcome) for outcome in outcomes]
    return {
        "checkpoint": checkpoint, "mode": mode, "shuffled_messages": shuffled, "tasks": len(paid), "failed": 0,
        "attempts": 1, "unknown": len(paid) - len(outcomes),
        "accuracy": sum(outcomes) / len(outcomes) if outcomes else None,
        "interval": wilson_interval(sum(outcomes), len(outcomes)) if outcomes else None,
        "reward": sum(paid) / len(paid), "reward_interval": mean_interval(paid),
        "outcomes": {f"t{n}": outcome for n, outcome in enumerate(outcomes)},
        "rewards": {f"t{n}": reward for n, reward in enumerate(paid)}, **more,
    }  # fmt: skip


def answered(*evaluations: dict[str, Any], name: str = "", kind: TargetKind = "run", more: bool = True) -> list[Answer]:
    return answer_questions(EvaluatedTarget(name, "runs/a", kind, evaluations, more))


BEFORE = [True] * 96 + [False] * 104
AFTER = [True] * 124 + [False] * 76


def test_a_gain_whose_interval_is_above_zero_is_told_with_that_of_the_comparison() -> None:
    (answer,) = answered(evaluated("base", BEFORE), evaluated("step_000300", AFTER))
    assert answer.text == (
        "Greedy: after 300 training steps the team solves 62 % of 200 tasks, 14 points more than the untuned base "
        "(95 % interval +9 to +19 points)."
    )
    assert (answer.difference, answer.interval) == paired_difference(BEFORE, AFTER)
    assert (answer.question, answer.verdict, answer.tasks, answer.advised_tasks) == ("training", "better", 200, None)


def test_a_loss_is_told_as_one() -> None:
    (answer,) = answered(evaluated("base", AFTER), evaluated("step_000001", BEFORE, mode="greedy"))
    assert "after 1 training step the team solves 48 % of 200 tasks, 14 points fewer than" in answer.text
    assert answer.verdict == "worse"


def test_what_few_tasks_cannot_show_is_told_with_how_many_might() -> None:
    same = [True, False] * 5
    (answer,) = answers = answered(evaluated("base", same), evaluated("step_000002", same))
    assert answer.text == (
        "Greedy: after 2 training steps the team solves 50 % of 10 tasks, the untuned base 50 %: no difference that 10 "
        "tasks can show (95 % interval -16 to +16 points)."
    )
    assert answer.verdict == "undecided"
    assert summarize_advice(answers) == "To see smaller differences, evaluate more tasks:  --tasks 200"
    assert summarize_advice(answered(evaluated("base", same), evaluated("last", same), more=False)) == ""


def test_a_reward_that_rose_is_told_where_accuracy_shows_nothing() -> None:
    never = [False] * 20
    before, after = [n / 40 for n in range(20)], [0.3 + n / 30 for n in range(20)]
    (answer,) = answered(evaluated("base", never, before), evaluated("step_000009", never, after))
    assert answer.measure == "accuracy"
    assert (
        "tasks can show (95 % interval -9 to +9 points); its mean reward rose from 0.237 to 0.617 (95 %" in answer.text
    )


@pytest.mark.parametrize(
    ("after", "told"),
    [
        (
            [2.0, 4.0, 5.0],
            "Greedy: after 9 training steps the team has a mean reward of 3.667 on 3 tasks, 1.667 more than",
        ),
        (
            [2.0, 3.0, 4.0],
            "on 3 tasks, +1.000 on each task compared with the untuned base; too few different results for an interval.",
        ),
        ([1.0, 2.0, 3.0], "on 3 tasks, the same as the untuned base."),
        ([9.0, 0.0, 3.0], "the untuned base 2.000: no difference that 3 tasks can show (95 % interval -"),
    ],
)
def test_where_no_success_is_known_it_is_told_of_rewards(after: Sequence[float], told: str) -> None:
    (answer,) = answered(evaluated("base", rewards=[1.0, 2.0, 3.0]), evaluated("step_000009", rewards=after))
    assert answer.measure == "reward"
    assert told in answer.text


def test_whether_messages_matter_is_told_of_trained_checkpoints() -> None:
    own, without = [True] * 15 + [False] * 5, [True] * 3 + [False] * 17
    answers = answered(
        evaluated("base", own), evaluated("base", without, shuffled=True),
        evaluated("step_000002", own), evaluated("step_000002", without, shuffled=True),
    )  # fmt: skip
    assert [(answer.question, answer.checkpoint) for answer in answers] == [
        ("training", "step_000002"), ("messages", "step_000002"),
    ]  # fmt: skip
    assert answers[1].text.startswith(
        "Greedy: messages matter: with those of another task the team solves 15 % instead of 75 %, 60 points fewer (95 % "
    )
    (_, same) = answered(evaluated("base", own), evaluated("base", own, shuffled=True))
    assert "no effect of messages that 20 tasks can show: with those of another task the untuned team" in same.text
    (_, harm) = answered(evaluated("base", without), evaluated("base", own, shuffled=True))
    assert "messages do harm" in harm.text


@pytest.mark.parametrize(
    ("kind", "checkpoint", "told"),
    [
        ("run", "base", "the untuned base solves 50 % of 10 tasks (95 % interval 24 to 76 %); to compare a trained checkpoint"),
        ("run", "step_000003", "after 3 training steps the team solves 50 % of 10 tasks (95 % interval 24 to 76 %); to comp"),
        ("recipe", "base", "the team of this recipe, untrained, solves 50 % of 10 tasks (95 % interval 24 to 76 %)."),
        ("export", "step_000003", "the exported team (step_000003) solves 50 % of 10 tasks (95 % interval 24 to 76 %)."),
    ],
)  # fmt: skip
def test_without_a_base_and_a_checkpoint_it_is_told_what_was_evaluated(
    kind: TargetKind, checkpoint: str, told: str
) -> None:
    (answer,) = answered(evaluated(checkpoint, [True, False] * 5), kind=kind)
    assert told in answer.text
    assert (answer.question, answer.reference, answer.verdict) == ("value", None, "")


def test_targets_modes_and_teams_are_named() -> None:
    same = [True, False] * 5
    tree = {"mode": "sampled", "reorganized": {"name": "tree"}}
    (answer,) = answered(evaluated("base", same, **tree), evaluated("last", same, attempts=4, **tree), name="a")
    assert answer.text.startswith("a, sampled, as tree: last: the team solves 50 % of 4 attempts at each of 10 tasks, ")


def test_each_mode_has_its_own_answer() -> None:
    same = [True, False] * 5
    modes = [evaluated(name, same, mode=mode) for name in ("base", "last") for mode in ("greedy", "sampled")]
    assert [answer.mode for answer in answered(*modes)] == ["greedy", "sampled"]


def test_nothing_is_told_of_tasks_that_could_not_be_scored() -> None:
    nothing = {**evaluated("base", [True]), "tasks": 0, "accuracy": None, "reward": None, "outcomes": {}, "rewards": {}}
    assert answered(nothing) == []


@pytest.mark.parametrize(("tasks", "gain"), [(1, 0.0), (10, 0.0), (10, 0.9), (500, 0.001), (5000, 0.0)])
def test_more_tasks_are_advised_than_there_were(tasks: int, gain: float) -> None:
    assert advise_tasks(tasks, gain, (-1.0, 1.0)) > tasks
