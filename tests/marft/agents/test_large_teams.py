"""What the benchmark of large teams counts as right, and which finished runs it takes over."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.episodes import make_action
from tests.sources import ROOT

BENCHMARKS = ROOT / "benchmarks"
TERMS = st.tuples(st.integers(10, 99), st.lists(st.integers(-99, 99).filter(bool), min_size=1, max_size=11))


@pytest.fixture(scope="module", autouse=True)
def benchmarks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield


@given(TERMS)
def test_every_correct_message_is_right_and_the_last_leaves_the_value(terms: tuple[int, list[int]]) -> None:
    from studies.ceiling import Sum, correct, judge_actor, judge_reasoner

    at = asked = Sum((terms[0], *terms[1]))
    assert Sum.read(str(at)) == at
    said = correct(f"State the final answer to the following arithmetic problem: {at} =")
    assert len(said) == len(terms[1])
    for text in said:
        assert judge_reasoner(text, at) == "right"
        assert judge_reasoner(f"The problem is {at}.", at) == "slip"
        at = at.step()
    assert judge_actor(rf"The result is {at}, so the answer is \boxed{{{asked.value}}}.", at) == "right"


@pytest.mark.parametrize(
    "text",
    [
        "23 + 85 = 109, leaving 109 - 12.",  # wrong sum
        "23 + 85 = 108, leaving 108 - 21.",  # wrong copy
        "23 + 85 = 108, leaving 23 + 85 - 12.",  # nothing done
        "23 + 85 = 108, leaving",
        "",
    ],
)
def test_what_is_tried_and_not_right_is_wrong(text: str) -> None:
    from studies.ceiling import Sum, judge_reasoner

    assert judge_reasoner(text, Sum((23, 85, -12))) == "wrong"


def test_the_ceiling_is_the_product_of_what_is_right_when_it_is_tried() -> None:
    from studies.ceiling import summary

    from marft.common.types import Episode, Observation, Task, Transition

    task = Task("t", "State the final answer to the following arithmetic problem: 10 + 20 =")

    def episode(reasoner: str, actor: str) -> Episode:
        actions = (make_action("reasoner", text=reasoner), make_action("actor", text=actor))
        return Episode(task, "ceiling", 0, actions, "terminated", (Transition(Observation("o"), 0.0),))

    found = summary(
        [
            episode("10 + 20 = 30.", r"The answer is \boxed{30}."),
            episode("10 + 20 = 31.", r"The answer is \boxed{30}."),
            episode("10 + 20 = 30.", r"The answer is \boxed{31}."),
            episode("The problem is 10 + 20.", r"At a glance, the answer is \boxed{12}."),
        ]
    )
    assert found["agents"]["reasoner"] == {"right": 2, "wrong": 1, "slip": 1}
    assert found["ceiling"] == pytest.approx((2 / 3) ** 2)
    assert found["error"] == pytest.approx((4 / 9) * ((1 / 3) / (2 / 3) / 3 * 2) ** 0.5)


class TestRuns:
    @pytest.fixture
    def made(self) -> Callable[..., dict[str, Any]]:
        import large_teams

        def row(job: Any, accuracy: float = 0.9) -> dict[str, Any]:
            return {
                **job.about, "seed": job.run.seed, "before": {"sampled": 0.5}, "after": {"sampled": accuracy},
                "curves": {"accuracy": [accuracy] * 30}, "settings": large_teams.settings(job),
            }  # fmt: skip

        return row

    def test_there_are_thirty_and_ten_of_the_control(self) -> None:
        import large_teams

        rules = [job.about["rule"] for job in large_teams.jobs(200, "runs")]
        assert (rules.count("marft-team"), rules.count("marft")) == (30, 10)

    def test_a_run_counts_wherever_it_was_made_and_not_with_other_settings(
        self, made: Callable[..., dict[str, Any]], tmp_path: Path
    ) -> None:
        import large_teams

        mine, elsewhere = (large_teams.job_of("marft-team", 2, 0, 200, output) for output in ("runs", str(tmp_path)))
        assert list(large_teams.known([elsewhere], [made(mine)])) == ["marft-team-2-0"]
        for other in (
            ("marft", 2, 0, 200),
            ("marft-team", 4, 0, 200),
            ("marft-team", 2, 1, 200),
            ("marft-team", 2, 0, 9),
        ):
            assert not large_teams.known([large_teams.job_of(*other, "runs")], [made(mine)])

    def test_a_run_made_before_a_setting_was_there_counts_by_its_default(
        self, made: Callable[..., dict[str, Any]]
    ) -> None:
        import large_teams

        job = large_teams.job_of("marft-team", 2, 0, 200, "runs")
        row = made(job)
        lines = row["settings"].splitlines(keepends=True)
        of_old = "".join(line for line in lines if not line.startswith("every = "))
        assert of_old != row["settings"]
        assert list(large_teams.known([job], [{**row, "settings": of_old}])) == [job.run.name]
        for other in (of_old.replace("steps = 60", "steps = 61"), of_old + "unknown = 1\n# 200 held-out tasks\n"):
            assert not large_teams.known([job], [{**row, "settings": other}])

    def test_the_table_says_how_much_of_it_is_there(self, made: Callable[..., dict[str, Any]]) -> None:
        import large_teams

        rows = [
            made(large_teams.job_of("marft-team", 2, seed, 200, "runs"), value) for seed, value in ((0, 0.9), (1, 0.8))
        ]
        text = large_teams.table(rows, {"2": {"ceiling": 0.9, "error": 0.01}})
        assert "| 2 | `marft-team` | 2 | 50.0% | 90.0% ± 1.0% | 85.0% |" in text
        assert "| 94.4% | 1 of 2 | 0 of 2 |" in text
        assert "2 of 30 runs of `marft-team` and 0 of 10 of the control have been made." in text
        assert large_teams.plot(rows, {"2": {"ceiling": 0.9, "error": 0.01}}).axes[1].lines

    def test_a_run_that_ends_far_below_its_best_fell_back(self) -> None:
        import large_teams

        assert large_teams.fell({"curves": {"accuracy": [0.4, 0.8, 0.8, 0.8, 0.6, 0.5, 0.5]}})
        assert not large_teams.fell({"curves": {"accuracy": [0.4, 0.8, 0.8, 0.8, 0.8, 0.7, 0.7]}})
