"""Competitions in the shape of MLE-bench: metrics, medals, submissions, folders, and programs that run in the jail."""

from __future__ import annotations

import asyncio
import csv
import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from marft.agents.sandbox.runner import RunResult, SandboxSettings
from marft.common.types import Step
from marft_envs.mle import environment
from marft_envs.mle.competition import (
    Competition,
    InvalidSubmissionError,
    Leaderboard,
    compute_accuracy,
    compute_auc,
    compute_log_loss,
    compute_mae,
    compute_rmse,
    compute_rmsle,
    medal_places,
)
from marft_envs.mle.environment import Mle, MleSession, ProgramResult, grade_submission, run_program
from marft_envs.mle.generator import build_competition, format_csv, predict
from tests.visits import by_script, joint

FEW: dict[str, Any] = {"train_tasks": 12, "held_out_tasks": 4}
NUMBERS = st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=1, max_size=12)
CLASSES = st.lists(st.tuples(st.sampled_from([0.0, 1.0]), st.floats(0, 1)), min_size=1, max_size=12)


def mle(**keys: Any) -> Mle:
    found = Mle(**keys)
    found._name = "mle"
    return found


ANY = mle(**FEW)


def columns(pairs: Sequence[tuple[float, float]]) -> tuple[Any, Any]:
    return np.array([y for y, _ in pairs]), np.array([p for _, p in pairs])


class TestMetrics:
    @given(NUMBERS)
    def test_errors_are_the_slow_references(self, pairs: list[tuple[float, float]]) -> None:
        right, given_ = columns(pairs)
        squares = absolute = logs = 0.0
        for y, p in pairs:
            squares += (y - p) ** 2
            absolute += abs(y - p)
            logs += (math.log(1 + y) - math.log(1 + p)) ** 2
        assert compute_rmse(right, given_) == pytest.approx(math.sqrt(squares / len(pairs)))
        assert compute_mae(right, given_) == pytest.approx(absolute / len(pairs))
        assert compute_rmsle(right, given_) == pytest.approx(math.sqrt(logs / len(pairs)), abs=1e-12)

    @given(CLASSES)
    def test_those_of_classes_are_too(self, pairs: list[tuple[float, float]]) -> None:
        right, given_ = columns(pairs)
        won, fights, loss = 0.0, 0, 0.0
        for y, p in pairs:
            clipped = min(max(p, 1e-15), 1 - 1e-15)
            loss -= math.log(clipped) if y else math.log1p(-clipped)
            for other, q in pairs:
                if y == 1 and other == 0:
                    fights += 1
                    won += 1.0 if p > q else 0.5 if p == q else 0.0
        assert compute_auc(right, given_) == pytest.approx(won / fights if fights else 0.5)
        assert compute_log_loss(right, given_) == pytest.approx(loss / len(pairs))

    def test_accuracy_compares_labels_as_they_are_written(self) -> None:
        assert compute_accuracy(["yes", "no", "no"], ["yes", "No", "no"]) == pytest.approx(2 / 3)

    def test_labels_that_are_numbers_or_truths_are_compared_as_such(self) -> None:
        assert compute_accuracy(["1", "0", "2.5", "True"], ["1.0", "0e0", "2.5", "true"]) == 1.0
        assert compute_accuracy(["1", "True", "1", "False"], ["2", "false", "one", "0"]) == 0.0


class TestMedals:
    @pytest.mark.parametrize(
        ("teams", "places"),
        [
            (1, (1, 1, 1)), (7, (1, 1, 2)), (99, (9, 19, 39)), (100, (10, 20, 40)), (249, (10, 49, 99)),
            (250, (10, 50, 100)), (999, (11, 50, 100)), (1000, (12, 50, 100)), (5000, (20, 250, 500)),
        ],
    )  # fmt: skip
    def test_places_are_the_published_ones(self, teams: int, places: tuple[int, int, int]) -> None:
        assert medal_places(teams) == places

    @given(st.lists(st.integers(0, 30), min_size=1, max_size=300), st.integers(-2, 32), st.booleans())
    def test_a_medal_is_for_whoever_does_as_well_as_its_last_place(
        self, all_: list[int], own: int, lower: bool
    ) -> None:
        scores = sorted(map(float, all_), reverse=not lower)
        board = Leaderboard(scores, lower)
        earned = ""
        for name, place in zip(("bronze", "silver", "gold"), reversed(medal_places(len(scores))), strict=True):
            last = scores[place - 1]
            if (own <= last) if lower else (own >= last):
                earned = name
        assert board.medal_for(own) == earned
        better = sum((one > own) if lower else (one < own) for one in scores)
        assert board.share_beaten(own) == pytest.approx((better + sum(one == own for one in scores) / 2) / len(scores))

    def test_above_median_is_strictly_so(self) -> None:
        board = Leaderboard([1.0, 2.0, 3.0], lower_is_better=True)
        assert [board.is_above_median(score) for score in (1.9, 2.0, 2.1)] == [True, False, False]


