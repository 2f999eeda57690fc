"""Evaluations that are kept: read, gone on with, damaged, of several attempts; what is found is always the same."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.agents.game import Attempt
from marft.common import atomic
from marft.common.atomic import digest_of_json
from marft.common.types import JointAction, Observation, Step, Task
from marft.config import RunSettings
from marft.config.interfaces.environment import Environment
from marft.evaluation.evaluate import Evaluation
from marft.evaluation.intervals import wilson_interval
from marft.evaluation.ratios import Ratio, clustered_interval, compute_pass_ratios
from marft.evaluation.scenarios import ScenarioSet
from marft.evaluation.session import EvaluationPlan, StorageOptions, evaluate_checkpoints
from marft.evaluation.store import EvaluationStore, play_attempts
from marft.evaluation.transcripts import MAX_EXAMPLES
from marft.rollout import local_runner as rollouts_here
from marft.rollout.runner import RolloutRunner
from marft.runs import lock
from marft.runs.episode_files import read_episodes
from marft.runs.run_files import find_run_files
from tests.helpers import settings, until
from tests.nights import NIGHT
from tests.sources import ROOT
from tests.views import attempt as recorded

SLOW = "import sys; from pathlib import Path; from tests.marft.evaluation.test_kept_evaluations import slow; slow(Path(sys.argv[1]))"


class Lengths(Environment):
    """Pays for even lengths of what is said, and takes its time where it is told to."""

    seconds: float = 0.0

    def tasks(self, split: str) -> list[Task]:
        return [Task(f"{split}/{n}", f"Say {n}.", {"level": n % 2}) for n in range(5)]

    def start(self, task: Task, seed: int) -> Any:
        return LengthsSession(self.seconds)


class LengthsSession:
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def reset(self) -> Observation:
        return Observation("?")

    async def step(self, actions: JointAction) -> Step:
        import time

        time.sleep(self.seconds)
        assert actions.answer is not None
        even = len(actions.answer.text) % 2 == 0
        return Step(Observation(""), float(len(actions.answer.text)), terminated=True, success=even)

    async def close(self) -> None: ...


def lengths(output: Path, *overrides: str, seconds: float = 0.0, **changes: Any) -> RunSettings:
    environment = {"name": "tests.marft.evaluation.test_kept_evaluations:Lengths", "seconds": seconds}
    return settings("tiny", output, "--evaluation.save_every", "4", *overrides, environment=environment, **changes)


def found(
    run: RunSettings,
    folder: Path | None,
    *,
    again: bool = False,
    attempts: int = 2,
    shuffled: bool = False,
    scenarios: ScenarioSet | None = None,
    **rest: Any,
) -> list[Evaluation]:
    plan = EvaluationPlan(["base"], ("sampled",), 5, shuffled, attempts, scenarios)
    storage = StorageOptions(folder, again) if folder else None
    return evaluate_checkpoints(run, None, plan, lambda _=None: None, storage=storage, **rest)


def slow(folder: Path) -> None:
    """An evaluation that takes seconds, for a process that is killed."""
    found(lengths(folder, seconds=0.15), folder / "evaluations")


def said(one: Evaluation) -> dict[str, Any]:
    """What an evaluation says, but for how long it took."""
    table = json.loads(json.dumps(one.as_json()))
    for of_task in table["measured"].values():
        for name in [name for name in of_task if "seconds" in name]:
            del of_task[name]
    return {key: value for key, value in table.items() if key != "key"}


@pytest.fixture
def plays(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many episodes each call to play was asked for."""
    asked: list[int] = []
    open_rollout_runner: Callable[[RunSettings], Any] = rollouts_here.open_rollout_runner

    def opened(run: RunSettings) -> RolloutRunner:
        rollouts = open_rollout_runner(run)
        play = rollouts.play

        def counted(attempts: Any, *rest: Any) -> Any:
            asked.append(len(attempts))
            if len(asked) == stop_at.get("part"):
                raise KeyboardInterrupt
            return play(attempts, *rest)

        rollouts.play = counted
        return rollouts  # type: ignore[no-any-return]

    stop_at: dict[str, int] = {}
    monkeypatch.setattr(rollouts_here, "open_rollout_runner", opened)
    monkeypatch.setattr(sys.modules[__name__], "STOP", stop_at, raising=False)
    return asked


