"""Teams of other frameworks, as the examples have them: they train, learn, and sample what the same team does natively."""

from __future__ import annotations

import importlib.util
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from marft.common.types import Episode
from marft.config import load_recipe
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder
from marft.trainer.train import train
from tests.marft_serve.test_gateway_parity import compare, trained
from tests.nights import NIGHT, some
from tests.sources import ROOT

EXAMPLES = ROOT / "examples"
PACKAGES = {"langgraph": "langgraph", "openai_agents": "agents", "pydantic_ai": "pydantic_ai"}
SMALL = "--device", "cpu", "--threads", "1"
pytestmark = pytest.mark.slow


def needs(example: str) -> None:
    if importlib.util.find_spec(PACKAGES[example]) is None:
        pytest.skip("needs the frameworks: pip install 'marft[frameworks]'")


def run_of(example: str, output: Path, *changes: str) -> list[list[Episode]]:
    """The episodes of each step."""
    run = load_recipe(EXAMPLES / example / "recipe.toml", ["--output", str(output), *SMALL, *changes])
    folder = RunFolder.create(run)
    train(run, folder)
    return [list(read_episodes(step)) for step in folder.recorded_steps()]


@pytest.mark.skipif(not NIGHT, reason="a tenth of a minute: make nightly")
def test_a_graph_of_langgraph_gives_the_tokens_and_losses_of_the_chain(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needs("langgraph")
    monkeypatch.syspath_prepend(str(EXAMPLES / "langgraph"))
    graph = "{ organization = 'program', call = 'langgraph_team:solve' }"
    compare(trained(tmp_path / "native", 5), trained(tmp_path / "graph", 5, "--team", graph), 5)


@pytest.mark.parametrize("example", some(PACKAGES))
def test_every_example_trains(example: str, tmp_path: Path) -> None:
    needs(example)
    small = "--training.steps", "2", "--rollout.tasks_per_step", "4", "--rollout.samples_per_task", "4"
    played = [episode for step in run_of(example, tmp_path, *small) for episode in step]
    assert [episode.error for episode in played if episode.status != "terminated"] == []
    actions = [action for episode in played for action in episode.actions]
    assert {action.agent for action in actions} == {"triage", "calculator"}
    called = Counter(call.name for action in actions for call in action.calls)
    assert called["multiply"], called
    assert any(episode.success for episode in played)


@pytest.mark.skipif(not NIGHT, reason="a minute of learning: make nightly")
@pytest.mark.parametrize("example", ["openai_agents", "langgraph"])
def test_a_team_learns_to_hand_over_and_to_call(example: str, tmp_path: Path) -> None:
    needs(example)
    steps = run_of(example, tmp_path, "--training.steps", "6", "--algorithm.optimizer.learning_rate", "5e-3")
    solved = [np.mean([bool(episode.success) for episode in step]) for step in steps]
    assert np.mean(solved[-2:]) > np.mean(solved[:2]) + 0.05, solved