def small(metric: str = "rmse", **keys: Any) -> Competition:
    answers: Mapping[str, str] = {"a": "1", "b": "2"}
    made = {"answers": answers, "columns": ("id", "y"), "metric": metric, "leaderboard": Leaderboard((0.0, 1.0), True)}
    return Competition("", {}, **{**made, **keys})


class TestSubmissions:
    def test_a_score_is_of_rows_by_their_ids_to_five_digits(self) -> None:
        assert small().score("id,y\nb,2\na,1.000001\n") == 0.0
        assert small().score("id,y\nb,3\na,1\n") == pytest.approx(0.70711)
        assert small("accuracy").score("id,y\nb,2\na,5\n") == 0.5
        three = small("accuracy", answers={"a": "1", "b": "2", "c": "3"})
        assert three.score("id,y\na,1\nb,2\nc,4\n") == 0.66667

    @pytest.mark.parametrize("submission", ["y,id\n2,b\n1,a", 'id,why,y\na,,1\nb,"x,y",2', " id ,y\na, 1\nb,2"])
    def test_columns_stand_in_any_order_and_others_beside_them(self, submission: str) -> None:
        assert small().score(submission) == 0.0

    @pytest.mark.parametrize(
        ("submission", "says"),
        [
            ("id,y,y\na,1,1\nb,2,2", "has the columns id, y, y"), ("id,y,z\na,1\nb,2,3", "row 1 .* has 2 cells, not 3"),
            ("", "no table with a header"), ("id,x\na,1\nb,2", "has the columns id, x, not id, y"),
            ("id,y\na,1", "lacks ids: 1 of them, such as b"), ("id,y\na,1\nb,2\nc,3", "has unknown ids: 1 of them"),
            ("id,y\na,1\na,1\nb,2", "an id comes twice"), ("id,y\na,1\nb", "row 2 of submission.csv has 1 cells"),
            ("id,y\na,1\nb,nan", "for id b is 'nan'"), ("id,y\na,1\nb,two", "for id b is 'two'"),
        ],
    )  # fmt: skip
    def test_one_that_cannot_be_graded_is_told_why(self, submission: str, says: str) -> None:
        with pytest.raises(InvalidSubmissionError, match=says):
            small().score(submission)
        found = grade_submission(small(), submission)
        assert (found.score, found.medal, found.share_beaten) == (None, "", 0.0)
        assert found.problem

    @pytest.mark.parametrize("metric", ["log_loss", "auc"])
    def test_probabilities_are_between_zero_and_one(self, metric: str) -> None:
        with pytest.raises(InvalidSubmissionError):
            small(metric).score("id,y\na,1.5\nb,0")


class TestDrawn:
    def test_what_was_planted_earns_gold_and_the_sample_beats_hardly_anybody(self) -> None:
        for task in ANY.tasks("train"):
            made = build_competition(task.prompt, task.data)
            tables = [list(csv.reader(made.public[name].decode().splitlines())) for name in ("train.csv", "test.csv")]
            (_, *train), (_, *test) = tables
            fitted = predict(task.data["kind"], train, [[*cells, ""] for cells in test])
            best = grade_submission(
                made, format_csv([["id", "y"], *zip((cells[0] for cells in test), fitted, strict=True)])
            )
            sample = grade_submission(made, made.public["sample_submission.csv"].decode())
            assert (best.medal, best.share_beaten) == ("gold", 1.0)
            assert (sample.medal, sample.problem) == ("", "")
            assert sample.share_beaten < 0.2

    def test_right_answers_are_in_no_public_file(self) -> None:
        task = next(t for t in ANY.tasks("train") if t.data["kind"] == "linear")
        made = build_competition(task.prompt, task.data)
        shown = b"\n".join(made.public.values()).decode()
        assert not [answer for answer in made.answers.values() if f",{answer}\n" in shown]

    def test_a_competition_is_the_same_again_and_in_one_part(self) -> None:
        task = ANY.tasks("test")[0]
        assert build_competition(task.prompt, task.data) == build_competition(
            task.prompt, json.loads(json.dumps(task.data))
        )
        plants = [str(t.data["plant"]) for split in ("train", "validation", "test") for t in ANY.tasks(split)]  # type: ignore[arg-type]
        assert len(set(plants)) == len(plants)

    def test_a_team_that_writes_nothing_earns_nothing(self) -> None:
        step = answered(ANY.start(ANY.tasks("test")[0], 0), "")
        assert (step.reward, step.success, step.info["measures"]["valid"]) == (0.0, False, 0.0)


def answered(session: MleSession, *texts: str) -> Step:
    async def attempt() -> Step:
        await session.reset()
        for one in texts:
            step = await session.step(joint({"coder": one}))
        return step

    return asyncio.run(attempt())


