"""A shadow is compared fairly: what sessions are worth, and that no stop, crash or failure changes what is shown."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marft.common.types import Episode, Task
from marft.envs.tasks import read_tasks
from marft.runs.episode_files import write_episodes
from marft.runs.export.manifest import MANIFEST
from marft_lab.shadow import setup
from marft_lab.shadow.comparison import ShadowComparer, comparison_identity
from marft_lab.shadow.player import ShadowResult
from marft_lab.shadow.report import build_report, explain_report
from marft_lab.shadow.scorers import AgreementScorer, RewardScorer, UnscoredError, read_feedback
from marft_lab.shadow.sessions import SessionEvent, SessionLog
from marft_lab.shadow.settings import ShadowSettings
from marft_lab.shadow.setup import ShadowRequest
from tests.helpers import settings as recipe_settings
from tests.recorded_sessions import session

HERE = "tests.marft_lab.test_shadow_comparing"


class Plays:
    """Answers ``right`` where a function of the session says so; counts what it played."""

    def __init__(
        self, right: Callable[[str], bool] = lambda name: True, dies: str = "", how: type[BaseException] = MemoryError
    ) -> None:  # fmt: skip
        self.right, self.dies, self.how, self.names = right, dies, how, list[str]()

    def play(self, recorded: Episode) -> ShadowResult:
        name = recorded.task.id
        if name == self.dies:
            raise self.how
        self.names.append(name)
        return ShadowResult(session(name, "right" if self.right(name) else "wrong"), 0, 0, 0)


class Right:
    """1 where the answer is right."""

    def __call__(self, recorded: Episode, said: Episode) -> float:
        if recorded.task.id == "unknown":
            raise UnscoredError("nobody knows it")
        return float(said.actions[0].text == "right")

    def close(self) -> None: ...


def recorded_in(folder: Path, count: int, right: Callable[[int], bool] = lambda n: False) -> None:
    some = [session(f"s{number:03d}", "right" if right(number) else "wrong") for number in range(count)]
    write_episodes(folder / "sessions-1-000001.parquet", some)


def comparing(folder: Path, name: str = "j", **fields: Any) -> ShadowComparer:
    rules = ShadowSettings.model_validate({"min_sessions": 5, **fields})
    return ShadowComparer(
        rules, folder, SessionLog(folder / name, comparison_identity(rules, "b", folder, "r")), seed=0
    )


class TestComparing:
    def test_it_promotes_a_better_team_stops_a_worse_one_and_holds_the_same(self, tmp_path: Path) -> None:
        recorded_in(tmp_path, 60, right=lambda n: n % 2 == 0)
        words = {}
        for name, right in (
            ("better", lambda _: True),
            ("worse", lambda _: False),
            ("same", lambda s: not int(s[1:]) % 2),
        ):
            words[name] = comparing(tmp_path, name).run(Plays(right), Right()).verdict.word
        assert words == {"better": "promote", "worse": "stop", "same": "hold"}

    def test_it_ends_with_the_verdict(self, tmp_path: Path) -> None:
        recorded_in(tmp_path, 60)
        plays = Plays()
        state = comparing(tmp_path).run(plays, Right())
        assert state.verdict.final
        assert len(plays.names) == state.verdict.sessions < 60

    def test_one_that_was_killed_ends_as_one_that_never_stopped(self, tmp_path: Path) -> None:
        recorded_in(tmp_path, 20, right=lambda n: n % 3 == 0)
        right = lambda name: int(name[1:]) % 2 == 0  # noqa: E731
        whole = comparing(tmp_path, "whole", min_sessions=20).run(Plays(right), Right())
        with pytest.raises(MemoryError):
            comparing(tmp_path, "cut", min_sessions=20).run(Plays(right, dies="s007"), Right())
        with (tmp_path / "cut").open("ab") as file:
            file.write(b'{"kind": "compa')  # what a power cut leaves
        again = comparing(tmp_path, "cut", min_sessions=20)
        plays = Plays(right)
        state = again.run(plays, Right())
        assert plays.names[0] == "s007"
        assert state.verdict == whole.verdict
        plain = [
            [replace(line, seconds=0.0) for line in one.events if line.kind == "compared"] for one in (state, whole)
        ]
        assert plain[0] == plain[1]

    def test_a_session_that_ends_the_process_each_time_is_one_without_an_answer(self, tmp_path: Path) -> None:
        recorded_in(tmp_path, 3, right=lambda n: True)
        for _ in range(2):
            with pytest.raises(MemoryError):
                comparing(tmp_path, max_retries=1).run(Plays(dies="s001"), Right())
        state = comparing(tmp_path, max_retries=1).run(Plays(dies="s001"), Right())
        compared = {line.session: line for line in state.events if line.kind == "compared"}
        assert list(compared) == ["s000", "s001", "s002"]
        assert (compared["s001"].served, compared["s001"].shadow) == (1.0, 0.0)
        assert "ended the shadow's process" in compared["s001"].why

    def test_one_that_somebody_ends_in_a_session_is_not_blamed_for_it(self, tmp_path: Path) -> None:
        recorded_in(tmp_path, 1)
        for _ in range(5):
            with pytest.raises(KeyboardInterrupt):
                comparing(tmp_path, max_retries=1).run(Plays(dies="s000", how=KeyboardInterrupt), Right())
        assert comparing(tmp_path, max_retries=1).run(Plays(), Right()).events[-1].shadow == 1.0

    def test_a_shadow_without_an_answer_is_worth_the_least_and_an_unknown_score_is_no_0(self, tmp_path: Path) -> None:
        class Silent(Plays):
            def play(self, recorded: Episode) -> ShadowResult:
                found = super().play(recorded)
                return replace(found, episode=replace(found.episode, answer="", status="failed", error="boom"))

        recorded_in(tmp_path, 2, right=lambda n: True)
        write_episodes(tmp_path / "sessions-1-000002.parquet", [session("unknown")])
        state = comparing(tmp_path).run(Silent(), Right())
        assert [(line.kind, line.shadow) for line in state.events if line.kind != "begun"] == [
            ("compared", 0.0), ("compared", 0.0), ("left_out", None),
        ]  # fmt: skip
        report = build_report(state, {})
        assert (report["served"], report["shadow"], report["shadow_without_answer"]) == (1.0, 0.0, 2)
        assert report["left_out"] == {"nobody knows it": 1}
        assert any("nobody knows it" in one for one in explain_report(report, ShadowSettings()))

    def test_answers_that_break_the_grader_are_worth_the_least(self, tmp_path: Path) -> None:
        """Left out, a worse team would be the better, the more of its answers cannot be graded."""

        class Breaks(Right):
            def __call__(self, recorded: Episode, said: Episode) -> float:
                if said.actions[0].text == "wrong" and said is not recorded:
                    raise UnscoredError("the environment: it took too long")
                return super().__call__(recorded, said)

        recorded_in(tmp_path, 150, right=lambda n: n % 5 < 3)
        state = comparing(tmp_path).run(Plays(lambda name: int(name[1:]) % 10 < 3), Breaks())
        assert state.verdict.word == "stop"
        assert {line.kind for line in state.events} == {"begun", "compared"}
        assert any(
            line.why == "its answer could not be graded: the environment: it took too long" for line in state.events
        )

    @pytest.mark.parametrize(
        ("word", "margin", "lower", "said"),
        [
            ("promote", 0.0, 0.01, "promote: shown to be better than the served team, by the rules given"),
            ("promote", 0.1, -0.05, "promote: shown to be worse than the served team by less than the margin, 0.1"),
            ("promote", 0.1, 0.02, "than the margin, 0.1, and better than it"),
            ("stop", 0.0, -1.0, "stop: shown to be worse than the served team, by the rules given"),
            ("stop", 0.1, -1.0, "stop: shown to be worse than the served team by more than the margin, 0.1"),
            ("hold", 0.1, -1.0, "hold: nothing is shown yet"),
        ],
    )
    def test_with_a_margin_who_is_promoted_is_hardly_worse_and_not_called_better(
        self, tmp_path: Path, word: str, margin: float, lower: float, said: str
    ) -> None:
        recorded_in(tmp_path, 1)
        report = build_report(comparing(tmp_path).run(Plays(), Right()), {})
        report["verdict"] |= {"word": word, "lower": lower, "final": word != "hold"}
        first, rates, *_ = explain_report(report, ShadowSettings(margin=margin))
        assert first.endswith(said) if word != "hold" else first.startswith(said)
        assert ("worse by 0.1 or more is promoted" if margin else "not better is promoted") in rates

    @pytest.mark.parametrize(("refused", "kind"), [("count", "compared"), ("skip", "left_out")])
    def test_sessions_with_refused_calls_count_or_are_left_out(self, refused: str, kind: str, tmp_path: Path) -> None:
        class Refused(Plays):
            def play(self, recorded: Episode) -> ShadowResult:
                return replace(super().play(recorded), refused=2)

        recorded_in(tmp_path, 1)
        state = comparing(tmp_path, refused=refused).run(Refused(), Right())
        assert state.events[-1].kind == kind
        assert build_report(state, {})["tools"]["sessions_with_refused"] == 1

    def test_scores_beyond_their_bounds_are_cut_and_counted(self, tmp_path: Path) -> None:
        recorded_in(tmp_path, 1)
        state = comparing(tmp_path, max_score=0.5).run(Plays(), Right())
        assert (state.events[-1].shadow, state.events[-1].clipped) == (0.5, True)

    def test_rules_cannot_be_changed_while_one_looks(self, tmp_path: Path) -> None:
        recorded_in(tmp_path, 1)
        comparing(tmp_path).run(Plays(), Right())
        with pytest.raises(ValueError, match=r"false_promotions \(0.05, now 0.2\)"):
            comparing(tmp_path, false_promotions=0.2)
        comparing(tmp_path, backlog=7, pause=False)

    def test_whatever_changes_a_comparison_is_among_what_a_journal_is_about(self, tmp_path: Path) -> None:
        said = comparison_identity(ShadowSettings(), "b", tmp_path, "r")
        free = ShadowSettings.model_fields.keys() - said.keys()
        assert free == {"pause", "resume_after_idle_seconds", "threads", "backlog", "priority"}
        SessionLog(tmp_path / "j", said).add(SessionEvent("begun", "s"))
        for other in (("c", tmp_path, "r"), ("b", tmp_path / "d", "r"), ("b", tmp_path, "s")):
            with pytest.raises(ValueError, match=r"\(.*, now .*\)"):
                SessionLog(tmp_path / "j", comparison_identity(ShadowSettings(), *other))

    def test_the_weights_are_among_it(self, tmp_path: Path) -> None:
        asked = ShadowRequest(tmp_path, "last", [], False, tmp_path, tmp_path)
        (tmp_path / MANIFEST).write_text("{}")
        run = recipe_settings("tiny", tmp_path)
        team: Any = SimpleNamespace(export=SimpleNamespace(path=tmp_path), checkpoint=None, run=run)
        before = setup._identity(team, asked)
        (tmp_path / MANIFEST).write_text("[]")
        assert setup._identity(team, asked) != before
        (tmp_path / "state.json").write_text("{}")
        other: Any = SimpleNamespace(export=None, checkpoint=tmp_path, run=run)
        assert setup._identity(other, asked) == before

    def test_so_is_the_recipe_they_play_by_but_for_what_changes_no_comparison(self, tmp_path: Path) -> None:
        asked = ShadowRequest(tmp_path, "last", [], False, tmp_path, tmp_path)
        (tmp_path / "state.json").write_text("{}")

        def of(*words: str) -> str:
            run = recipe_settings("tiny", tmp_path, *words)
            return setup._identity(cast("Any", SimpleNamespace(export=None, checkpoint=tmp_path, run=run)), asked)

        assert of() == of("--shadow.threads", "2") == of("--output", "elsewhere")
        assert of() != of("--seed", "7")
        assert of() != of("--agents.actor.sampling.temperature", "0.1")

    def test_an_edited_recipe_that_grades_is_another_one(self, tmp_path: Path) -> None:
        (grade := tmp_path / "grade.toml").write_text("a = 1")
        asked = ShadowRequest(tmp_path, "last", [], False, tmp_path, tmp_path, grade=grade)
        before = setup._grading_source(asked, "rewards")
        grade.write_text("a = 2")
        assert setup._grading_source(asked, "rewards") != before
        assert setup._grading_source(replace(asked, grade=tmp_path / "." / "grade.toml"), "rewards") != before

    def test_none_of_those_that_are_all_there_is_dropped(self, tmp_path: Path) -> None:
        recorded_in(tmp_path, 4, right=lambda n: n == 0)
        plays = Plays()
        state = comparing(tmp_path, backlog=1).run(plays, Right())
        assert len(plays.names) == 4
        report = build_report(state, {})
        assert (report["better"], report["worse"], report["dropped"]) == (3, 0, 0), "one is as good"

    def test_a_journal_that_is_none_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "j").write_text("[]\n")
        with pytest.raises(ValueError, match="no shadow's"):
            SessionLog(tmp_path / "j", {})

    def test_lines_are_on_the_disk_once_they_are_added(self, tmp_path: Path) -> None:
        journal = SessionLog(tmp_path / "j", {"team": "b"})
        journal.add(SessionEvent("compared", "é", "", 1.0, 0.0))
        assert SessionLog(tmp_path / "j", {"team": "b"}).events == journal.events


class TestScoring:
    def test_agreement_is_with_the_served_answer_however_it_is_put(self) -> None:
        scorer = AgreementScorer(ShadowSettings(score="agreement", margin=0.1))
        served = session("s", "So the answer is \\boxed{7}")
        assert scorer(served, served) == 1.0
        assert scorer(served, session("s", "\\boxed{7}")) == 1.0
        assert scorer(served, session("s", "\\boxed{8}")) == 0.0

    def test_it_is_between_the_bounds(self) -> None:
        scorer = AgreementScorer(ShadowSettings(score="agreement", margin=0.1, min_score=-1, max_score=3))
        assert [scorer(session("s"), said) for said in (session("s"), session("s", "other"))] == [3.0, -1.0]

    def test_numbers_that_are_none_are_left_out(self) -> None:
        scorer = AgreementScorer(ShadowSettings(score="agreement", agreement="numeric", margin=0.1))
        with pytest.raises(UnscoredError, match="not one number"):
            scorer(session("s", "none at all"), session("s", "7"))

    def test_feedback_is_shared_by_the_same_answer_and_by_no_other(self, tmp_path: Path) -> None:
        file = tmp_path / "said.jsonl"
        file.write_text('{"session": "s", "score": 0.2}\n\n{"session": "s", "score": 0.75}\n')
        scorer = AgreementScorer(ShadowSettings(score="feedback", margin=0.1), read_feedback(file))
        served = session("s")
        assert [scorer(served, said) for said in (served, session("s"), session("s", "other"))] == [0.75, 0.75, 0.0]
        with pytest.raises(UnscoredError, match="no feedback"):
            scorer(session("t"), served)

    @pytest.mark.parametrize("line", ['{"session": "s"}', '{"session": "s", "score": 2}', "no", '{"score": NaN}'])
    def test_feedback_that_is_none_is_refused_by_its_line(self, line: str, tmp_path: Path) -> None:
        file = tmp_path / "said.jsonl"
        file.write_text(f'{{"session": "s", "score": 1}}\n{line}\n')
        with pytest.raises(ValueError, match=r"said.jsonl:2"):
            read_feedback(file)

    def test_the_environment_grades_what_it_knows_and_nothing_else(self, tmp_path: Path) -> None:
        run = recipe_settings("tiny", tmp_path)
        task = read_tasks(run.environment, "test")[0]
        right = str(task.data["answer"]) if "answer" in task.data else str(task.data["entry"]["answer"])
        scorer = RewardScorer(run)
        try:
            asked = replace(session("s"), task=Task("s", task.prompt))
            assert scorer(asked, session("s", f"\\boxed{{{right}}}")) == 1.0
            assert scorer(asked, session("s", "\\boxed{no number}")) == 0.0
            with pytest.raises(UnscoredError, match="does not know the question"):
                scorer(session("s"), session("s"))
        finally:
            scorer.close()

    def test_terms_of_their_own_grade_any_question(self, tmp_path: Path) -> None:
        run = recipe_settings("tiny", tmp_path, rewards=[{"name": "function", "call": f"{HERE}:short"}])
        scorer = RewardScorer(run)
        try:
            assert scorer(session("s"), session("s", "brief")) == 1.0
            assert scorer(session("s"), session("s", "x" * 100)) == 0.0
        finally:
            scorer.close()


def short(episode: Episode) -> float:
    return float(len(episode.actions[-1].text) < 50)