STOP: dict[str, int] = {}


def test_what_was_played_is_read_and_what_was_stopped_goes_on_to_the_same(tmp_path: Path, plays: list[int]) -> None:
    run, kept = lengths(tmp_path), tmp_path / "evaluations"
    (whole,) = found(run, None)
    assert plays == [4, 4, 2]
    plays.clear()
    STOP["part"] = 3
    with pytest.raises(KeyboardInterrupt):
        found(run, kept)
    STOP.clear(), plays.clear()
    assert {path.name for path in (kept / "base-sampled.parts").iterdir()} == {
        "key.json", "part_000000.parquet", "part_000001.parquet",
    }  # fmt: skip
    (resumed,) = found(run, kept)
    assert plays == [2]
    (read,) = found(run, kept)
    assert plays == [2]
    (anew,) = found(run, kept, again=True)
    assert plays == [2, 4, 4, 2]
    assert said(whole) == said(resumed) == said(read) == said(anew)
    assert resumed.key == read.key == anew.key
    assert resumed.as_json() == read.as_json()  # also how long it took: it was not played
    assert sorted(path.name for path in kept.iterdir()) == ["base-sampled.json", "base-sampled.parquet", "eval.lock"]
    assert len(read_episodes(kept / "base-sampled.parquet")) == 10
    assert len(list(find_run_files(tmp_path))) == 3


def test_parts_are_kept_for_the_same_question_alone_and_not_where_it_is_asked_again(tmp_path: Path) -> None:
    def begin(key: str, again: bool = False) -> Path:
        place = EvaluationStore(tmp_path, "base-greedy", key)
        place.prepare(again)
        return place.parts_folder / "part_000000.parquet"

    begin("one").touch()
    assert begin("one").exists()
    assert not begin("two").exists()
    begin("two").touch()
    assert not begin("two", again=True).exists()


def test_parts_whose_key_cannot_be_read_are_played_anew(tmp_path: Path) -> None:
    place = EvaluationStore(tmp_path, "base-greedy", "one")
    place.prepare(overwrite=False)
    (place.parts_folder / "part_000000.parquet").touch()
    (place.parts_folder / "key.json").write_text("{")
    place.prepare(overwrite=False)
    assert [path.name for path in place.parts_folder.iterdir()] == ["key.json"]


def test_a_part_is_read_for_the_episodes_that_it_holds_and_each_of_them_is_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    told = list[str]()
    place = EvaluationStore(tmp_path, "base-greedy", "one")
    place.prepare(overwrite=False)
    episodes = [recorded(1, number) for number in range(3)]
    asked = [Attempt(Task(e.task.id, "the whole task", 7), e.stream, e.sample) for e in episodes]
    assert [e.task.data for e in place.write_part(0, asked, episodes)] == [7, 7, 7]
    read = play_attempts(None, asked, None, 3, place, lambda: told.append("one"))  # type: ignore[arg-type]
    assert [e.task for e in read] == [attempt.task for attempt in asked]
    assert told == ["one"] * 3
    for other in (asked[:2], [*asked[:2], replace(asked[2], sample=9)], [*asked, asked[0]]):
        assert place.read_part(0, other) is None
    assert len(caplog.messages) == 3
    assert all("its episodes are played anew" in message for message in caplog.messages)


def test_a_key_is_of_what_is_asked_and_not_of_the_order_in_which_it_is_written() -> None:
    assert digest_of_json({"a": 1, "b": Path("x")}) == digest_of_json({"b": Path("x"), "a": 1})
    assert digest_of_json({"a": Path("x")}) != digest_of_json({"a": Path("y")})


