"""Rounds of a competition: what the team is shown, what its programs leave, and what counts of it. No jail is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from marft.agents.sandbox.runner import SandboxSettings
from marft_envs.mle import environment, loading
from marft_envs.mle.competition import Leaderboard
from marft_envs.mle.environment import (
    DEFAULT_LIMITS,
    HEAD_LINES,
    MAX_PRINTED,
    PROGRAM_FILE,
    RUNNER_CODE,
    SUBMISSION_FILE,
    MleSession,
    ProgramResult,
)
from marft_envs.mle.loading import check_limits
from tests.marft_envs.test_mle import answered, folder, mle, small

BOARD = Leaderboard([float(place) for place in range(10)], lower_is_better=True)  # gold to 0, silver to 1, bronze to 3
GOOD, FAIR = "id,y\na,1\nb,2", "id,y\na,4\nb,2"  # errors of 0 and of √4.5, which beats 7 of 10 teams
Leaves = Callable[..., None]


@pytest.fixture
def leaves(monkeypatch: pytest.MonkeyPatch) -> Leaves:
    """Programs leave these submissions, one after the other."""

    def set_to(*submissions: str | None) -> None:
        left = iter(submissions)
        monkeypatch.setattr(environment, "run_program", lambda *_: ProgramResult("done", next(left)))

    return set_to


def begun(rounds: int = 1, **keys: Any) -> MleSession:
    return MleSession(
        replace(small(leaderboard=BOARD), **keys), environment.Mle(rounds=rounds, limits=SandboxSettings())
    )


def test_what_counts_is_paid_at_the_end_alone(leaves: Leaves) -> None:
    leaves(GOOD, GOOD)
    rounds = begun(2)
    first, last = answered(rounds, "one"), answered(rounds, "two")
    assert (first.reward, first.terminated, first.success) == (0.0, False, None)
    assert (last.terminated, last.success) == (True, True)
    assert last.reward == pytest.approx(0.1 + 0.9 * 0.95)


@pytest.mark.parametrize(
    ("submissions", "counts"),
    [((GOOD, None), GOOD), ((FAIR, "id\n"), FAIR), ((None, FAIR), FAIR), ((GOOD, FAIR), FAIR)],
)
def test_the_last_submission_that_can_be_graded_is_what_counts(
    leaves: Leaves, submissions: tuple[str | None, ...], counts: str
) -> None:
    leaves(*submissions)
    rounds = begun(2)
    worth = answered(rounds, "one", "two").reward
    leaves(counts)
    assert worth == answered(begun(), "one").reward > 0


def test_a_medal_is_all_of_the_progress_and_nothing_less_is(leaves: Leaves) -> None:
    leaves(FAIR)
    bronze = answered(begun(), "one")
    assert (bronze.info["progress"], bronze.success) == (1.0, True)
    assert bronze.reward < 0.99
    leaves(FAIR)
    none = answered(begun(leaderboard=Leaderboard([0.0, 3.0], lower_is_better=True)), "one")
    assert (none.info["progress"], none.success) == (none.reward, False)


def test_of_tables_the_first_lines_are_shown() -> None:
    table = "\n".join(["id,x", *(f"row {number}" for number in range(1, 9))])
    shown = begun(public={"train.csv": table.encode(), "more.bin": b"1234"})._build_observation().text
    assert f"row {HEAD_LINES - 1}" in shown
    assert f"row {HEAD_LINES}" not in shown
    assert "more.bin: 4 bytes" in shown


def test_of_what_a_program_prints_the_end_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(PROGRAM_FILE).write_text(
        f"print('first', '.' * {MAX_PRINTED}, 'last')\nopen('{SUBMISSION_FILE}', 'w').write('id')\n"
    )
    exec(RUNNER_CODE, {})
    printed, submission = json.loads(capsys.readouterr().out)
    assert (len(printed), printed.startswith("first"), printed.endswith("last\n")) == (MAX_PRINTED, False, True)
    assert submission == "id"


def test_public_files_that_are_too_large_for_each_run_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = folder(tmp_path)
    monkeypatch.setattr(loading, "MAX_MB", 0)
    with pytest.raises(ValueError, match="take a competition of at most 0 MB, or a part of its rows"):
        mle(path=str(place)).tasks("train")


@pytest.mark.parametrize("limit", ["max_files", "output_kb"])
def test_a_competition_that_no_program_can_be_given_or_give_back_is_refused_by_its_limit(
    tmp_path: Path, limit: str
) -> None:
    place = folder(tmp_path)
    (made,) = mle(path=str(place))._competitions.values()
    if limit == "output_kb":
        made = replace(made, answers={f"{n:>04}": "long" * 100 for n in range(10)})
    check_limits("mine", made, DEFAULT_LIMITS)
    tight = DEFAULT_LIMITS.model_copy(update={limit: len(made.public) if limit == "max_files" else 3})
    with pytest.raises(ValueError, match=rf"set environment\.limits\.{limit} = \d+"):
        check_limits("mine", made, tight)


def test_where_programs_cannot_be_held_in_a_jail_there_are_no_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    def offers_none(_: SandboxSettings) -> None:
        raise ValueError("this machine offers no isolation")

    monkeypatch.setattr(environment, "require_isolation", offers_none)
    with pytest.raises(ValueError, match="no isolation"):
        mle(train_tasks=1, held_out_tasks=1).tasks("train")
