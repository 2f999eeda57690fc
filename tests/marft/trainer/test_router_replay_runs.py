"""Records of experts reach the learner: through segments, workers, other processes, buffers and a resumed run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from transformers import PreTrainedTokenizerBase

from marft.agents.agents import Agent
from marft.agents.generation import ActionBuilder, ResponsePrefix, _ToolTurn
from marft.common.token_data import RoutedExperts
from marft.common.types import Action, ActionKey, AgentProfile, Completion, Prompt
from marft.config import RunSettings
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.micro_batch import replayed_experts, scored_tokens
from tests.episodes import make_action
from tests.helpers import settings
from tests.marft.trainer.test_ranks_runs import assert_same, trained
from tests.mixtures import loaded, mixture

AHEAD = ("--engine.kind", "process", "--rollout.max_policy_lag", "1", "--rollout.reuse", "2")
EXPERTS = {"rank": 4, "target_modules": ["q_proj"], "target_parameters": ["experts.gate_up_proj"]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, tiny_tokenizer: PreTrainedTokenizerBase) -> Path:
    return mixture("Qwen 3 with experts", tmp_path_factory.mktemp("mixture"), tiny_tokenizer)


def run_of(folder: Path, output: Path, *overrides: str, steps: int = 3, replay: bool = True) -> RunSettings:
    policies = {role: {"model": "base", "lora": EXPERTS} for role in ("reasoner", "actor")}
    models = {"base": {"path": str(folder), "router_replay": replay}}
    return settings(folder, output, "--training.steps", str(steps), *overrides, models=models, policies=policies)


def differences(folder: RunFolder) -> list[float]:
    return [row["log_prob_difference"] for row in folder.read_metrics()]


class Rotated:
    """Records of experts that no router selected: the learner's log-probs show whether it uses them."""

    @staticmethod
    def from_table(table: npt.NDArray[np.integer[Any]]) -> RoutedExperts:
        return RoutedExperts.from_table((table + 1) % 8)


@pytest.mark.slow
def test_the_learner_routes_as_the_sampler_did(folder: Path, tmp_path: Path) -> None:
    mine, _ = trained(run_of(folder, tmp_path, steps=2))
    assert max(differences(mine)) < 1e-5
    for file in sorted((mine.path / "episodes").glob("*.parquet")):
        for episode in read_episodes(file):
            for action in episode.actions:
                (record,) = action.experts
                table = record.table(len(action.prompt) + len(action.tokens) - 1)
                assert len(record.flat) == table.size
                assert 0 <= table.min() <= table.max() < 8


@pytest.fixture
def rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("decoding", "subprocess_engine.engine"):
        monkeypatch.setattr(f"marft.inference.{module}.RoutedExperts", Rotated)


@pytest.mark.slow
@pytest.mark.usefixtures("rotated")
def test_records_reach_the_learner_and_a_resumed_run_is_as_if_it_had_never_stopped(
    folder: Path, tmp_path: Path
) -> None:
    options = ("--rollout.workers", "2")
    whole, _ = trained(run_of(folder, tmp_path / "whole"))
    assert min(differences(whole)) > 0.05
    trained(run_of(folder, tmp_path / "resumed", *options), stop=2)
    resumed, _ = trained(run_of(folder, tmp_path / "resumed", *options), resume=True)
    assert_same(resumed, whole, 3)


@pytest.mark.slow
@pytest.mark.usefixtures("rotated")
def test_episodes_that_wait_or_are_learned_from_again_keep_their_records(folder: Path, tmp_path: Path) -> None:
    """The engine samples in a process of its own while the run learns; the run stops, and goes on."""
    trained(run_of(folder, tmp_path, *AHEAD), stop=2)
    resumed, _ = trained(run_of(folder, tmp_path, *AHEAD), resume=True)
    assert len(differences(resumed)) == 3
    assert min(differences(resumed)) > 0.05


@pytest.mark.slow
def test_the_engine_in_a_process_of_its_own_reports_experts(folder: Path, tmp_path: Path) -> None:
    here, _ = trained(run_of(folder, tmp_path / "here", steps=2))
    there, _ = trained(run_of(folder, tmp_path / "there", "--engine.kind", "process", steps=2))
    for mine, other in zip(*(sorted((run.path / "episodes").glob("*")) for run in (here, there)), strict=True):
        for first, second in zip(read_episodes(mine), read_episodes(other), strict=True):
            for action, same in zip(first.actions, second.actions, strict=True):
                assert np.array_equal(action.experts[0].flat, same.experts[0].flat)


def completion(count: int, size: int, value: int) -> Completion:
    """Of ``count`` tokens, with a record of ``size`` tokens."""
    record = RoutedExperts.from_table(np.full((size, 1, 2), value))
    return Completion(np.full(count, 9, np.int32), np.zeros(count, np.float32), "", "stop", experts=record)


def built() -> Action:
    """Two turns with a tool between them, then a chat that was rendered again, and a turn."""
    builder = ActionBuilder(Prompt(np.arange(4, dtype=np.int32)), ResponsePrefix())
    builder.add_completion(completion(3, 4 + 2, 1))
    builder.add_tool_turn(_ToolTurn([], np.arange(2, dtype=np.int32)))
    builder.add_completion(completion(2, 4 + 3 + 2 + 1, 2))
    builder.add_tool_turn(_ToolTurn([], np.arange(5, dtype=np.int32), "its template drops thoughts"))
    builder.add_completion(completion(2, 5 + 1, 3))
    return builder.build_action(ActionKey("", "", 0, 0, "a", 0), Agent(AgentProfile("a"), "a"), "stop")


def test_the_record_of_a_token_is_that_of_the_turn_that_sampled_it() -> None:
    """A later turn reads earlier ones again, perhaps with other experts; only new tokens take its record."""
    first, second = (record.flat.reshape(-1, 2)[:, 0].tolist() for record in built().experts)
    assert first == [1] * 6 + [2] * 4
    assert second == [3] * 6
    assert [segment.row_length for segment in scored_tokens(built())] == [10, 6]


def test_missing_records_leave_the_selection_to_the_router_and_are_reported_once(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    backbone = loaded(folder)
    record = RoutedExperts.from_table(np.ones((3, 2, 2)))
    known, unknown = make_action(), make_action()
    object.__setattr__(known, "experts", (record,))
    for _ in range(2):
        segments = [segment for action in (known, unknown) for segment in scored_tokens(action)]
        tables = replayed_experts(segments, backbone)
    assert [table[:, 0, 0].tolist() for table in tables] == [[1, 1, 1, -1], [-1] * 4]
    assert [entry.message for entry in caplog.records if "no record of experts" in entry.message] != []
    assert len(caplog.records) == 1
    assert replayed_experts(segments, loaded(folder, router_replay=False)) == []
