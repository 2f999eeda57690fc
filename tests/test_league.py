"""Past versions of the learner as opponents: who is drawn, who joins and leaves, ratings, and going on to the bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.config.load import parse_recipe
from marft.config.pools import slots_of
from marft.config.run import RunSettings
from marft.league.elo import expected_score
from marft.league.gathering import score
from marft.league.pool import Member, Pool, superfluous
from marft.runs.episodes import read_episodes
from marft.runs.folder import RunFolder
from marft.training import train
from tests.nights import BY_NIGHT


def league(output: Path, *overrides: str, **changes: Any) -> RunSettings:
    agent = {"answers": True, "instructions": "Win.", "sampling": {"max_new_tokens": 8}}
    table = {
        "name": "league",
        "output": str(output),
        "device": "cpu",
        "threads": 1,
        "models": {"base": {"path": "tiny"}},
        "policies": {
            "player": {"model": "base"},
            "rival": {"model": "base", "train": "frozen", "pool": {"of": "player", "size": 3, "every": 1}},
        },
        "agents": [{"role": "north", "policy": "player", **agent}, {"role": "south", "policy": "rival", **agent}],
        "team": {"organization": "turns"},
        "environment": {"name": "textarena", "opponent": "pool"},
        "algorithm": {"name": "grpo", "optimizer": {"learning_rate": 1e-2, "warmup_steps": 0}},
        "rollout": {"tasks_per_step": 4, "samples_per_task": 2},
        "training": {"steps": 4},
        "checkpoints": {"every": 1, "keep_last": 9},
        "sinks": [],
    }
    return parse_recipe({**table, **changes}, overrides)


class TestPool:
    @given(steps=st.lists(st.integers(1, 9), min_size=1, max_size=30), size=st.integers(2, 6))
    def test_the_untuned_version_and_the_newest_are_always_there_and_no_slot_is_used_twice(
        self, steps: list[int], size: int
    ) -> None:
        slots, now = slots_of("rival", size), 0
        pool = Pool((Member("rival", 0),))
        for step in steps:
            now += step
            pool = pool.joined(slots, now)
            assert pool.members[0] == Member("rival", 0)
            assert pool.members[-1].step == now
            assert len({member.slot for member in pool.members}) == len(pool.members) <= size
            assert [m.step for m in pool.members] == sorted(m.step for m in pool.members)

    def test_a_pool_of_one_is_the_untuned_version(self) -> None:
        pool = Pool((Member("rival", 0),))
        assert pool.joined(slots_of("rival", 1), 5) == pool

    def test_who_leaves_is_whose_neighbours_are_nearest(self) -> None:
        assert superfluous([0, 10, 12, 14, 30]) == 2
        pool = Pool(tuple(Member(f"s{step}", step) for step in (0, 10, 12, 14, 30)))
        joined = pool.joined([f"s{step}" for step in (0, 10, 12, 14, 30)], 40)
        assert [member.step for member in joined.members] == [0, 10, 14, 30, 40]
        assert joined.members[-1].slot == "s12"

    def test_the_latest_is_always_the_newest(self) -> None:
        pool = Pool((Member("a", 0), Member("b", 3)))
        assert {pool.drawn(u, "latest", 1.0).slot for u in (0.0, 0.5, 0.999)} == {"b"}

    def test_prioritised_draws_follow_the_share_of_matches_not_won(self) -> None:
        pool = Pool((Member("a", 0, won=9.5, played=10.0), Member("b", 3, won=4.5, played=9.0)))
        rates = [10 / 11, 0.5]
        expected = np.array([(1 - rate) ** 2 for rate in rates])
        assert pool.chances("prioritised", 2.0) == pytest.approx(expected / expected.sum())
        assert pool.chances("prioritised", 1e9).tolist() == [float(share == max(expected)) for share in expected]
        uniforms = np.linspace(0, 1, 1000, endpoint=False)
        share = np.mean([pool.drawn(u, "prioritised", 2.0).slot == "a" for u in uniforms])
        assert share == pytest.approx(expected[0] / expected.sum(), abs=2e-3)
        assert pool.chances("uniform", 2.0).tolist() == [0.5, 0.5]
        assert [pool.drawn(u, "uniform", 2.0).slot for u in (0.0, 0.499, 0.5, 0.999)] == ["a", "a", "b", "b"]

    def test_a_rating_moves_by_what_was_not_expected(self) -> None:
        pool = Pool((Member("a", 0), Member("b", 3, rating=100.0)), rating=50.0)
        moved = pool.with_results({"a": [1.0, 1.0], "b": [0.5]}).rating - 50.0
        surprise = [1 - expected_score(50, 0)] * 2 + [0.5 - expected_score(50, 100)]
        assert moved == pytest.approx(64.0 * sum(surprise) / 3)
        assert pool.with_results({}).rating == 50.0

    def test_earlier_matches_count_less_with_every_step(self) -> None:
        pool = Pool((Member("a", 0),)).with_results({"a": [1.0, 0.0]}).with_results({"a": [1.0]})
        assert pool.members[0].won == pytest.approx(0.9 + 1)
        assert pool.members[0].played == pytest.approx(1.8 + 1)

    def test_a_run_that_goes_back_forgets_later_versions(self) -> None:
        pool = Pool((Member("a", 0), Member("b", 3), Member("c", 6)))
        assert [member.step for member in pool.until(4).members] == [0, 3]
        assert pool.until(3) == pool.until(4)

    def test_a_match_scores_by_its_sign(self) -> None:
        assert [score(reward) for reward in (1.0, 0.5, 0.0, -0.5)] == [1.0, 1.0, 0.5, 0.0]


class TestRecipe:
    @pytest.mark.parametrize(
        ("overrides", "says"),
        [
            (["--policies.rival.pool.of", "plyer"], "did you mean 'player'"),
            (["--policies.player.train", "full"], "is not trained as an adapter"),
            (["--policies.rival.adapter", "x"], "a pool begins with what 'player' begins with"),
            (["--environment.opponent", "frozen", "--rollout.max_policy_lag", "1"], "set max_policy_lag = 0"),
            (["--algorithm.credit", "{ name = 'counterfactual' }"], "plays episodes again"),
            (["--environment.opponent", "self"], "nobody would play against its versions"),
            (["--training.ranks", "2"], "training.ranks = 1"),
            (["--policies.rival", "{ model = 'base', train = 'frozen' }"], "needs past versions to play against"),
        ],
    )
    def test_what_a_pool_cannot_mean_is_refused(self, tmp_path: Path, overrides: list[str], says: str) -> None:
        with pytest.raises(ValueError, match=says):
            league(tmp_path, *overrides)

    def test_every_version_is_loaded_and_only_one_is_named(self, tmp_path: Path) -> None:
        run = league(tmp_path)
        assert set(run.loaded_policies) == {"player", "rival", "rival@1", "rival@2"}
        assert run.trained_policies == ("player",)
        assert run.loaded_policies["rival@1"].lora == run.policies["player"].lora


@pytest.mark.slow
@BY_NIGHT
def test_a_league_that_goes_on_equals_one_that_never_stopped(tmp_path: Path) -> None:
    whole, cut = RunFolder(tmp_path / "whole"), RunFolder(tmp_path / "cut")
    four = ("--policies.rival.pool.size", "4")  # so that a version from before the run was cut is there at its end
    train(league(tmp_path, "--name", "whole", *four), whole)
    train(league(tmp_path, "--name", "cut", "--training.steps", "2", *four), cut)
    train(league(tmp_path, "--name", "cut", *four), cut, resume=True)
    mine, theirs = (folder.checkpoints / "step_000004" for folder in (whole, cut))
    files = sorted(file.relative_to(mine).as_posix() for file in mine.rglob("*.safetensors"))
    assert sum(file.startswith("league/") for file in files) == 3
    for file in (*files, "league/league.json"):
        assert (mine / file).read_bytes() == (theirs / file).read_bytes(), file
    for step in ("step_000002", "step_000003"):  # a version is what the learner was then
        then = whole.checkpoints / step / "policies" / "player" / "adapter_model.safetensors"
        assert then.read_bytes() == (mine / "league" / step / "adapter_model.safetensors").read_bytes()
    _tasks_are_played_against_versions_of_the_pool(whole)


def _tasks_are_played_against_versions_of_the_pool(folder: RunFolder) -> None:
    seen: dict[str, set[int]] = {}
    for step in (1, 2, 3, 4):
        by_task: dict[str, set[str]] = {}
        for episode in read_episodes(folder.episodes / f"step_{step:06d}.parquet"):
            for action in episode.actions:
                if action.agent == "south":
                    by_task.setdefault(episode.task.id, set()).add(action.policy)
                    seen.setdefault(action.policy, set()).add(action.versions.lowest)
        assert {len(policies) for policies in by_task.values()} == {1}  # all attempts at a task against one version
    assert seen["rival"] == {0}
    assert set().union(*seen.values()) > {0}
    rows = folder.read_metrics()
    assert [row["league/members"] for row in rows] == [1.0, 2.0, 3.0, 4.0]
    written = json.loads((folder.checkpoints / "step_000004" / "league" / "league.json").read_text())
    assert [member["step"] for member in written["members"]] == [0, 2, 3, 4]
    assert written["rating"] == rows[-1]["league/rating"]


def test_nobody_imagines_whom_of_a_pool_it_plays_against(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nobody imagines whom of a pool"):
        league(tmp_path, dyna={"share": 0.5})
