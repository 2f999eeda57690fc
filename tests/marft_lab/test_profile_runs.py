"""Runs whose instructions are learned: what they record, tell, export, and go on with to the bit."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from marft.config.run import RunSettings
from marft.config.team_changes import TeamChange, apply_team_change, describe_team_change
from marft.evaluation.session import load_checkpoint
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.episode_files import read_episodes
from marft.runs.export.exporter import export_run
from marft.runs.run_folder import RunFolder
from marft.runs.state import LINEAGE_ADAPTER, read_learned_prompts, read_record
from marft.trainer.train import train
from marft_lab.prompt_optimization.search import _AgentSearch
from tests.helpers import settings
from tests.marft_lab.test_profiles import TABLE
from tests.runs import contents


def learning(output: Path, *overrides: str) -> RunSettings:
    return settings("tiny", output, *overrides, prompt_optimization=TABLE)


@pytest.fixture(scope="module")
def keeping() -> Iterator[None]:
    """Whatever was tried is kept: models as small as these solve nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_AgentSearch, "_accepts", lambda *_: True)
        yield


@pytest.fixture(scope="module")
def played(keeping: None, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run of two steps with a round after each."""
    run = learning(tmp_path_factory.mktemp("profiles"))
    folder = RunFolder.create(run)
    train(run, folder)
    return folder


@pytest.mark.slow
class TestRuns:
    def test_a_run_records_what_was_tried_and_told(self, played: RunFolder) -> None:
        lineage = LINEAGE_ADAPTER.validate_json((played.path / "profiles.json").read_bytes())
        first, last = (read_record(path).state.prompts for path in played.saved_steps())
        assert first is not None
        assert lineage == last
        assert lineage.rounds == 2
        assert lineage.current_versions() == read_learned_prompts(played.saved_steps()[-1])
        rows = played.read_metrics()
        assert [row["prompt_optimization/proposals"] for row in rows] == [4.0, 4.0]
        assert sum(row["prompt_optimization/tokens"] for row in rows) == lineage.tokens > 0
        for path, current in zip(played.recorded_steps(), ({"reasoner": 0, "actor": 0}, first.current), strict=True):
            for action in (action for episode in read_episodes(path) for action in episode.actions):
                assert action.profile_version == current[action.agent]

    def test_what_was_sampled_after_other_instructions_is_learned_with_them(self, played: RunFolder) -> None:
        with LocalRolloutRunner(learning(played.path)) as rollouts:
            first, last = (read_episodes(path)[0].actions[-1].prompt for path in played.recorded_steps())
            text = [rollouts.decode("actor", prompt) for prompt in (first, last)]
            assert "Act." in text[0]
            assert read_learned_prompts(played.saved_steps()[0])[1].instructions in text[1]
            load_checkpoint(rollouts, played.saved_steps()[-1])
            told = {agent.role: agent.profile.instructions for agent in rollouts.team.agents}
            assert told == {one.role: one.instructions for one in read_learned_prompts(played.saved_steps()[-1])}
            load_checkpoint(rollouts, None)
            assert [agent.profile.instructions for agent in rollouts.team.agents] == ["Reason.", "Act."]

    def test_an_export_says_what_was_learned(self, played: RunFolder, tmp_path: Path) -> None:
        export = export_run(played, "last", tmp_path / "export")
        agents = tomllib.loads((export / "recipe.toml").read_text())["agents"]
        learned = {one.role: one.instructions for one in read_learned_prompts(played.saved_steps()[-1])}
        assert {agent["role"]: agent["instructions"] for agent in agents} == learned

    def test_seats_of_another_team_are_told_what_those_learned_that_they_are_like(
        self, played: RunFolder, tmp_path: Path
    ) -> None:
        seats = [
            {"role": "reasoner"},
            {"role": "second", "like": "reasoner"},
            {"role": "actor", "instructions": "Own."},
        ]
        into, run = TeamChange("more", {"agents": seats}), learning(played.path)
        other = apply_team_change(run, into)
        learned = {one.role: one.instructions for one in read_learned_prompts(played.saved_steps()[-1])}
        wanted = {"reasoner": learned["reasoner"], "second": learned["reasoner"], "actor": "Own."}
        with LocalRolloutRunner(other) as rollouts:
            load_checkpoint(rollouts, played.saved_steps()[-1], describe_team_change(run, other, into)["told"])
            assert {agent.role: agent.profile.instructions for agent in rollouts.team.agents} == wanted
        export = export_run(played, "last", tmp_path / "export", target_team=into)
        agents = tomllib.loads((export / "recipe.toml").read_text())["agents"]
        assert {agent["role"]: agent["instructions"] for agent in agents} == wanted

    def test_it_goes_on_to_the_bit(self, played: RunFolder, tmp_path: Path) -> None:
        half = learning(tmp_path, "--training.steps", "1")
        folder = RunFolder.create(half)
        train(half, folder)
        train(learning(tmp_path), folder, resume=True)
        ours, theirs = (contents(one.path / "checkpoints" / "step_000002") for one in (folder, played))
        weights = [name for name in theirs if name.endswith(".safetensors")]
        assert weights
        assert all(ours[name] == theirs[name] for name in weights)
        assert json.loads(ours["state.json"])["prompts"] == json.loads(theirs["state.json"])["prompts"]
        assert (folder.path / "profiles.json").read_bytes() == (played.path / "profiles.json").read_bytes()
