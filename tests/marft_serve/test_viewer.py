"""The viewer's answers: what a run's files hold, found by what is asked for, while they grow and where they are damaged."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("fastapi", reason="needs pip install 'marft[viewer]'")

from starlette.testclient import TestClient

from marft.common.types import Observation, Task, Transition
from marft.runs.episode_files import write_episodes
from marft_serve.viewer.episode_index import FileVersion, IndexCache, build_index
from marft_serve.viewer.metrics_log import downsample
from tests.episodes import make_action
from tests.views import asked, attempt, client, forked, make_run, record


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_run(tmp_path / "runs" / "one")


def found(mine: TestClient, **query: object) -> list[tuple[int, int]]:
    """Step and index of the episodes that are found."""
    return [(e["step"], e["index"]) for e in asked(mine, "runs/one/episodes", **query)["episodes"]]


class TestRuns:
    def test_a_run_says_what_it_is_and_where_it_stands(self, run: Path) -> None:
        (one,) = asked(client(run.parent), "runs")["runs"]
        assert (one["id"], one["algorithm"], one["level"], one["state"]) == ("one", "marft", "action", "finished")
        assert (one["step"], one["steps"], one["recorded"], one["evaluations"]) == (3, 2, [1, 2, 3], [])
        assert one["last"] == {"reward": 0.3, "accuracy": None}
        assert one["agents"] == [
            {"role": "reasoner", "policy": "reasoner", "trained": True, "answers": False},
            {"role": "actor", "policy": "actor", "trained": True, "answers": True},
        ]

    def test_namesakes_are_told_apart_and_keep_their_names(self, tmp_path: Path) -> None:
        places = [make_run(tmp_path / name / "same", steps=step) for step, name in enumerate("ab", 1)]
        mine = client(*places)
        ids = [one["id"] for one in asked(mine, "runs")["runs"]]
        assert ids[0] == "same"
        assert ids[1].startswith("same~")
        assert [one["step"] for name in ids for one in asked(mine, f"runs/{name}/steps")["steps"]] == [1, 1, 2]
        shutil.rmtree(places[0])
        assert [one["id"] for one in asked(mine, "runs")["runs"]] == ids[1:]

    def test_one_that_is_taken_away_is_gone_and_nothing_else(self, run: Path) -> None:
        other = make_run(run.parent / "two")
        mine = client(run.parent)
        assert len(asked(mine, "runs")["runs"]) == 2
        shutil.rmtree(run)
        assert [one["id"] for one in asked(mine, "runs")["runs"]] == [other.name]
        for path in ("metrics", "episodes", "episodes/1/0", "team", "credit"):
            answer = mine.get(f"/api/runs/one/{path}")
            assert answer.status_code == 404
            assert answer.json()["error"]

    def test_one_that_goes_on_for_longer_says_so(self, run: Path) -> None:
        mine, config = client(run), run / "config.toml"
        assert asked(mine, "runs")["runs"][0]["state"] == "finished"
        config.write_text(config.read_text().replace("steps = 2", "steps = 20", 1))
        os.utime(config, (1, 1))
        (one,) = asked(mine, "runs")["runs"]
        assert (one["steps"], one["state"]) == (20, "stopped")

    def test_no_run_at_all_is_refused_in_words(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"no run at .*nothing"):
            client(tmp_path / "nothing")

    def test_one_whose_recipe_is_damaged_is_left_out_until_it_is_whole(self, run: Path) -> None:
        whole = (run / "config.toml").read_text()
        (run / "config.toml").write_text("name = ")
        mine = client(run)
        assert asked(mine, "runs") == {"runs": []}
        (run / "config.toml").write_text(whole)
        assert len(asked(mine, "runs")["runs"]) == 1


class TestMetrics:
    def test_they_are_read_as_they_come_and_a_half_written_line_is_not_there_yet(self, run: Path) -> None:
        mine = client(run)
        assert asked(mine, "runs/one/metrics", names="reward,accuracy") == {
            "steps": [1, 2, 3],
            "series": {"reward": [0.1, 0.2, 0.3], "accuracy": [None, None, None]},
            "names": ["reward", "accuracy"],
        }
        line = json.dumps({"step": 4, "reward": 4.0, "new": 1e308}) + "\n"
        with (run / "metrics.jsonl").open("a") as log:
            log.write(line[:9])
            log.flush()
            assert asked(mine, "runs/one/metrics", names="reward", since=2)["steps"] == [3]
            log.write(line[9:])
        said = asked(mine, "runs/one/metrics", names="new,reward", since=2)
        assert said["series"] == {"new": [None, 1e308], "reward": [0.3, 4.0]}

    def test_a_log_that_was_cut_back_is_read_anew(self, run: Path) -> None:
        mine = client(run)
        asked(mine, "runs/one/metrics", names="reward")
        rows = [json.dumps({"step": step, "reward": float(step)}) + "\n" for step in (1, 2, 3, 4, 5, 6)]
        (run / "metrics.jsonl").write_text("".join(rows))
        assert asked(mine, "runs/one/metrics", names="reward")["series"]["reward"] == [1, 2, 3, 4, 5, 6]

    def test_of_many_points_the_extremes_and_the_ends_are_kept(self) -> None:
        draw = np.random.default_rng(0)
        columns = [draw.normal(size=5000), draw.normal(size=5000)]
        columns[0][1234], columns[1][77], columns[1][100:200] = 50.0, -50.0, np.nan
        kept = downsample(columns, 5000, 100)
        assert len(kept) <= 100
        assert {0, 77, 1234, 4999} <= set(kept)
        assert downsample(columns, 5000, 5000) == list(range(5000))

    def test_guards_that_are_raised_are_said_once_with_their_step(self, run: Path) -> None:
        for step in (4, 5):
            record(
                run, step, [attempt(step, 0)], **{"guards/kl": 1.0, "guards/rolled_back_to": 1.0 if step == 5 else None}
            )
        (one,) = asked(mine := client(run), "runs")["runs"]
        assert [(guard["step"], guard["name"]) for guard in one["guards"]] == [(4, "kl"), (5, "rolled_back_to")]
        assert "goes back to the checkpoint of step 1" in one["guards"][1]["sentence"]
        assert one["guards"][0]["sentence"]
        assert [e["step"] for e in asked(mine, "runs/one/episodes", guard="kl")["episodes"]] == [4, 5]


class TestEpisodes:
    def test_they_are_found_by_what_is_asked_for(self, run: Path) -> None:
        mine = client(run)
        assert len(found(mine)) == 12
        assert found(mine, step=2) == [(2, n) for n in range(4)]
        assert found(mine, q="PLAN 2.3") == found(mine, q="plan 2.3") == [(2, 3)]
        assert found(mine, q="STRASSE") == []
        assert found(mine, q="STRAßE 1", step=1) == [(1, 1)]
        assert found(mine, q="question t/1?", step=1) == [(1, 2), (1, 3)]
        assert found(mine, q="3straße") == []  # no text goes over into the next
        assert found(mine, task="t/0", step=3) == [(3, 0), (3, 1)]
        assert len(found(mine, task="T/")) == 12
        assert found(mine, success="true", step=1) == [(1, 1), (1, 3)]
        assert found(mine, reward_min=1, reward_max=2, step=1) == [(1, 1), (1, 2)]
        assert found(mine, agent="nobody") == found(mine, status="failed") == found(mine, guard="kl") == []
        assert len(found(mine, agent="actor", status="terminated")) == 12

    def test_what_is_asked_for_is_of_that_name_and_not_of_one_that_holds_it(self, run: Path) -> None:
        act = make_action("actor 2", text="mine")
        record(run, 4, [attempt(4, 0), attempt(4, 1, actions=(act,)), attempt(4, 2, task=Task("t/0/more", "?"))])
        mine = client(run)
        assert found(mine, task="t/0", step=4) == [(4, 0), (4, 1)]
        assert found(mine, task="T/0", step=4) == [(4, 0), (4, 1), (4, 2)]
        assert found(mine, task="/MORE") == [(4, 2)]
        assert found(mine, agent="actor", step=4) == [(4, 0), (4, 2)]
        assert found(mine, agent="actor 2") == [(4, 1)]
        assert found(mine, status="term") == []

    def test_a_bound_of_0_is_a_bound_and_no_success_is_not_an_unknown_one(self, run: Path) -> None:
        negative = Transition(Observation(""), -1.0)
        record(run, 4, [attempt(4, 0), attempt(4, 1, transitions=(negative,)), attempt(4, 2, success=None)])
        mine = client(run)
        assert found(mine, reward_min=0, step=4) == [(4, 0), (4, 2)]
        assert found(mine, reward_max=0, step=4) == [(4, 0), (4, 1)]
        assert found(mine, success="false", step=4) == [(4, 0)]
        assert found(mine, success="true", step=4) == [(4, 1)]

    def test_one_in_which_an_agent_acted_twice_names_it_once_and_says_its_last_words_in_short(self, run: Path) -> None:
        acts = tuple(make_action("actor", call=call, index=call, text="word " * 99 + str(call)) for call in range(2))
        lost = attempt(4, 1, actions=(), status="failed", error="x" * 999, transitions=(), success=None)
        record(run, 4, [attempt(4, 0, actions=acts), lost])
        (one, other) = asked(client(run), "runs/one/episodes", step=4)["episodes"]
        assert (one["agents"], one["actions"]) == (["actor"], 2)
        assert (one["preview"], len(other["error"])) == (("word " * 99)[:160], 400)

    def test_episodes_of_other_tasks_or_streams_that_follow_each_other_are_apart(self, run: Path) -> None:
        apart = [
            attempt(4, 0, task=Task("a", "?")),
            attempt(4, 0, task=Task("b", "?")),
            attempt(5, 0, task=Task("b", "?")),
        ]
        record(run, 4, apart)
        mine = client(run)
        assert [e["task"] for e in asked(mine, "runs/one/episodes", step=4)["episodes"]] == ["a", "b", "b"]

    def test_tasks_are_found_by_their_names_in_a_search(self, run: Path) -> None:
        record(run, 4, [attempt(4, 0, task=Task("orders/Blue", "?"))])
        assert found(client(run), q="orders/blue") == [(4, 0)]

    def test_they_are_sorted_and_cut_into_pages(self, run: Path) -> None:
        mine = client(run)
        assert found(mine, order="desc", limit=2) == [(3, 3), (3, 2)]
        assert found(mine, sort="reward", order="desc", limit=4) == [(1, 3), (2, 3), (3, 3), (1, 2)]
        assert found(mine, sort="task", limit=1, offset=6) == [(1, 2)]
        assert found(mine, sort="seconds", order="desc", offset=11) == [(3, 0)]
        assert asked(mine, "runs/one/episodes", limit=0)["total"] == 12

    def test_a_step_that_is_recorded_meanwhile_shows_up(self, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("marft_serve.viewer.episode_index.SCAN_SECONDS", 0.0)
        mine = client(run)
        assert asked(mine, "runs/one/episodes")["total"] == 12
        record(run, 4, [attempt(4, 0, "news")])
        assert [e["step"] for e in asked(mine, "runs/one/episodes", q="news")["episodes"]] == [4]
        record(run, 4, [attempt(4, 0, "other news")] * 1)  # a resumed run writes it again
        assert asked(mine, "runs/one/episodes", q="other news")["total"] == 1

    def test_one_is_told_whole(self, run: Path) -> None:
        one = asked(client(run), "runs/one/episodes/2/3")
        assert (one["prompt"], one["answer"], one["reward"], one["preview"]) == (
            "Question t/1?",
            "Straße 3",
            3,
            "Straße 3",
        )
        assert one["transitions"][0]["terms"] == {"right": 1.0}
        assert one["group"] == {"key": "t/1", "episodes": [[2, 2], [2, 3]], "rewards": [2, 3]}
        plan, act = one["actions"]
        assert (act["sees"], act["agent_reward"], act["log_prob"]) == ([plan["id"]], 0.5, -1.0)
        assert plan["play_again"] == f"marft play {run} --fork-from 2:3@0/reasoner/0"
        prompt = asked(client(run), "runs/one/episodes/2/3/prompt", action="0/actor/0")
        assert prompt["tokens"] == 3
        assert prompt["text"]

    def test_forks_failures_and_episodes_in_which_nobody_acted_are_told_too(self, run: Path) -> None:
        lost = attempt(4, 2, actions=(), status="failed", error="boom", transitions=(), success=None)
        record(run, 4, [attempt(4, 0), forked(4, 0), lost])
        mine = client(run)
        rows = asked(mine, "runs/one/episodes", step=4)["episodes"]
        assert [row["fork"] for row in rows] == [None, {"origin": "train/3 t/0 #0", "at": "0/actor/0"}, None]
        assert (rows[2]["status"], rows[2]["error"], rows[2]["actions"], rows[2]["agents"]) == ("failed", "boom", 0, [])
        assert asked(mine, "runs/one/episodes/4/2")["actions"] == []
        assert found(mine, q="boom") == [(4, 2)]

    def test_evaluations_lie_beside_steps(self, run: Path) -> None:
        write_episodes(run / "evaluations" / "last-greedy.parquet", [attempt(9, 2), attempt(9, 3)])
        mine = client(run)
        assert asked(mine, "runs")["runs"][0]["evaluations"] == ["last-greedy"]
        said = asked(mine, "runs/one/beside", a="last-greedy", b="step 2", task="t/1")
        assert (said["tasks"], said["checkpoints"][0]) == (["t/1"], "last-greedy")
        sides = [[(e["step"], e["index"]) for e in said[side]["episodes"]] for side in "ab"]
        assert sides == [[("last-greedy", 0), ("last-greedy", 1)], [(2, 2), (2, 3)]]
        assert asked(mine, "runs/one/episodes/last-greedy/1")["answer"] == "Straße 3"

    def test_side_by_side_opens_on_plain_evaluations_and_what_came_before_comes_first(self, run: Path) -> None:
        """With shuffled messages, on scenarios or as another team a team is not what it was before training."""
        folder = run / "evaluations"

        def opened(*names: str) -> list[str]:
            for name in names:
                checkpoint, mode, *other = name.split("-")
                said = {"checkpoint": checkpoint, "mode": mode, "shuffled_messages": other == ["shuffled"], "tasks": 2}
                write_episodes(folder / f"{name}.parquet", [attempt(9, 2)])
                (folder / f"{name}.json").write_text(json.dumps(said))
            return list(asked(client(run), "runs/one/beside")["pair"])

        first, *_, last = asked(client(run), "runs/one/beside")["checkpoints"]
        assert opened() == [first, last]
        assert opened("base-greedy-shuffled", "step_000003-greedy-shuffled") == [first, last]
        assert opened("step_000003-sampled")[0] == "step_000003-sampled"
        assert opened("step_000003-greedy", "base-greedy") == ["base-greedy", "step_000003-greedy"]
        assert opened("base-greedy-on-suite", "base-greedy-as-pair") == ["base-greedy", "step_000003-greedy"]

    def test_what_they_measured_is_told_and_what_is_damaged_named(self, run: Path) -> None:
        mine = client(run)
        assert asked(mine, "runs/one/evaluations") == {
            "evaluations": [], "trajectories": [], "fields": [], "cohorts": [], "problems": []
        }  # fmt: skip
        table = {
            "checkpoint": "last", "mode": "greedy", "shuffled_messages": False, "tasks": 2, "accuracy": 0.5,
            "interval": [0.1, 0.9], "passes": {"pass@2": [0.75, [0.3, 1.0]]}, "measured": {"t": {"cost_tokens": [7, 1]}},
        }  # fmt: skip
        (run / "evaluations").mkdir()
        (run / "evaluations" / "last-greedy.json").write_text(json.dumps(table))
        (run / "evaluations" / "torn.json").write_text('{"checkpoint":')
        said = asked(mine, "runs/one/evaluations")
        (one,) = said["evaluations"]
        assert (one["name"], one["accuracy"], one["interval"], one["reward"]) == ("last-greedy", 0.5, [0.1, 0.9], None)
        assert (one["passes"], one["episodes"]) == ({"pass@2": [0.75, [0.3, 1.0]]}, False)
        assert said["trajectories"] == [{"label": "tokens per episode", "agent": "", "cells": ["7"]}]
        assert ["torn.json is damaged" in problem for problem in said["problems"]] == [True]

    def test_what_they_measured_is_told_by_cohort_where_it_is_asked(self, run: Path) -> None:
        table = {
            "checkpoint": "last", "mode": "greedy", "shuffled_messages": False, "tasks": 2, "accuracy": 0.5,
            "measured": {"t": {"accuracy": [1, 1]}, "u": {"accuracy": [0, 1]}},
            "fields": {"level": {"t": "easy", "u": "hard"}},
        }  # fmt: skip
        (run / "evaluations").mkdir()
        (run / "evaluations" / "last-greedy.json").write_text(json.dumps(table))
        mine = client(run)
        assert asked(mine, "runs/one/evaluations")["fields"] == ["level"]
        assert asked(mine, "runs/one/evaluations")["cohorts"] == []
        cohorts = asked(mine, "runs/one/evaluations", by="level")["cohorts"]
        assert [(one["name"], one["tasks"], one["rows"][0]["cells"]) for one in cohorts] == [
            ("level = easy", [1], ["100.0%"]), ("level = hard", [1], ["0.0%"]),
        ]  # fmt: skip
        gone = asked(mine, "runs/one/evaluations", by="lvel")
        assert (len(gone["evaluations"]), gone["cohorts"]) == (1, [])
        assert "did you mean 'level'?" in gone["problems"][0]

    def test_the_teams_graph_counts_who_saw_whom(self, run: Path) -> None:
        said = asked(client(run), "runs/one/team", step=1)
        assert said["organization"] == "chain"
        assert [(agent["role"], agent["actions"], agent["tokens"]) for agent in said["agents"]] == [
            ("reasoner", 4, 8),
            ("actor", 4, 4),
        ]
        assert said["edges"] == [{"from": "reasoner", "to": "actor", "count": 4, "share": 1.0}]


class TestWhatIsNotWhole:
    @pytest.mark.parametrize("content", [b"", b"PAR1 garbage PAR1", "cut", "foreign"])
    def test_a_file_that_cannot_be_read_is_named_and_the_others_are_shown(
        self, run: Path, content: bytes | str
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        path = run / "episodes" / "step_000002.parquet"
        whole = path.read_bytes()
        if content == "foreign":
            pq.write_table(pa.table({"task": [1], "stream": ["a"]}), path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else whole[: len(whole) // 2])
        mine = client(run)
        said = asked(mine, "runs/one/episodes")
        assert {e["step"] for e in said["episodes"]} == {1, 3}
        for address in ("episodes/2/0", "team?step=2", "credit?step=2", "episodes?step=2"):
            answer = mine.get(f"/api/runs/one/{address}")
            assert answer.status_code == 422
            assert "step_000002.parquet" in answer.json()["error"]
        assert "step_000002" in asked(mine, "runs/one/steps")["steps"][1]["problem"]

    def test_numbers_that_are_not_finite_are_null_and_texts_are_what_they_are(self, run: Path) -> None:
        said = "<script>alert(1)</script>\x00\x1b[2J\u202e" + "x" * 300_000
        odd = attempt(4, 0, said)
        odd = replace(odd, transitions=(replace(odd.transitions[0], reward=float("nan")),))
        record(run, 4, [odd])
        mine = client(run)
        answer = mine.get("/api/runs/one/episodes/4/0")
        assert answer.headers["content-type"] == "application/json"
        one = answer.json()
        assert one["reward"] is None
        assert "<script>" in one["actions"][0]["text"]
        assert len(one["actions"][0]["text"]) < 210_000
        assert asked(mine, "runs/one/episodes", q="<script>")["total"] == 1
        assert found(mine, sort="reward", step=4) == [(4, 0)]

    def test_a_damaged_record_of_credit_leaves_the_episode_readable(self, run: Path) -> None:
        (run / "credit").mkdir()
        (run / "credit" / "step_000001.parquet").write_bytes(b"PAR1")
        mine = client(run)
        assert asked(mine, "runs/one/episodes/1/0")["actions"][0]["advantage"] is None
        assert mine.get("/api/runs/one/credit?step=1").status_code == 422


class TestTheCache:
    def test_an_index_is_kept_outside_of_the_run_and_made_anew_for_another_file(
        self, run: Path, tmp_path: Path
    ) -> None:
        before = sorted(run.rglob("*"))
        path, cache = run / "episodes" / "step_000001.parquet", IndexCache(tmp_path / "cache")
        first = cache.load_index(path, FileVersion.from_stat(path.stat()))
        assert cache.load_index(path, FileVersion.from_stat(path.stat())).equals(first)
        assert first.equals(build_index(path))
        kept = next((tmp_path / "cache").glob("*/step_000001.arrow"))
        kept.write_bytes(kept.read_bytes()[:100])
        assert cache.load_index(path, FileVersion.from_stat(path.stat())).equals(first)
        write_episodes(path, [attempt(1, 0)])
        assert len(cache.load_index(path, FileVersion.from_stat(path.stat()))) == 1
        assert sorted(run.rglob("*")) == before
        cache.prune()
        assert kept.exists()
        shutil.rmtree(run)
        cache.prune()
        assert not kept.exists()

    def test_where_nothing_can_be_kept_it_is_made_each_time(self, run: Path, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        path = run / "episodes" / "step_000001.parquet"
        assert len(IndexCache(tmp_path / "file").load_index(path, FileVersion.from_stat(path.stat()))) == 4
