"""Recorded episodes come back whole, and every algorithm credits them as it would have in training."""

from __future__ import annotations

import io
import json
import math
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from rich.console import Console
from rich.table import Table

from marft.config.algorithm import AlgorithmSettings
from marft.evaluation.replay import Audit, replay
from marft.evaluation.replay_page import (
    action_table,
    agreement_rows,
    audit_rows,
    audit_table,
    pictures_of,
    write_replay,
)
from marft.learning.batching import FixedLogProbs
from marft.learning.learner import Learner
from marft.models.pool import Models
from marft.runs.checkpoints import Checkpoints, load_critic
from marft.runs.episodes import read_episodes, write_episodes
from marft.runs.folder import RunFolder
from marft.training import train
from marft.types import Episode, Task
from tests import references_credit as slow
from tests.helpers import settings
from tests.nights import by_day
from tests.test_credit import batches


def preset(name: str, **changes: Any) -> AlgorithmSettings:
    return AlgorithmSettings.model_validate({"name": name, **changes})


def trained(tmp_path: Path, *overrides: str) -> RunFolder:
    run = settings("tiny", tmp_path, "--rollout.samples_per_task", "3", "--rollout.tasks_per_step", "3", *overrides)
    folder = RunFolder.create(run)
    train(run, folder)
    return folder


@pytest.fixture(scope="module")
def run_folder(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    return trained(tmp_path_factory.mktemp("replayed"), "--training.steps", "3")


def advantages_of(audit: Audit, name: str) -> list[float]:
    opinion = next(opinion for opinion in audit.opinions if opinion.algorithm == name)
    assert all(a is not None for a in opinion.advantages)
    return [float(a.mean()) for a in opinion.advantages if a is not None]


def same(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    if isinstance(a, tuple) and not hasattr(a, "_fields"):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)  # the order of agents counts too
    if hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, f.name), getattr(b, f.name)) for f in fields(a) if f.name != "data")
    return bool(a == b)


@pytest.mark.slow
@given(batch=batches(forks=True))
@examples(max_examples=by_day(30, 60), deadline=None)
def test_episodes_come_back_from_parquet_as_they_were(
    batch: list[Episode], tmp_path_factory: pytest.TempPathFactory
) -> None:
    batch = [
        replace(e, actions=tuple(replace(a, key=a.key._replace(task=e.task.id)) for a in e.actions)) for e in batch
    ]
    path = tmp_path_factory.mktemp("episodes") / "step_000001.parquet"
    write_episodes(path, batch)
    read = read_episodes(path)
    assert len(read) == len(batch)
    assert all(map(same, batch, read))


def test_a_file_that_is_none_of_ours_is_refused(tmp_path: Path) -> None:
    (tmp_path / "step_000001.parquet").write_bytes(b"nothing of the kind")
    with pytest.raises(ValueError, match="cannot read the episodes"):
        read_episodes(tmp_path / "step_000001.parquet")