COPY = 'open("submission.csv", "w").write(open("sample_submission.csv").read())'


@pytest.mark.slow
class TestInTheJail:
    def test_an_oracle_wins_gold_in_every_kind(self) -> None:
        for kind in ("linear", "groups", "bound"):
            world = mle(**{**FEW, "kinds": [kind]})
            done = by_script(world, world.tasks("train")[0], ["coder"])
            assert (done.reward, done.last.success) == (1.0, True)
            assert done.last.info["measures"]["medal_gold"] == 1.0

    def test_a_valid_submission_is_worth_more_than_none(self) -> None:
        task = ANY.tasks("train")[0]
        step = answered(ANY.start(task, 0), COPY)
        assert ANY.valid_reward <= step.reward < 0.3
        assert (step.success, step.info["measures"]["valid"]) == (False, 1.0)

    def test_rounds_tell_what_was_printed_and_never_the_score(self) -> None:
        world = mle(**FEW, rounds=2)
        session = world.start(world.tasks("train")[0], 0)
        step = answered(session, "print('here')\n1 / 0")
        assert (
            "It printed:\nhere\nZeroDivisionError: division by zero\nthere is no submission.csv"
            in step.observation.text
        )
        assert not step.terminated
        last = answered(session, COPY)
        assert last.terminated
        assert last.reward > 0
        assert session.last_grade.score is not None
        assert str(session.last_grade.score) not in session.feedback

    def test_the_last_submission_that_can_be_graded_counts(self) -> None:
        world = mle(**FEW, rounds=2)
        assert answered(world.start(world.tasks("train")[0], 0), COPY, "oops(").reward > 0

    @pytest.mark.parametrize(
        ("program", "seconds", "printed"),
        [
            ("import os; os._exit(0)", 30.0, "it ended before it was through"),
            ("while True: pass", 1.0, "it ran out of time"),
        ],
    )
    def test_a_program_that_ends_otherwise_leaves_nothing(self, program: str, seconds: float, printed: str) -> None:
        left = run_program(program, {}, SandboxSettings(timeout_seconds=seconds))
        assert (left.submission, left.printed) == (None, printed)


def folder(place: Path, name: str = "tea", **changes: str) -> Path:
    files = {
        "description.md": "Predict y.", "config.yaml": "grader:\n  name: rmse\n", "leaderboard.csv": "score\n0.1\n0.5\n2\n",
        "prepared/public/train.csv": "id,x,y\n0,1,1\n", "prepared/public/test.csv": "id,x\na,1\nb,2\n",
        "prepared/public/sample_submission.csv": "id,y\na,0\nb,0\n", "prepared/private/test.csv": "id,x,y\na,1,1\nb,2,2\n",
    } | {key.replace("__", "/") + suffix: value for key, (suffix, value) in changes.items()}  # fmt: skip
    for path, content in files.items():
        file = place / name / path
        file.parent.mkdir(parents=True, exist_ok=True)
        if content:
            file.write_text(content)
    return place / name


