"""What the learner knew of a step's actions is written beside its episodes, and agrees with what it measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from marft.common.types import ActionCredit, Task
from marft.config.interfaces.schedule import Progress
from marft.runs.credit_files import MAX_FLOAT16, read_advantages, read_credit, read_groups, write_credit
from marft.trainer import non_finite_guard
from marft.trainer.recording import record_credit
from tests.episodes import make_action
from tests.learners import ROLES, begun, episodes, recipe
from tests.runs import contents, finished

START = Progress(0, 0)
CREDITS = {  # an algorithm, and the groups of episode "t #0"'s two actions
    "grpo": ["t", "t"],
    "agent-grpo": ["t reasoner", "t actor"],
    "magrpo": ["t step 0", "t step 0"],
    "reinforce++": ["batch", "batch"],
    "marft": ["", ""],
}


def learned(tmp_path: Path, name: str, *overrides: str) -> tuple[list[ActionCredit], dict[str, float]]:
    told: list[ActionCredit] = []
    return told, begun(recipe(tmp_path, name, *overrides)).learn(episodes(), START, told.extend)


@pytest.mark.parametrize("name", CREDITS)
def test_groups_are_called_by_their_keys(tmp_path: Path, name: str) -> None:
    told, metrics = learned(tmp_path, name, "--algorithm.epochs", "1")
    assert [row.group for row in told[:2]] == CREDITS[name]
    groups = {row.group for row in told} - {""}
    assert float(len(groups)) == metrics.get("groups", 0.0)


@pytest.mark.parametrize(("name", "level"), [("marft", "action"), ("grpo", "token")])
def test_what_is_told_of_actions_adds_up_to_what_is_measured(tmp_path: Path, name: str, level: str) -> None:
    """Over two minibatches, the second of which is scored after the first has moved the policies."""
    told, metrics = learned(
        tmp_path, name, "--algorithm.level", level, "--algorithm.minibatches", "2", "--algorithm.epochs", "1"
    )
    pushed = sum(row.gradient_size or 0.0 for row in told)
    for role in ROLES:
        mine = [row for row in told if row.action.agent == role]
        entropy, off, raw = (
            _flat(getattr(row, name) for row in mine) for name in ("entropy", "log_prob_diff", "raw_advantages")
        )
        assert np.isclose(entropy.mean(), metrics[f"agents/{role}/entropy"], rtol=1e-6)
        assert np.isclose(np.abs(off).mean(), metrics[f"agents/{role}/log_prob_difference"], rtol=1e-5)
        assert np.isclose(np.abs(off).max(), metrics[f"agents/{role}/log_prob_difference_max"], rtol=1e-5)
        assert np.isclose(np.mean(raw == 0.0), metrics[f"agents/{role}/zero_advantage_fraction"])
        share = sum(row.gradient_size or 0.0 for row in mine) / pushed
        assert np.isclose(share, metrics[f"agents/{role}/gradient_share"], rtol=1e-6)
    advantages = _flat(row.advantages for row in told)
    if name == "marft":  # which normalises over the batch, and whose critic has a value of each decision
        assert np.isclose(advantages.mean(), 0.0, atol=1e-9)
        assert np.isclose(advantages.std(ddof=1), 1.0, atol=1e-6)
        assert np.isclose(_flat(row.values for row in told).mean(), metrics["critic/value"])
    else:
        assert all(row.values is None for row in told)


def test_nothing_is_scored_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.helpers import lengths_read

    read = []
    for told in (None, list[ActionCredit]()):
        mine = begun(recipe(tmp_path, "grpo"))
        lengths = lengths_read(mine.packing.backbones["actor"])
        mine.learn(episodes(4), START, *([told.extend] if told is not None else []))
        read.append(lengths)
    assert read[0] == read[1]


def test_while_the_critic_warms_up_advantages_are_given_to_no_objective(tmp_path: Path) -> None:
    told, _ = learned(tmp_path, "marft", "--algorithm.critic.warmup_steps", "1")
    assert all(row.advantages is None and row.entropy is None and row.gradient_size is None for row in told)
    assert all(len(row.raw_advantages) == 1 and row.values is not None for row in told)


def test_of_a_step_that_was_undone_nothing_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, told = begun(recipe(tmp_path, "grpo")), list[ActionCredit]()
    careful = non_finite_guard.NonFiniteGuard(mine)
    monkeypatch.setattr(non_finite_guard, "find_non_finite", lambda _: ["policies.actor"])
    assert careful.learn(episodes(2), START, told.extend)["reverted_steps"] == 1.0
    assert not told
    path = tmp_path / "step_000001.parquet"
    path.touch()  # of the same step, before the run was stopped
    assert record_credit(path, told) == {}
    assert not path.exists()


class TestTheFile:
    def test_it_gives_back_what_was_written_in_half_precision(self, tmp_path: Path) -> None:
        told, _ = learned(tmp_path, "grpo")
        path = tmp_path / "credit" / "step_000001.parquet"
        assert write_credit(path, told) == path.stat().st_size
        first = told[0].episode
        back = read_credit(path, first.stream, first.task.id, first.sample)
        assert list(back) == [action.id for action in first.actions]
        for row in told[:2]:
            mine = back[row.action.id]
            for name, values in (
                ("advantage", row.advantages),
                ("raw_advantage", row.raw_advantages),
                ("entropy", row.entropy),
            ):
                assert np.allclose(np.array(mine[name], np.float64), values, rtol=2**-10), name
            assert mine["value"] is None
        assert read_groups(path) == {"t": [("train/0", "t", sample) for sample in range(12)]}
        flat = read_advantages(path)
        assert {role: len(values) for role, values in flat.items()} == {
            role: sum(len(row.advantages) for row in told if row.action.agent == role and row.advantages is not None)
            for role in ROLES
        }

    def test_what_halves_cannot_hold_is_the_largest_of_them(self, tmp_path: Path) -> None:
        action, (episode, *_) = make_action(tokens=(1, 2, 3)), episodes(1)
        row = ActionCredit(episode, action, "", np.array([1e9, -1e9, np.nan]), None, None, None, None, None)
        write_credit(tmp_path / "a.parquet", [row])
        (back,) = read_credit(tmp_path / "a.parquet", episode.stream, "t", 0).values()
        assert [float(value) for value in back["raw_advantage"][:2]] == [MAX_FLOAT16, -MAX_FLOAT16]
        assert np.isnan(back["raw_advantage"][2])
        assert back["advantage"] is None

    def test_each_episode_has_its_own_whatever_it_shares_with_others(self, tmp_path: Path) -> None:
        (one, *_) = episodes(1)
        keys = [("train/0", "t", 0), ("train/1", "t", 0), ("train/0", "u", 0), ("train/0", "t", 1)]
        told = [
            ActionCredit(
                replace(one, stream=stream, task=Task(task, "?"), sample=sample), one.actions[0], "g" if n else "",
                *(np.array([8.0 * n + column]) for column in range(5)), n + 0.5,
            )
            for n, (stream, task, sample) in enumerate(keys)
        ]  # fmt: skip
        write_credit(tmp_path / "a.parquet", told)
        for n, key in enumerate(keys):
            (row,) = read_credit(tmp_path / "a.parquet", *key).values()
            columns = ("raw_advantage", "advantage", "value", "entropy", "difference")
            assert [row[name] for name in columns] == [[8.0 * n + column] for column in range(5)]
            assert row["gradient"] == n + 0.5
        assert read_credit(tmp_path / "a.parquet", "train/1", "u", 1) == {}
        assert read_groups(tmp_path / "a.parquet") == {"g": keys[1:]}, "who was compared with nobody is in no group"

    def test_a_damaged_page_is_refused(self, tmp_path: Path) -> None:
        path, (one, *_) = tmp_path / "a.parquet", episodes(1)
        write_credit(path, [ActionCredit(one, a, "g", *[np.arange(9.0)] * 5, 0.5) for a in one.actions])
        whole, rows = path.read_bytes(), pq.ParquetFile(path).metadata.row_group(0)
        for number in range(rows.num_columns):
            column = rows.column(number)
            if column.path_in_schema.partition(".")[0] in ("stream", "task", "sample", "action", "gradient", "entropy"):
                first = column.dictionary_page_offset or column.data_page_offset
                last = first + column.total_compressed_size - 1
                path.write_bytes(whole[:last] + bytes([whole[last] ^ 0x10]) + whole[last + 1 :])
                with pytest.raises(ValueError, match=r"a\.parquet"):
                    read_credit(path, one.stream, "t", 0)

    def test_one_with_columns_of_other_types_is_refused(self, tmp_path: Path) -> None:
        table = pq.read_table(_some(tmp_path))
        pq.write_table(table.set_column(2, "sample", [["0"]]), tmp_path / "other.parquet")
        with pytest.raises(ValueError, match="holds no credit of this version"):
            read_credit(tmp_path / "other.parquet", "train/0", "t", 0)

    @pytest.mark.parametrize("content", [b"", b"PAR1 no Parquet", None])
    def test_a_damaged_or_foreign_one_is_refused_by_name(self, tmp_path: Path, content: bytes | None) -> None:
        path = tmp_path / "a.parquet"
        if content is None:
            table = pq.read_table(_some(tmp_path))
            pq.write_table(table.rename_columns([f"x{name}" for name in table.column_names]), path)
        else:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=r"a\.parquet"):
            read_groups(path)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, list[dict[str, Any]]]]:
    found = {}
    for name in ("true", "false"):
        output = tmp_path_factory.mktemp(name)
        _, folder = finished(output, "--training.record_credit", name)
        found[name] = folder.path, folder.read_metrics()
    return found


@pytest.mark.slow
class TestARun:
    def test_it_lies_beside_the_episodes_and_its_size_is_a_metric(self, runs: Any) -> None:
        path, rows = runs["true"]
        files = sorted((path / "credit").iterdir())
        assert [file.name for file in files] == [file.name for file in sorted((path / "episodes").iterdir())]
        assert [row["credit_bytes"] for row in rows] == [file.stat().st_size for file in files]

    def test_turned_off_there_is_none_and_the_run_learns_the_same_to_the_bit(self, runs: Any) -> None:
        (on, _), (off, rows) = runs["true"], runs["false"]
        assert not (off / "credit").exists()
        assert "credit_bytes" not in rows[0]
        weights = [
            {name: content for name, content in contents(path).items() if name.endswith(".safetensors")}
            for path in (on, off)
        ]
        assert weights[0] == weights[1]
        assert weights[0]


def _flat(rows: Iterator[Any]) -> np.ndarray:
    return np.concatenate([row for row in rows if row is not None])


def _some(tmp_path: Path) -> Path:
    (episode, *_) = episodes(1)
    row = ActionCredit(episode, episode.actions[0], "g", np.zeros(1), None, None, None, None, None)
    write_credit(tmp_path / "some.parquet", [row])
    return tmp_path / "some.parquet"
