"""Answers of an evaluation in sentences: whether training helped, and whether messages matter."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from marft.common.texts import single_line
from marft.evaluation.checkpoint_results import format_number, format_signed, paired_gain

TargetKind = Literal["run", "export", "recipe"]
Question = Literal["training", "messages", "value"]
Verdict = Literal["better", "worse", "undecided", ""]
SMALLEST_GAIN = 0.05  # difference in accuracy that the advised number of tasks can show
TOO_FEW = "; too few different results for an interval"
MAX_ADVISED_TASKS = 5000
ROUND_NUMBERS = (1, 2, 5, 10)  # leading digits of an advised number of tasks


@dataclass(frozen=True, slots=True)
class Answer:
    """Answer for one evaluated checkpoint in one mode.

    Args:
        question: ``training``: the checkpoint and its untuned base; ``messages``: messages of another task and the
            team's own; ``value``: nothing to compare with.
        measure: ``accuracy``, or ``reward`` if the accuracy is unknown.
        tasks: number of compared tasks.
        value: measure of the checkpoint; with messages of another task, for ``messages``.
        reference: measure of the base, or with the team's own messages; None without a comparison.
        difference: mean difference on the same tasks.
        interval: 95 % confidence interval of the difference, or of the value without a comparison.
        verdict: ``better`` or ``worse`` if the interval excludes 0, else ``undecided``; "" without a comparison.
        advised_tasks: number of tasks that would show smaller differences; None if there is nothing to advise.
        text: the answer as a sentence.
    """

    question: Question
    target: str
    checkpoint: str
    mode: str
    measure: str
    tasks: int
    value: float
    reference: float | None
    difference: float | None
    interval: tuple[float, float] | None
    verdict: Verdict
    advised_tasks: int | None
    text: str


@dataclass(frozen=True, slots=True)
class EvaluatedTarget:
    """Evaluations of one target.

    Args:
        name: name in sentences; "" if there is only one target.
        path: path of the target.
        has_more_tasks: whether ``--tasks`` can add tasks.
    """

    name: str
    path: str
    kind: TargetKind
    evaluations: Sequence[Mapping[str, Any]]
    has_more_tasks: bool = True


def answer_questions(target: EvaluatedTarget) -> list[Answer]:
    """Return the answers about a target: of its trained checkpoints, else of its base."""
    own = {(e["checkpoint"], e["mode"]): e for e in target.evaluations if not e["shuffled_messages"]}
    shuffled = {(e["checkpoint"], e["mode"]): e for e in target.evaluations if e["shuffled_messages"]}
    trained = [key for key in own if key[0] != "base"]
    shown, answers = trained or list(own), list[Answer]()
    for checkpoint, mode in shown:
        after, before = own[checkpoint, mode], own.get(("base", mode))
        found = _compare(target, "training", before, after) if before and checkpoint != "base" else None
        answers += [answer for answer in [found or _describe_value(target, after)] if answer]
    for key in shown:
        answer = _compare(target, "messages", own[key], shuffled[key]) if key in shuffled else None
        answers += [answer] if answer else []
    return answers


def _compare(
    target: EvaluatedTarget, question: Question, before: Mapping[str, Any], after: Mapping[str, Any]
) -> Answer | None:
    """Return the answer from two evaluations on the same tasks; None if they have no measure in common."""
    for measure in ("accuracy", "reward"):
        gain = paired_gain(before, after, measure)
        if gain is None or before[measure] is None or after[measure] is None:
            continue
        verdict = _judge(gain[1])
        key = "outcomes" if measure == "accuracy" else "rewards"
        change = _Change(measure, sum(task in after[key] for task in before[key]), *gain, verdict)
        describe = _training_sentence if question == "training" else _message_sentence
        return Answer(
            question, target.path, after["checkpoint"], after["mode"], measure, change.tasks, after[measure],
            before[measure], *gain, verdict, _advise(target, change), describe(target, before, after, change),
        )  # fmt: skip
    return None


@dataclass(frozen=True, slots=True)
class _Change:
    measure: str
    tasks: int
    gain: float
    interval: tuple[float, float] | None
    verdict: Verdict

    @property
    def amount(self) -> str:
        """Size of the change without its sign: ``14 points``."""
        if self.measure == "accuracy":
            return f"{abs(100 * self.gain):.{_decimals(self.interval)}f} points"
        return format_number(abs(self.gain))

    @property
    def count(self) -> str:
        """Number of tasks: ``10 tasks``."""
        return f"{self.tasks} task{'s' * (self.tasks != 1)}"

    @property
    def in_brackets(self) -> str:
        """Interval of the change; "" without an interval."""
        return f" (95 % interval {_format_change_interval(self.interval, self.measure)})" if self.interval else ""


def _judge(interval: tuple[float, float] | None) -> Verdict:
    if interval is None:
        return "undecided"
    return "better" if interval[0] > 0 else "worse" if interval[1] < 0 else "undecided"


def _training_sentence(
    target: EvaluatedTarget, before: Mapping[str, Any], after: Mapping[str, Any], change: _Change
) -> str:
    start = f"{_prefix(target, after)}{_after_training(after)} {_describe_measure(after, change.measure)}"
    if change.verdict != "undecided":
        direction = "more" if change.gain > 0 else "fewer" if change.measure == "accuracy" else "less"
        return f"{start}, {change.amount} {direction} than the untuned base{change.in_brackets}."
    if change.interval is None:
        same = "the same as" if not change.gain else f"{_signed(change)} on each task compared with"
        return f"{start}, {same} the untuned base{'' if not change.gain else TOO_FEW}."
    return (
        f"{start}, the untuned base {_format_value(before, change.measure)}: no difference that {change.count} "
        f"can show{change.in_brackets}{_describe_reward(before, after, change)}."
    )


def _message_sentence(
    target: EvaluatedTarget, before: Mapping[str, Any], after: Mapping[str, Any], change: _Change
) -> str:
    values = f"{_format_value(after, change.measure)} instead of {_format_value(before, change.measure)}"
    verb = "solves" if change.measure == "accuracy" else "has a mean reward of"
    team = "the untuned team" if after["checkpoint"] == "base" else "the team"
    subject = f"with those of another task {team} {verb} {values}"
    prefix = _prefix(target, after)
    if change.interval is None:
        if not change.gain:
            return f"{prefix}no effect of messages: {subject}; no task's result changes."
        return f"{prefix}an effect of messages is not certain: {subject} ({_signed(change)} on each task){TOO_FEW}."
    if change.verdict == "undecided":
        return f"{prefix}no effect of messages that {change.count} can show: {subject}{change.in_brackets}."
    effect = "messages matter" if change.verdict == "worse" else "messages do harm"
    direction = "more" if change.gain > 0 else "fewer" if change.measure == "accuracy" else "less"
    return f"{prefix}{effect}: {subject}, {change.amount} {direction}{change.in_brackets}."


def _describe_value(target: EvaluatedTarget, evaluation: Mapping[str, Any]) -> Answer | None:
    """Return what an evaluation says on its own; None if no task could be scored."""
    measure = "reward" if evaluation["accuracy"] is None else "accuracy"
    if evaluation[measure] is None:
        return None
    interval = evaluation["interval" if measure == "accuracy" else "reward_interval"]
    tasks = evaluation["tasks"] - (evaluation["unknown"] if measure == "accuracy" else 0)
    is_base = evaluation["checkpoint"] == "base"
    subject = _after_training(evaluation)
    if target.kind == "export":
        subject = f"the exported team ({single_line(evaluation['checkpoint'])})"
    elif is_base:
        subject = "the untuned base" if target.kind == "run" else "the team of this recipe, untrained,"
    advice = ""
    if target.kind == "run":
        advice = (
            f"; to compare {'a trained checkpoint with it' if is_base else 'with the untuned base'}, evaluate both:"
        )
        checkpoint = "last" if is_base else single_line(evaluation["checkpoint"])
        path = Path(target.path)  # of a run, or of a checkpoint in one
        folder = path.parent.parent if path.parent.name == "checkpoints" else path
        advice += f"  marft eval {single_line(str(folder))} --checkpoint base,{checkpoint}"
    in_brackets = f" (95 % interval {_format_value_interval(interval, measure)})" if interval else ""
    text = f"{_prefix(target, evaluation)}{subject} {_describe_measure(evaluation, measure)}{in_brackets}{advice}"
    text += "" if advice else "."
    return Answer(
        "value", target.path, evaluation["checkpoint"], evaluation["mode"], measure, tasks, evaluation[measure], None,
        None, tuple(interval) if interval else None, "", None, text,
    )  # fmt: skip


def _prefix(target: EvaluatedTarget, evaluation: Mapping[str, Any]) -> str:
    team = evaluation.get("reorganized", {}).get("name", "")
    parts = [target.name, evaluation["mode"], f"as {team}" if team else ""]
    text = ", ".join(single_line(part) for part in parts if part)
    return f"{text if target.name else text[:1].upper() + text[1:]}: "


def _after_training(evaluation: Mapping[str, Any]) -> str:
    step = re.fullmatch(r"step_0*(\d+)", evaluation["checkpoint"])
    if step is None:
        return f"{single_line(evaluation['checkpoint'])}: the team"
    return f"after {step[1]} training step{'s' * (step[1] != '1')} the team"


def _describe_measure(evaluation: Mapping[str, Any], measure: str) -> str:
    """Describe a result: ``solves 62 % of 200 tasks``."""
    attempts, tasks = evaluation.get("attempts", 1), evaluation["tasks"]
    if measure == "reward":
        return f"has a mean reward of {_format_value(evaluation, measure)} on {tasks} task{'s' * (tasks != 1)}"
    tasks -= evaluation.get("unknown", 0)
    counted = f"{tasks} task{'s' * (tasks != 1)}"
    return f"solves {_format_value(evaluation, measure)} of " + (
        f"{attempts} attempts at each of {counted}" if attempts > 1 else counted
    )


def _describe_reward(before: Mapping[str, Any], after: Mapping[str, Any], change: _Change) -> str:
    """Describe a difference in the mean reward, if the accuracy shows none; "" if the reward shows none either."""
    gain = paired_gain(before, after, "reward") if change.measure == "accuracy" else None
    if gain is None or _judge(gain[1]) == "undecided":
        return ""
    return (
        f"; its mean reward {'rose' if gain[0] > 0 else 'fell'} from {_format_value(before, 'reward')} to "
        f"{_format_value(after, 'reward')} (95 % interval {_format_change_interval(gain[1], 'reward')})"
    )


def summarize_advice(answers: Sequence[Answer]) -> str:
    """Return the advice to evaluate more tasks, for all answers together; "" if there is none."""
    tasks = max((answer.advised_tasks or 0 for answer in answers), default=0)
    return f"To see smaller differences, evaluate more tasks:  --tasks {tasks}" if tasks else ""


def _advise(target: EvaluatedTarget, change: _Change) -> int | None:
    if change.verdict != "undecided" or not target.has_more_tasks or not change.interval:
        return None
    if change.measure != "accuracy":
        return 4 * change.tasks  # half as wide an interval
    return advise_tasks(change.tasks, change.gain, change.interval)


def advise_tasks(tasks: int, gain: float, interval: tuple[float, float]) -> int:
    """Return a round number of tasks for a narrower interval of a difference in accuracy.

    The width of an interval falls with the square root of the number of tasks. With this number it reaches
    ``SMALLEST_GAIN`` to each side, or, if that takes fewer tasks, it excludes 0 with a probability of 80 % if the
    measured gain is the true one (twice the tasks at which the interval just excludes 0).

    >>> advise_tasks(10, 0.0, (-0.16, 0.16)), advise_tasks(10, 0.2, (-0.1, 0.5))
    (200, 50)
    """
    half = (interval[1] - interval[0]) / 2
    factors = [(half / SMALLEST_GAIN) ** 2, 2 * (half / abs(gain)) ** 2 if gain else math.inf]
    needed = min(MAX_ADVISED_TASKS, tasks * min(factors))
    power = int(10 ** math.floor(math.log10(max(1.0, needed))))
    return max(2 * tasks, next(digit * power for digit in ROUND_NUMBERS if digit * power >= needed))


def _format_value(evaluation: Mapping[str, Any], measure: str) -> str:
    return f"{100 * evaluation[measure]:.0f} %" if measure == "accuracy" else format_number(evaluation[measure])


def _format_value_interval(interval: Sequence[float], measure: str) -> str:
    if measure == "accuracy":
        return f"{100 * interval[0]:.0f} to {100 * interval[1]:.0f} %"
    return f"{format_number(interval[0])} to {format_number(interval[1])}"


def _format_change_interval(interval: tuple[float, float] | None, measure: str) -> str:
    if interval is None:
        return ""
    if measure == "accuracy":
        decimals = _decimals(interval)
        return f"{100 * interval[0]:+.{decimals}f} to {100 * interval[1]:+.{decimals}f} points"
    return f"{format_signed(interval[0])} to {format_signed(interval[1])}"


def _signed(change: _Change) -> str:
    return f"{100 * change.gain:+.0f} points" if change.measure == "accuracy" else format_signed(change.gain)


def _decimals(interval: tuple[float, float] | None) -> int:
    """Return the decimals of percentage points: one for a narrow interval."""
    return 1 if interval and interval[1] - interval[0] < 0.05 else 0