class TestFolders:
    def test_they_are_read_as_they_are_prepared(self, tmp_path: Path) -> None:
        for name in ("tea", "rice", "salt", "soap", "rope"):
            folder(tmp_path, name)
        world = mle(path=str(tmp_path))
        tasks = {t.id: t for split in ("train", "validation", "test") for t in world.tasks(split)}  # type: ignore[arg-type]
        assert sorted(tasks) == ["rice", "rope", "salt", "soap", "tea"]
        session = world.start(tasks["tea"], 0)
        assert session.competition.answers == {"a": "1", "b": "2"}
        assert set(session.competition.public) == {"train.csv", "test.csv", "sample_submission.csv"}
        medals = [grade_submission(session.competition, f"id,y\na,1\nb,{y}\n").medal for y in (2, 2.1, 2.2)]
        assert medals == ["gold", "gold", ""], "of three teams the first place alone earns one"

    @pytest.mark.parametrize(
        ("changes", "says"),
        [
            (
                {"config": (".yaml", "grader: {name: nothing}")},
                r"graded by 'nothing', which is none of ours.*metrics = \{ tea",
            ),
            ({"config": (".yaml", "[")}, "names no grader"),
            ({"leaderboard": (".csv", "score\n2\n0.1\n")}, "the best by rmse has the lowest score"),
            ({"leaderboard": (".csv", "team\nx\n")}, "has no column score of numbers"),
            (
                {"prepared__private__test": (".csv", "id,x\na,1\n")},
                "no table in private/ has the columns of a submission",
            ),
            ({"prepared__public__sample_submission": (".csv", "id,y\na,0\n")}, "its sample does not fit its answers"),
            (
                {"prepared__public__sample_submission": (".csv", "id,y,z\na,0,0\nb,0,0\n")},
                "its submissions have 3 columns; those of an id and one prediction",
            ),
            ({"prepared__private__test": (".csv", "id,y\na,one\nb,2\n")}, "its own answers cannot be graded by rmse"),
            ({"prepared__private__test": (".csv", "id,y\na,1\na,2\nb,2\n")}, "test.csv: id 'a' comes twice"),
            ({"prepared__private__test": (".csv", "id,y\na\nb,2\n")}, "test.csv: id 'a' has no answer"),
            ({"leaderboard": (".csv", "score\n0.1\nnan\n")}, "has no column score of numbers: one is not finite"),
        ],
    )
    def test_what_cannot_be_used_is_named(self, tmp_path: Path, changes: dict[str, Any], says: str) -> None:
        folder(tmp_path, **changes)
        with pytest.raises(ValueError, match=says):
            mle(path=str(tmp_path)).tasks("train")

    @pytest.mark.parametrize(
        "file", ["description.md", "prepared/private/test.csv", "prepared/public/sample_submission.csv"]
    )
    def test_a_file_in_another_encoding_is_named(self, tmp_path: Path, file: str) -> None:
        place = folder(tmp_path)
        (place / file).write_bytes("id,y\nä,1\n".encode("latin-1"))
        with pytest.raises(ValueError, match=f"{Path(file).name} cannot be read as text in UTF-8"):
            mle(path=str(place)).tasks("train")

    def test_a_cell_beyond_what_a_table_may_hold_is_named_by_its_file(self, tmp_path: Path) -> None:
        place = folder(tmp_path, prepared__private__test=(".csv", f"id,y\na,{'1' * 2000}\nb,2\n"))
        before = csv.field_size_limit(1000)
        try:
            with pytest.raises(ValueError, match=r"test.csv cannot be read as .* a table"):
                mle(path=str(place)).tasks("train")
        finally:
            csv.field_size_limit(before)

    def test_answers_may_hold_quotes_and_a_submission_may_begin_with_a_mark(self, tmp_path: Path) -> None:
        rows = 'id,y\n"a ""b""",so\nb,"said ""no"""\n'
        place = folder(
            tmp_path, config=(".yaml", "grader: {name: accuracy}"), leaderboard=(".csv", "score\n0.9\n0.1\n"),
            prepared__private__test=(".csv", rows), prepared__public__sample_submission=(".csv", rows),
        )  # fmt: skip
        (competition,) = mle(path=str(place))._competitions.values()
        assert grade_submission(competition, "\ufeff" + rows).score == 1.0

    def test_a_recipe_may_say_how_one_is_graded(self, tmp_path: Path) -> None:
        place = folder(tmp_path, config=(".yaml", "grader: {name: custom}"))
        world = mle(path=str(place), metrics={"tea": "mae"})
        assert world._competitions["tea"].metric == "mae"

    def test_an_empty_folder_holds_none(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"holds no competition; one is a folder with public/ and private/"):
            mle(path=str(tmp_path)).tasks("train")

    def test_metrics_without_a_folder_are_refused(self) -> None:
        with pytest.raises(ValidationError, match="metrics are of competitions from a folder"):
            mle(metrics={"tea": "mae"})


@pytest.mark.parametrize("cell", ["inf", "-inf", "nan"])
def test_a_number_that_is_none_is_not_graded(cell: str) -> None:
    made = Competition("", {}, {"1": "2.0"}, ("id", "y"), "rmse", Leaderboard([1.0], True))
    with pytest.raises(InvalidSubmissionError, match="a number that is meant"):
        made.score(f"id,y\n1,{cell}\n")


@pytest.mark.parametrize("line", ["[" + "[]," * 2**22 + "[]]", '["a", [["b"]]]', '["a"', '{"a": "b"}', r'["\x", null]'])
def test_a_forged_line_is_not_built_from_its_parts(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program writes what it likes and ends the process: millions of lists would stop the run for seconds."""
    ran = RunResult("finished", f'["before", "it"]\n{line}\n'.encode(), b"", 0, 1.0)
    monkeypatch.setattr(environment, "run_python", lambda *_, **__: ran)
    began = time.process_time()
    assert run_program("", {}, SandboxSettings()) == ProgramResult(environment.OUTCOME_TEXTS["finished"], None)
    assert time.process_time() - began < 1.5


def test_what_a_program_leaves_is_read_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    for printed, submission in (('a "b" \\ \n', "id,x\n1,é\n"), ("", None), ("[", "]")):
        ran = RunResult("finished", f"noise\n{json.dumps([printed, submission])}\n".encode(), b"", 0, 1.0)
        monkeypatch.setattr(environment, "run_python", lambda *_, ran=ran, **__: ran)
        assert run_program("", {}, SandboxSettings()) == ProgramResult(printed.strip(), submission)