def test_every_part_is_played_by_an_engine_that_remembers_none_before_it() -> None:
    class Recorded:
        told: ClassVar[list[str]] = []

        def publish(self, step: int) -> None:
            self.told.append("forgets")

        def play(self, attempts: Sequence[int], *_: Any) -> list[int]:
            self.told.append(f"plays {len(attempts)}")
            return [*attempts]

    assert play_attempts(Recorded(), [*range(5)], None, 2, None, lambda: None) == [*range(5)]  # type: ignore
    assert Recorded.told == ["forgets", "plays 2", "forgets", "plays 2", "forgets", "plays 1"]


def test_another_question_is_another_evaluation(tmp_path: Path, plays: list[int]) -> None:
    kept = tmp_path / "evaluations"
    keys = {found(lengths(tmp_path), kept, attempts=1)[0].key}
    for run, attempts in (
        (lengths(tmp_path), 2), (lengths(tmp_path, "--seed", "1"), 1),
        (lengths(tmp_path, "--agents.actor.instructions", "Act now."), 1),
    ):  # fmt: skip
        plays.clear()
        keys.add(found(run, kept, attempts=attempts)[0].key)
        assert plays
    assert len(keys) == 4
    plays.clear()
    assert found(lengths(tmp_path, "--training.steps", "9", "--name", "other"), kept, attempts=1)[0].key in keys


@pytest.mark.parametrize(
    ("file", "damage"), [("base-sampled.parquet", b"PAR1 nothing"), ("base-sampled.json", b""), ("base-sampled.json", b"[]")]
)  # fmt: skip
def test_what_is_damaged_is_named_and_played_anew(
    tmp_path: Path, plays: list[int], file: str, damage: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    run, kept = lengths(tmp_path), tmp_path / "evaluations"
    (before,) = found(run, kept, attempts=1)
    (kept / file).write_bytes(damage)
    plays.clear()
    (after,) = found(run, kept, attempts=1)
    assert plays == [4, 1]
    (message,) = caplog.messages
    assert "base-sampled.json is not whole" in message
    assert said(before) == said(after)


def test_what_is_cut_short_between_its_episodes_and_what_they_come_to_is_not_taken_for_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, other, kept = lengths(tmp_path), lengths(tmp_path, "--seed", "5"), tmp_path / "evaluations"
    (before,) = found(run, kept)
    write_file = atomic.write_file

    def dying(path: Path, data: bytes | str) -> None:
        if path.name == "base-sampled.json":
            raise KeyboardInterrupt
        write_file(path, data)

    with monkeypatch.context() as patched:
        patched.setattr(atomic, "write_file", dying)
        with pytest.raises(KeyboardInterrupt):
            found(other, kept)
    (after,) = found(run, kept)
    assert said(after) == said(before)
    assert said(found(other, kept)[0]) == said(found(other, None)[0]) != said(before)


def test_a_damaged_part_is_named_and_it_alone_is_played_anew(
    tmp_path: Path, plays: list[int], caplog: pytest.LogCaptureFixture
) -> None:
    run, kept = lengths(tmp_path), tmp_path / "evaluations"
    STOP["part"] = 3
    with pytest.raises(KeyboardInterrupt):
        found(run, kept)
    STOP.clear(), plays.clear()
    part = kept / "base-sampled.parts" / "part_000000.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    found(run, kept)
    assert plays == [4, 2]
    assert [text for text in caplog.messages if "part_000000.parquet is damaged" in text] == caplog.messages != []


def test_two_processes_do_not_evaluate_in_one_folder(tmp_path: Path) -> None:
    kept = tmp_path / "evaluations"
    kept.mkdir()
    with lock.lock_file(kept / "eval.lock"), pytest.raises(ValueError, match=r"is at work.*or stop it; then ask again"):
        found(lengths(tmp_path), kept)


def test_messages_of_others_are_of_every_attempt_and_the_same_when_read(tmp_path: Path) -> None:
    run, kept = lengths(tmp_path), tmp_path / "evaluations"
    own, others = found(run, kept, shuffled=True)
    assert [said(one) for one in found(run, kept, shuffled=True)] == [said(own), said(others)]
    assert (kept / "base-sampled-shuffled.parquet").exists()
    assert own.tasks == others.tasks == 5


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="three evaluations: make nightly")
def test_a_killed_evaluation_loses_at_most_a_part(tmp_path: Path, plays: list[int]) -> None:
    process = subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path)], cwd=ROOT)
    part = tmp_path / "evaluations" / "base-sampled.parts" / "part_000000.parquet"
    until(part.exists)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    run = lengths(tmp_path, seconds=0.15)
    (resumed,) = found(run, tmp_path / "evaluations")
    assert sum(plays) <= 6
    assert said(resumed) == said(found(run, None)[0])