def test_a_flipped_bit_in_recorded_episodes_is_noticed(tmp_path: Path) -> None:
    said = "".join(map(chr, range(0x100, 0x500)))
    batch = [Episode(Task(f"t{n}", said), "train/0", n, (), "failed", error=said) for n in range(40)]
    path = tmp_path / "step_000001.parquet"
    write_episodes(path, batch)
    whole = path.read_bytes()
    for at in range(4, len(whole) // 2, max(1, len(whole) // 300)):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << at % 8]) + whole[at + 1 :])
        with suppress(ValueError):
            assert [(e.task.id, e.error) for e in read_episodes(path)] == [(e.task.id, e.error) for e in batch]


@pytest.mark.slow
def test_group_credits_are_those_of_the_slow_reference(run_folder: RunFolder) -> None:
    audit = replay(run_folder, [preset("grpo"), preset("rloo"), preset("at-grpo"), preset("agent-grpo")], step=2)
    batch = list(audit.episodes)
    assert len(batch) == 9
    for name, expected in (
        ("grpo", [x for x, e in zip(slow.grpo(batch, True), batch, strict=True) for _ in e.actions]),
        ("rloo", [x for x, e in zip(slow.rloo(batch), batch, strict=True) for _ in e.actions]),
        ("at-grpo", [x for row in slow.tree(batch, True) for x in row]),
        ("agent-grpo", [x for row in slow.agent_group(batch, True) for x in row]),
    ):
        np.testing.assert_allclose(advantages_of(audit, name), expected, atol=1e-6)


@pytest.mark.slow
def test_the_runs_own_critic_judges_where_it_reads_the_same_way(run_folder: RunFolder) -> None:
    own = run_folder.settings()
    audit = replay(run_folder, [own.algorithm, preset("ppo")], step=2)
    learner = Learner(own, Models(own))
    path = Checkpoints(run_folder, own.checkpoints).find("step_000001")
    assert load_critic(path, learner)
    credited = learner.assign_credit(list(audit.episodes), FixedLogProbs())
    assert advantages_of(audit, "marft") == [float(s.advantages.mean()) for s in credited.samples]
    assert [opinion.critic for opinion in audit.opinions] == [
        "the run's, of step_000001", "fitted to 18 recorded episodes"
    ]  # fmt: skip


def test_running_baselines_have_seen_the_steps_before(run_folder: RunFolder) -> None:
    audit = replay(run_folder, [preset("rae")], step=2)
    batches_ = [read_episodes(run_folder.episodes / f"step_00000{step}.parquet") for step in (1, 2)]
    expected = [x for row in slow.rae(batches_, 0.95)[1] for x in row]
    np.testing.assert_allclose(advantages_of(audit, "rae"), expected, atol=1e-9)


def test_shares_and_agreement_add_up(run_folder: RunFolder) -> None:
    audit = replay(run_folder, [preset("marft"), preset("reinforce"), preset("dapo")])
    assert audit.step == 3
    for opinion in audit.opinions:
        shares = list(opinion.gradient_share.values())
        assert all(math.isnan(share) for share in shares) or sum(shares) == pytest.approx(1.0)
    assert set(audit.rank_agreement) == {("marft", "reinforce"), ("marft", "dapo"), ("reinforce", "dapo")}
    assert all(math.isnan(r) or -1.0 <= r <= 1.0 for r in audit.rank_agreement.values())


def test_forks_are_recorded_and_credited_again(tmp_path: Path) -> None:
    folder = trained(
        tmp_path, "--algorithm", "{ name = 'coma', credit = { resamples = 1 } }", "--training.steps", "1",
        "--rollout.samples_per_task", "1",
    )  # fmt: skip
    recorded = read_episodes(folder.episodes / "step_000001.parquet")
    assert sum(episode.fork is not None for episode in recorded) == 2 * 3  # one for each action
    audit = replay(folder, [folder.settings().algorithm, preset("reinforce")])
    assert len(audit.episodes) == 3
    rows = zip(recorded, slow.counterfactual(recorded, True), strict=True)
    expected = [x for episode, row in rows if episode.fork is None for x in row]
    np.testing.assert_allclose(advantages_of(audit, "coma"), expected, atol=1e-9)
    assert not audit.opinions[0].notes


@pytest.mark.slow
def test_the_page_has_a_picture_for_each_episode_shown(run_folder: RunFolder, tmp_path: Path) -> None:
    audit = replay(run_folder, [preset("marft"), preset("ppo"), preset("coma")], step=1)
    pictures = pictures_of(audit, 2)
    assert len({picture.episode.task.id for picture in pictures}) == 2
    write_replay(tmp_path / "replay", "a run", audit, pictures)
    page = (tmp_path / "replay.html").read_text()
    assert page.count("<h3>") == 2
    assert "marft" in page
    assert "rgba(" in page
    table = json.loads((tmp_path / "replay.json").read_text())
    assert [opinion["algorithm"] for opinion in table["algorithms"]] == ["marft", "ppo", "coma"]
    assert len(table["algorithms"][1]["advantages"]) == 2 * len(audit.episodes)
    assert [row[0] for row in audit_rows(audit)] == [row[0] for row in agreement_rows(audit)]


def test_what_was_not_recorded_is_an_error(run_folder: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no episodes of step 9; there are: 1, 2, 3"):
        replay(run_folder, [preset("grpo")], step=9)
    empty = RunFolder.create(settings("tiny", tmp_path))
    with pytest.raises(ValueError, match="has no recorded episodes"):
        replay(empty, [preset("grpo")])


@pytest.mark.slow
def test_a_trees_run_is_judged_on_what_its_policies_made_by_themselves(tmp_path: Path) -> None:
    folder = trained(
        tmp_path, "--algorithm", "{ name = 'at-grpo', credit = { candidates = 2 } }", "--training.steps", "2",
        "--rollout.samples_per_task", "1",
    )  # fmt: skip
    audit = replay(folder, [folder.settings().algorithm, preset("marft"), preset("grpo")])
    assert len(audit.episodes) == 3 * 2  # candidates of the first action: each is an attempt like any other
    own, marft, grpo = audit.opinions
    assert not own.notes
    assert own.metrics["groups"] >= 3
    assert marft.critic == "fitted to 6 recorded episodes"
    assert grpo.metrics["group_size"] == 2


def test_what_models_write_is_shown_and_not_obeyed(run_folder: RunFolder) -> None:
    audit = replay(run_folder, [preset("grpo"), preset("rloo")])
    said = "[/INST] [red]no[/red]\n\x1b[31mred"
    loud = [
        replace(e, actions=tuple(replace(a, text=said) for a in e.actions), task=replace(e.task, id="[b]t"))
        for e in audit.episodes
    ]
    audit = replace(audit, episodes=loud)
    pictures = pictures_of(audit, 99)
    assert len(pictures) == len(audit.episodes)
    wide, narrow = shown(200, action_table(audit, pictures)), shown(60, action_table(audit, pictures))
    assert "[b]t #0" in wide
    assert "[/INST] [red]no[/red] �[31mred" in wide
    assert "\x1b[31mred" not in wide
    assert all(f"{x:+.2f}" in narrow for x in advantages_of(audit, "rloo"))  # numbers never give way
    assert "groups of one" in shown(200, audit_table(audit))


def test_in_a_narrow_terminal_episodes_are_named_and_numbers_whole(run_folder: RunFolder) -> None:
    """Beside long texts their column was once one character wide, and numbers ended in an ellipsis."""
    audit = replay(run_folder, [preset("marft"), preset("grpo"), preset("rloo")])
    long = [replace(e, actions=tuple(replace(a, text="word " * 99) for a in e.actions)) for e in audit.episodes]
    audit = replace(audit, episodes=long)
    narrow = shown(80, action_table(audit, pictures_of(audit, 99)))
    assert all(f"{e.task.id} #{e.sample}" in narrow for e in long)
    assert "(334 more" in narrow
    for name in ("marft", "grpo", "rloo"):
        assert all(f"{x:+.2f}" in narrow for x in advantages_of(audit, name) if not math.isnan(x))


def shown(width: int, table: Table) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(table)
    return console.export_text()
