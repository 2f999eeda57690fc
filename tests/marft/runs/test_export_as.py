"""``marft export --team-file``: trained agents go out as another team than they were trained as."""

from __future__ import annotations

from pathlib import Path

import pytest

import marft
from marft.config.team_changes import read_team_change
from marft.envs.tasks import read_tasks
from marft.evaluation.evaluate import evaluate
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.export.exporter import export_run
from marft.runs.export.manifest import load_export
from marft.runs.export.recipe import load_settings
from marft.runs.run_folder import RunFolder
from tests.marft.evaluation.test_scenarios import command
from tests.nights import BY_NIGHT

LINE = """
[[agents]]
role = "reasoner"

[[agents]]
role = "second"
like = "reasoner"

[[agents]]
role = "actor"

[team]
organization = "graph"
visible = { second = ["reasoner"], actor = ["second"] }
"""
ALONE = '[[agents]]\nrole = "actor"\n'


@pytest.fixture
def line(tmp_path: Path) -> Path:
    (tmp_path / "line.toml").write_text(LINE)
    return tmp_path / "line.toml"


def test_it_plays_what_an_evaluation_as_that_team_plays(
    mine: tuple[object, RunFolder], line: Path, tmp_path: Path
) -> None:
    folder = mine[1]
    path = export_run(folder, "last", tmp_path / "out", target_team=read_team_change(line))
    run = load_settings(load_export(path))
    assert [agent.role for agent in run.agents] == ["reasoner", "second", "actor"]
    assert [agent.policy for agent in run.agents] == ["reasoner", "reasoner", "actor"]
    with LocalRolloutRunner(run) as rollouts:
        episodes = evaluate(rollouts, "export", "greedy", read_tasks(run.environment, "test")[:4])[1]
    (of_run,) = marft.evaluate(folder.path, checkpoints="last", reorganized=line, tasks=4, modes="greedy")
    assert {episode.task.id: episode.total_reward for episode in episodes} == of_run.rewards
    assert {action.agent for episode in episodes for action in episode.actions} == {"reasoner", "second", "actor"}
    said = {agent: measured["action_length"] for agent, measured in of_run.agents.items()}
    lengths = {role: [len(a.tokens) for e in episodes for a in e.actions if a.agent == role] for role in said}
    assert said == {role: pytest.approx(sum(many) / len(many)) for role, many in lengths.items()}


def test_the_manifest_and_the_card_say_what_is_another(
    trained: RunFolder, line: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = export_run(trained, "last", tmp_path / "out", target_team=read_team_change(line))
    manifest = load_export(path).manifest
    assert manifest.reorganized["name"] == "line"
    assert (manifest.reorganized["added"], manifest.reorganized["removed"]) == (["second"], [])
    assert manifest.sees == {}, "nobody has recorded this team"
    assert manifest.evaluations == ()
    assert any("--team-file line.toml" in sentence for sentence in caplog.messages)
    assert (
        "trained as `chain`, and plays as `graph` (`line`); added since: `second`" in (path / "README.md").read_text()
    )


def test_policies_that_nobody_uses_any_more_stay_behind(trained: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "alone.toml").write_text(ALONE)
    path = export_run(trained, "last", tmp_path / "out", target_team=read_team_change(tmp_path / "alone.toml"))
    manifest = load_export(path).manifest
    assert list(manifest.policies) == ["actor"]
    assert manifest.reorganized["removed"] == ["reasoner"]
    assert sorted(file.name for file in (path / "policies").iterdir()) == ["actor"]


@BY_NIGHT
def test_its_figures_are_those_of_the_same_change(
    mine: tuple[object, RunFolder], line: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = mine[1]
    short = ("--checkpoint", "base,last", "--tasks", "3", "--mode", "greedy")
    assert command("eval", folder.path, *short) == 0
    assert command("eval", folder.path, *short, "--team-file", line) == 0
    assert (
        command("export", folder.path, "--checkpoint", "last", "--team-file", line, "--output", tmp_path / "out") == 0
    )
    assert "no evaluation" not in capsys.readouterr().out
    figures = load_export(tmp_path / "out").manifest.evaluations
    assert [one["checkpoint"] for one in figures] == ["base", "step_000002"]
    as_line = [one for one in folder.read_evaluations(scenarios=True) if one.get("reorganized")]
    assert [one["accuracy"] for one in figures] == [one["accuracy"] for one in as_line]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("[team]\norganization = 'chain'\n", "is the team of test as it is"),
        ('[[agents]]\nrole = "stranger"\n', "stranger"),
        ("[tame]\n", "tame is no part of a team"),
    ],
)
def test_a_team_that_is_none_or_the_same_writes_nothing(
    trained: RunFolder, tmp_path: Path, text: str, wanted: str
) -> None:
    (tmp_path / "other.toml").write_text(text)
    with pytest.raises(ValueError, match=wanted):
        export_run(trained, "last", tmp_path / "out", target_team=read_team_change(tmp_path / "other.toml"))
    assert not (tmp_path / "out").exists()
