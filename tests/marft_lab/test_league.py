"""Past versions of the learner as opponents: who is drawn, who joins and leaves, ratings, and going on to the bit."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marft.agents.game import Attempt
from marft.common.seeds import generator
from marft.common.types import Episode, Observation, Task, Transition
from marft.config.load import parse_recipe
from marft.config.models import pool_slot_names
from marft.config.run import RunSettings
from marft.rollout.rollout_batch import RolloutBatch
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.runs.state import State
from marft.trainer.train import train
from marft_lab.league.pool import OpponentPool, PoolMember, expected_score, find_redundant
from marft_lab.league.rollout_source import OpponentPoolSource, match_score
from tests.episodes import make_action
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
            "rival": {"model": "base", "train": "frozen", "pool": {"policy": "player", "size": 3, "every": 1}},
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


MEMBERS = """\
[
    {
      "slot": "rival",
      "step": 0,
      "rating": 0.0,
      "won": 0.0,
      "played": 0.0
    }
  ]"""
LATER = '    {"slot": "rival@4", "step": 1, "rating": 0.0, "won": 0.0, "played": 0.0}\n'
WRITTEN = f"""\
{{
  "rating": 0.0,
  "members": {MEMBERS}
}}
"""


class TestPool:
    @given(steps=st.lists(st.integers(1, 9), min_size=1, max_size=30), size=st.integers(2, 6))
    def test_the_untuned_version_and_the_newest_are_always_there_and_no_slot_is_used_twice(
        self, steps: list[int], size: int
    ) -> None:
        slots, now = pool_slot_names("rival", size), 0
        pool = OpponentPool((PoolMember("rival", 0),))
        for step in steps:
            now += step
            pool = pool.add_member(slots, now)
            assert pool.members[0] == PoolMember("rival", 0)
            assert pool.members[-1].step == now
            assert len({member.slot for member in pool.members}) == len(pool.members) <= size
            assert [m.step for m in pool.members] == sorted(m.step for m in pool.members)

    def test_a_pool_of_one_is_the_untuned_version(self) -> None:
        pool = OpponentPool((PoolMember("rival", 0),))
        assert pool.add_member(pool_slot_names("rival", 1), 5) == pool

    def test_who_leaves_is_whose_neighbours_are_nearest(self) -> None:
        assert find_redundant([0, 10, 12, 14, 30]) == 2
        pool = OpponentPool(tuple(PoolMember(f"s{step}", step) for step in (0, 10, 12, 14, 30)))
        joined = pool.add_member([f"s{step}" for step in (0, 10, 12, 14, 30)], 40)
        assert [member.step for member in joined.members] == [0, 10, 14, 30, 40]
        assert joined.members[-1].slot == "s12"

        assert find_redundant([0, 1, 10, 20]) == 1
        assert find_redundant([0, 1, 10, 11]) == 1, "the first of those that are missed as little"
        assert find_redundant([0, 10, 20, 21]) == 2

    def test_the_latest_is_always_the_newest(self) -> None:
        pool = OpponentPool((PoolMember("a", 0), PoolMember("b", 3), PoolMember("c", 6)))
        assert {pool.sample_opponent(u, "latest", 1.0).slot for u in (0.0, 0.5, 0.999)} == {"c"}

    def test_uniform_draws_give_each_version_the_same_share(self) -> None:
        pool = OpponentPool((PoolMember("a", 0), PoolMember("b", 3), PoolMember("c", 6)))
        drawn = [pool.sample_opponent(u, "uniform", 2.0).slot for u in (0.0, 0.3, 0.35, 0.65, 0.7, 0.999)]
        assert drawn == ["a", "a", "b", "b", "c", "c"]
        ten = OpponentPool(
            tuple(PoolMember(str(step), step) for step in range(10))
        )  # whose shares sum to a little below 1
        assert ten.sample_opponent(float(np.nextafter(1.0, 0.0)), "uniform", 2.0).slot == "9"

    def test_the_hardest_is_whom_the_learner_beats_least(self) -> None:
        members = [PoolMember("a", 0, won=3.0, played=4.0), PoolMember("b", 3, won=1.0, played=4.0), PoolMember("c", 6)]
        assert OpponentPool(tuple(members)).hardest_opponent.slot == "b"

    def test_prioritised_draws_follow_the_share_of_matches_not_won(self) -> None:
        pool = OpponentPool((PoolMember("a", 0, won=9.5, played=10.0), PoolMember("b", 3, won=4.5, played=9.0)))
        rates = [10 / 11, 0.5]
        expected = np.array([(1 - rate) ** 2 for rate in rates])
        assert pool.sampling_probabilities("prioritized", 2.0) == pytest.approx(expected / expected.sum())
        assert pool.sampling_probabilities("prioritized", 1e9).tolist() == [
            float(share == max(expected)) for share in expected
        ]
        uniforms = np.linspace(0, 1, 1000, endpoint=False)
        share = np.mean([pool.sample_opponent(u, "prioritized", 2.0).slot == "a" for u in uniforms])
        assert share == pytest.approx(expected[0] / expected.sum(), abs=2e-3)
        assert pool.sampling_probabilities("uniform", 2.0).tolist() == [0.5, 0.5]
        assert [pool.sample_opponent(u, "uniform", 2.0).slot for u in (0.0, 0.499, 0.5, 0.999)] == ["a", "a", "b", "b"]

    def test_a_rating_moves_by_what_was_not_expected(self) -> None:
        pool = OpponentPool((PoolMember("a", 0), PoolMember("b", 3, rating=100.0)), rating=50.0)
        moved = pool.with_results({"a": [1.0, 1.0], "b": [0.5]}).rating - 50.0
        surprise = [1 - expected_score(50, 0)] * 2 + [0.5 - expected_score(50, 100)]
        assert moved == pytest.approx(64.0 * sum(surprise) / 3)
        assert pool.with_results({}).rating == 50.0

    def test_earlier_matches_count_less_with_every_step(self) -> None:
        pool = OpponentPool((PoolMember("a", 0),)).with_results({"a": [1.0, 0.0, 1.0]}).with_results({"a": [1.0]})
        assert pool.members[0].won == pytest.approx(0.9 * 2 + 1)
        assert pool.members[0].played == pytest.approx(0.9 * 3 + 1)

    def test_a_run_that_goes_back_forgets_later_versions(self) -> None:
        pool = OpponentPool((PoolMember("a", 0), PoolMember("b", 3), PoolMember("c", 6)))
        assert [member.step for member in pool.truncate(4).members] == [0, 3]
        assert pool.truncate(3) == pool.truncate(4)

    def test_a_match_scores_by_its_sign(self) -> None:
        assert [match_score(reward) for reward in (1.0, 0.5, 0.0, -0.5)] == [1.0, 1.0, 0.5, 0.0]


@dataclass
class Weights:
    """Stand for those of models: a text for each policy."""

    held: dict[str, str] = field(default_factory=lambda: {"player": "untuned", "rival": "untuned"})

    def copy_adapter(self, source: str, target: str) -> None:
        self.held[target] = self.held[source]

    def save_policy(self, policy: str, folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").write_text(self.held[policy])

    def load_policy(self, policy: str, folder: Path) -> None:
        self.held[policy] = (folder / "weights").read_text()


@dataclass
class Matches:
    """Plays one turn of north and of south in every attempt, which earns the learner what ``earns`` says."""

    run: RunSettings
    earns: Callable[[str, Attempt], float | None] = lambda slot, attempt: 1.0  # None: it failed
    models: Weights = field(default_factory=Weights)
    published: list[dict[str, int]] = field(default_factory=list)
    used: Counter[str] = field(default_factory=Counter)
    excluded_tasks: dict[str, str] = field(default_factory=dict)
    silent: bool = False  # the game is over before south has a turn

    def publish_versions(self, versions: Mapping[str, int]) -> None:
        self.published.append(dict(versions))

    def usage(self) -> dict[str, float]:
        return dict(self.used)

    def play(self, attempts: Sequence[Attempt], on_done: Callable[[Episode], None]) -> list[Episode]:
        self.used["sampled"] += 10
        played = [self._episode(attempt) for attempt in attempts]
        for episode in played:
            on_done(episode)
        return played

    def _episode(self, attempt: Attempt) -> Episode:
        slot = attempt.policies["south"]
        learner = attempt.policies.get("north", "player")
        actions = (make_action("north", policy=learner), make_action("south", policy=slot, index=1))
        earned = self.earns(slot, attempt)
        return Episode(
            attempt.task, attempt.stream, attempt.sample, actions[:1] if self.silent else actions,
            "failed" if earned is None else "terminated", (Transition(Observation("o"), earned or 0.0),),
        )  # fmt: skip


TASKS = [Task(f"t{n}", "o") for n in range(4)]


def against(matches: Matches, folder: Path | None = None) -> OpponentPoolSource:
    return OpponentPoolSource(matches, TASKS, folder)  # type: ignore[arg-type]


def gathered(pool: OpponentPoolSource, step: int = 0) -> RolloutBatch:
    return pool.collect(State(step=step), lambda episode: None)


class TestGathering:
    def test_it_begins_with_the_untuned_version_and_what_it_becomes_joins(self, tmp_path: Path) -> None:
        matches = Matches(league(tmp_path, "--policies.rival.pool.every", "2", "--policies.rival.pool.size", "3"))
        pool = against(matches)
        assert (pool.pool, matches.published) == (OpponentPool((PoolMember("rival", 0),)), [{"rival": 0}])
        assert pool.pool.rating == 0.0
        for step in range(1, 8):
            matches.models.held["player"] = f"step {step}"
            pool.on_publish(State(step=step))
        assert matches.published == [{"rival": 0}, {"rival@1": 2}, {"rival@2": 4}, {"rival@1": 6}]
        assert matches.models.held == {
            "player": "step 7", "rival": "untuned", "rival@1": "step 6", "rival@2": "step 4",
        }  # fmt: skip
        assert [member.step for member in pool.pool.members] == [0, 4, 6]
        pool.on_rollback(State(step=5))
        assert [member.step for member in pool.pool.members] == [0, 4]

    def test_nobody_joins_a_pool_of_one(self, tmp_path: Path) -> None:
        matches = Matches(league(tmp_path, "--policies.rival.pool.size", "1"))
        against(matches).on_publish(State(step=1))
        assert matches.published == [{"rival": 0}]
        assert matches.models.held == {"player": "untuned", "rival": "untuned"}

    def test_all_attempts_at_a_task_are_played_against_a_version_that_its_name_draws(self, tmp_path: Path) -> None:
        matches = Matches(league(tmp_path, "--rollout.tasks_per_step", "8"))
        pool = against(matches)
        pool.on_publish(State(step=1))
        found = gathered(pool, step=1)
        assert [len(episode.actions) for episode in found.episodes] == [2] * 16
        for episode in found.episodes:
            north, south = episode.actions
            uniform = generator(matches.run.seed, "league", episode.stream, episode.task.id).random()
            assert (north.policy, south.policy) == ("player", "rival" if uniform < 0.5 else "rival@1")
        assert {episode.actions[1].policy for episode in found.episodes} == {"rival", "rival@1"}

    def test_versions_that_are_beaten_are_hardly_drawn_where_those_are_prioritised(self, tmp_path: Path) -> None:
        hard = "--policies.rival.pool.selection", "prioritized", "--policies.rival.pool.power", "60"
        pool = against(Matches(league(tmp_path, "--rollout.tasks_per_step", "8", *hard)))
        gathered(pool)  # all of them are won
        pool.on_publish(State(step=1))
        assert {episode.actions[1].policy for episode in gathered(pool, step=1).episodes} == {"rival@1"}

    def test_what_is_played_moves_the_ratings_and_is_measured(self, tmp_path: Path) -> None:
        def earns(slot: str, attempt: Attempt) -> float | None:
            return {"t0": None, "t1": 0.0}.get(attempt.task.id, -2.0)

        pool = against(Matches(league(tmp_path), earns))
        pool.on_publish(State(step=1))
        joined = pool.pool
        found = gathered(pool)
        scored = [episode for episode in found.episodes if episode.is_scored]
        assert len(scored) == 6
        scores: dict[str, list[float]] = {}
        for episode in scored:
            scores.setdefault(episode.actions[1].policy, []).append(0.5 if episode.task.id == "t1" else 0.0)
        assert pool.pool == joined.with_results(scores)
        rates = [member.win_rate for member in pool.pool.members]
        assert rates[0] != rates[1]
        assert found.metrics == {
            "league/rating": pool.pool.rating, "league/members": 2.0, "league/win_rate": sum(rates) / 2,
            "league/hardest_win_rate": min(rates), "league/hardest_step": float(rates[1] < rates[0]),
        }  # fmt: skip
        assert pool.pool.rating < 0

    def test_a_game_that_ends_before_the_opponents_turn_is_no_match(self, tmp_path: Path) -> None:
        pool = against(Matches(league(tmp_path), silent=True))
        gathered(pool)
        assert pool.pool == OpponentPool((PoolMember("rival", 0),))

    def test_a_steps_use_is_what_was_used_since_it_began(self, tmp_path: Path) -> None:
        matches = Matches(league(tmp_path))
        pool = against(matches)
        for step in (0, 1):
            gathered(pool, step)
            matches.used["scored"] += step
            assert pool.latest_batch_usage() == {"sampled": 10.0, "scored": float(step)}
        assert pool.usage_seconds(2.5) == 2.5

    def test_the_pass_over_the_tasks_goes_on_with_the_run(self, tmp_path: Path) -> None:
        matches, seen = Matches(league(tmp_path, "--rollout.tasks_per_step", "2")), list[Episode]()
        pool = against(matches)
        first = pool.collect(State(step=0), seen.append)
        second = pool.collect(State(step=1, tasks_drawn=first.tasks_drawn), seen.append)
        assert [*first.episodes, *second.episodes] == seen
        assert (first.tasks_drawn, second.tasks_drawn) == (2, 4)
        assert {episode.task.id for episode in seen} == {"t0", "t1", "t2", "t3"}
        assert {episode.stream for episode in second.episodes} == {"train/1"}

    def test_a_pool_is_written_and_read_with_weights_and_ratings(self, tmp_path: Path) -> None:
        matches = Matches(league(tmp_path))
        pool = against(matches)
        for step in (1, 2):
            matches.models.held["player"] = f"step {step}"
            gathered(pool, step)
            pool.on_publish(State(step=step))
        pool.save(tmp_path)
        files = sorted(file.relative_to(tmp_path).as_posix() for file in tmp_path.rglob("*") if file.is_file())
        assert files == ["league/league.json", "league/step_000001/weights", "league/step_000002/weights"]
        again = Matches(matches.run)
        assert against(again, tmp_path).pool == pool.pool
        assert again.models.held == {
            "player": "untuned",
            **{k: v for k, v in matches.models.held.items() if k != "player"},
        }
        assert again.published == [{"rival": 0, "rival@1": 1, "rival@2": 2}]

    def test_what_is_written_of_a_pool(self, tmp_path: Path) -> None:
        against(Matches(league(tmp_path))).save(tmp_path)
        assert (tmp_path / "league" / "league.json").read_text() == WRITTEN

    @pytest.mark.parametrize(
        ("before", "after", "says"),
        [
            ('"rating": 0.0,\n  "mem', '"mem', "cannot be read: rating: Field required; start a new run with --init-from"),
            ('{\n  "rating"', '{"a": 1, "rating"', "cannot be read: a: .*; start a new run with --init-from"),
            ('"slot"', '"a": 1, "slot"', "cannot be read: members.0.a: .*; start a new run with --init-from"),
            ("}", "", "cannot be read: "),
            ('"rival"', '"rival@3"', r"another size or name \(rival@3\); go on with policies.rival as it was"),
            ("    }\n  ]", "    },\n" + LATER + "  ]", r"another size or name \(rival@4\); go on with"),
            ('"rival"', '"rival@1"', r"another size or name \(none\); go on with"),
            (MEMBERS, "[]", r"another size or name \(none\); go on with"),
        ],
    )  # fmt: skip
    def test_a_pool_that_cannot_be_gone_on_with_is_refused(
        self, before: str, after: str, says: str, tmp_path: Path
    ) -> None:
        (tmp_path / "league").mkdir()
        assert before in WRITTEN
        (tmp_path / "league" / "league.json").write_text(WRITTEN.replace(before, after))
        with pytest.raises(ValueError, match=f"league.json .*{says}"):
            against(Matches(league(tmp_path)), tmp_path)

    def test_a_checkpoint_without_a_pool_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"league.json cannot be read: .*No such file"):
            against(Matches(league(tmp_path)), tmp_path)


class TestRecipe:
    @pytest.mark.parametrize(
        ("overrides", "says"),
        [
            (["--policies.rival.pool.policy", "plyer"], "did you mean 'player'"),
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
