"""How a plan ends: hours of the whole run, the longest part of a step, faster settings, and how accurate times are."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from marft.config import load_recipe
from marft.models.device_specs import find_device_spec
from marft_lab.cli.planning import answer_plan, format_number, run_plan
from marft_lab.planning.changes import MIN_PART_SPEEDUP, MIN_SPEEDUP, _try_change, find_faster
from marft_lab.planning.plan import PlanRequest, make_plan
from marft_lab.planning.timing import MEASURED_CARDS, TIME_FACTOR
from marft_lab.planning.workload import compute_validation_workload, compute_workload
from tests.marft_lab.test_planning import VLLM, math, planned

PUBLISHED = Path(__file__).parents[2] / "benchmarks" / "results" / "plan_published.md"
FACTOR = f"(accurate to a factor of {TIME_FACTOR})"


def told(capsys: pytest.CaptureFixture[str], *words: str, gpu: str = "h100", gpus: int = 1) -> list[str]:
    run_plan(Path("math_dual"), list(words), PlanRequest(gpus, find_device_spec(gpu)), "")
    return capsys.readouterr().out.splitlines()


def test_the_factor_of_times_is_the_largest_error_on_times_that_nothing_was_fitted_to() -> None:
    text = PUBLISHED.read_text(encoding="utf-8")
    (largest,) = re.findall(r"held out: \d+ rows, .* all within ([\d.]+)\.", text)
    assert float(largest) <= TIME_FACTOR < float(largest) + 0.1
    rows = [row for row in text.splitlines() if "| held out |" in row]
    assert len(rows) == 20
    assert not [card for card in MEASURED_CARDS if card not in text]


def test_a_plan_ends_with_hours_the_longest_part_and_faster_settings(capsys: pytest.CaptureFixture[str]) -> None:
    made = planned(math(), gpus=2)
    hours, longest, faster, keys, accuracy = told(capsys, *("--models.base.path", "Qwen/Qwen2.5-3B-Instruct"), gpus=2)[
        -5:
    ]
    steps, validations = made.run.training.steps, made.validations
    assert validations == steps // made.run.evaluation.every > 0
    assert made.run_seconds == steps * made.best.seconds + validations * made.best.validation_seconds
    assert hours == (
        f"The whole run takes {format_number(made.run_seconds / 3600)} hours {FACTOR}: {steps:,} steps of "
        f"{format_number(made.best.seconds)} s and {validations} validations of "
        f"{format_number(made.best.validation_seconds)} s."
    )
    assert longest == "The longest part of a step is writing (sampling the agents' tokens): 87%."
    assert faster.startswith("With --engine.kind vllm --rollout.max_policy_lag 1 a step takes ")
    assert faster.endswith(f"{FACTOR}; episodes are then up to a step old.")
    assert keys.startswith("To run it so:  --engine.kind vllm --rollout.max_policy_lag 1 --engine.devices ")
    assert accuracy.startswith(f"The factor of {TIME_FACTOR} is the largest error against published times (h100, ")


def test_of_a_plan_that_does_not_fit_it_is_the_first_change_s_hours(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, "--models.base.path", "Qwen/Qwen2.5-7B", gpu="rtx4090")
    start = lines.index("It does not fit.") + 1
    keys = lines[start].partition(": then it fits, a step takes ")[0].strip()
    assert lines[start].endswith(f" s {FACTOR}")
    assert [line for line in lines if line.startswith(f"With {keys} the whole run takes ")]
    assert lines[-1].endswith("a100-80, none on rtx4090); trust the ratio of two plans more.")
    none = planned(math(*VLLM, "--training.ranks", "4", size="72B"), "a100-80", 5)
    assert answer_plan(none, [], None)[0].startswith("If it fitted, the whole run would take ")


def test_times_of_a_cpu_have_no_factor(capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(capsys, gpu="cpu")
    assert str(TIME_FACTOR) not in "\n".join(lines)
    assert "(not checked on a CPU)" in "\n".join(lines)


@pytest.mark.parametrize(("gpu", "gpus"), [("rtx4090", 1), ("h100", 1), ("h100", 4), ("cpu", 1)])
def test_tables_fit_and_have_no_rows_of_nothing(capsys: pytest.CaptureFixture[str], gpu: str, gpus: int) -> None:
    lines = told(capsys, gpu=gpu, gpus=gpus)
    tables = lines[: next(number for number, line in enumerate(lines) if line.startswith("It "))]
    assert max(map(len, tables[3:])) <= 100
    figures = [found[1] for line in tables if (found := re.search(r"^\S.*  +([\d.,]+)(?:  |$)", line))]
    assert len(figures) > 10
    assert not [figure for figure in figures if not float(figure.replace(",", ""))]
    assert not [figure for figure in figures if len(figure.replace(",", "").strip("0.").replace(".", "")) > 3]


@pytest.mark.parametrize(
    ("gpu", "gpus", "words"),
    [
        ("rtx4090", 1, ("--models.base.gradient_checkpointing", "true", "--algorithm.epochs", "8")),
        ("h100", 1, ("--engine.enforce_eager", "true")),
        ("h100", 2, ()),
        ("h100", 8, ()),
    ],
)
def test_what_is_faster_fits_and_every_key_of_it_saves_time(gpu: str, gpus: int, words: tuple[str, ...]) -> None:
    before = planned(math(*words), gpu, gpus)
    faster = find_faster(before)
    assert faster is not None
    assert faster.plan.fits
    assert faster.gpus == gpus
    assert before.best.seconds >= MIN_SPEEDUP * faster.plan.best.seconds
    for key in faster.keys:
        fewer = _try_change(before, {name: value for name, value in faster.keys.items() if name != key})
        assert fewer is None or fewer.plan.best.seconds >= MIN_PART_SPEEDUP * faster.plan.best.seconds


def test_nothing_is_faster_for_what_does_not_fit_for_a_cpu_and_for_what_is_as_fast_already() -> None:
    assert find_faster(planned(math(size="7B"), "rtx4090")) is None
    assert find_faster(planned(load_recipe("demo"), "cpu")) is None
    before = planned(math(), gpus=2)
    faster = find_faster(before)
    assert faster is not None
    assert find_faster(faster.plan) is None


def test_a_validation_of_as_many_episodes_as_a_step_takes_as_long_as_its_playing() -> None:
    run = math("--evaluation.every", "1", "--evaluation.validation_tasks", "128", "--rollout.tasks_per_step", "128")
    assert run.rollout.samples_per_task == 1
    workload = compute_workload(run)
    assert compute_validation_workload(run, workload) == workload
    best = make_plan(run, PlanRequest(1, find_device_spec("h100"), environment_seconds=2.0)).best
    playing = sum(phase.seconds for phase in best.phases if phase.side == "sampling")
    assert best.validation_seconds == pytest.approx(playing)


def test_a_validation_has_its_own_number_of_episodes() -> None:
    run = math("--evaluation.every", "1", "--evaluation.validation_tasks", "10", "--rollout.tasks_per_step", "4")
    step, validation = compute_workload(run), compute_validation_workload(run, compute_workload(run))
    assert validation.episodes == 10
    assert validation.concurrent_actions == step.concurrent_actions * 10 / 4
    assert [item.actions for item in validation.policies] == [item.actions * 10 / 4 for item in step.policies]
    assert planned(math("--evaluation.every", "0")).best.validation_seconds == 0


def test_where_sides_overlap_the_longest_part_is_of_the_longer_side() -> None:
    split = planned(math(*VLLM), gpus=2, lag=1).best
    slow = replace(split.phases[0], name="slow", seconds=3.0)
    halves = [replace(slow, name=name, side="learning", seconds=2.0) for name in ("first", "second")]
    lagged = replace(split, phases=(slow, *halves))
    assert lagged.longest_phase.name == "first"
    assert replace(lagged, lag=0).longest_phase.name == "slow"


def test_programs_are_told_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    run_plan(Path("math_dual"), [], PlanRequest(2, find_device_spec("h100")), "json")
    said = json.loads(capsys.readouterr().out)
    made = make_plan(load_recipe("math_dual"), PlanRequest(2, find_device_spec("h100")))
    faster = find_faster(made)
    assert faster is not None
    assert said["run_seconds"] == made.run_seconds
    assert said["bottleneck"]["phase"] == "writing"
    assert said["faster"]["keys"] == dict(faster.keys)
    assert said["faster"]["seconds"] == faster.plan.best.seconds
    assert said["time_factor"] == TIME_FACTOR


def test_numbers_have_two_digits_and_no_exponent() -> None:
    values = (419.47, 51.7, 1.03, 0.996, 0.0049, 12_345.0, 0.0, 99.6)
    assert [format_number(value) for value in values] == ["420", "52", "1.0", "1.0", "0.0049", "12,000", "0", "100"]
    assert format_number(22.104, 3) == "22.1"