def test_several_attempts_are_shares_of_each_task(tmp_path: Path) -> None:
    (one,) = found(lengths(tmp_path), tmp_path / "evaluations", attempts=3)
    episodes = read_episodes(tmp_path / "evaluations" / "base-sampled.parquet")
    by_task = {task: [bool(e.success) for e in episodes if e.task.id == task] for task in one.outcomes}
    assert {task: sum(of) / 3 for task, of in by_task.items()} == one.outcomes
    assert (one.tasks, one.unknown, one.attempts, len(episodes)) == (5, 0, 3, 15)
    assert one.accuracy == pytest.approx(np.mean([*one.outcomes.values()]))
    assert one.reward == pytest.approx(np.mean([e.total_reward for e in episodes]))
    assert set(one.passes) == {"pass@2", "pass^2", "pass@3", "pass^3", "avg@3"}
    assert one.passes["pass@3"][0] == pytest.approx(np.mean([any(of) for of in by_task.values()]))
    assert one.passes["pass^3"][0] == pytest.approx(np.mean([all(of) for of in by_task.values()]))
    assert all(of["accuracy"].denominator == 3 for of in one.measured.values())
    for name, share in one.passes.items():
        assert share == clustered_interval([of[name] for of in one.measured.values()], 3), (
            "attempts at a task are alike"
        )
    assert [example["task"] for example in one.examples] == [episode.task.id for episode in episodes[:MAX_EXAMPLES]]


@given(st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=8), st.integers(1, 6))
def test_passes_are_of_tasks_with_enough_attempts(pairs: list[tuple[int, int]], attempts: int) -> None:
    counts = {str(n): (min(known, attempts), min(solved, known, attempts)) for n, (known, solved) in enumerate(pairs)}
    for task, of_task in compute_pass_ratios(counts, attempts).items():
        known, solved = counts[task]
        wanted = {k for k in (2, 4, attempts) if 2 <= k <= known}
        assert {int(name[5:]) for name in of_task if name.startswith("pass@")} == wanted
        assert {int(name[5:]) for name in of_task if name.startswith("pass^")} == wanted
        assert of_task.get(f"avg@{attempts}") == (Ratio(solved / known) if attempts > 1 else None)


@given(st.integers(1, 60), st.data())
def test_one_attempt_each_has_wilsons_interval(tasks: int, data: st.DataObject) -> None:
    solved = data.draw(st.integers(0, tasks))
    shares = [Ratio(float(n < solved)) for n in range(tasks)]
    share = clustered_interval(shares, 1)
    assert share is not None
    assert share[0] == pytest.approx(solved / tasks)
    assert share[1] == pytest.approx(wilson_interval(solved, tasks))


@pytest.mark.parametrize("tasks", [50, 200])
def test_intervals_over_attempts_cover_the_truth_and_those_of_independent_trials_do_not(tasks: int) -> None:
    draw = np.random.default_rng(0)
    ease = draw.beta(0.5, 0.5, (1000, tasks))
    solved = draw.binomial(8, ease)
    intervals = [clustered_interval([Ratio(float(c), 8.0) for c in row], 8) for row in solved]
    assert np.mean([i is not None and i[1][0] <= 0.5 <= i[1][1] for i in intervals]) >= 0.93
    naive = [wilson_interval(int(row.sum()), 8 * tasks) for row in solved]
    assert np.mean([low <= 0.5 <= high for low, high in naive]) < 0.75
