"""What a plan is asked: lengths that a model can have, sizes that can be read, runs that were recorded."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from marft.cli.main import app
from marft.common.types import Action, Episode, Fork, Observation, Task, Transition
from marft.config import RunSettings, load_recipe, parse_recipe
from marft.config.helpers import without_helpers
from marft.config.models import ModelSettings
from marft.models.device_specs import find_device_spec
from marft.models.model_sizes import find_sizes
from marft.runs.run_folder import RunFolder
from marft_lab.cli.planning import run_plan
from marft_lab.planning.plan import PlanRequest, make_plan
from marft_lab.planning.workload import (
    MAX_CONTEXT,
    KnownLengths,
    RecordedLengths,
    compute_workload,
    mean_lengths,
    read_recorded_lengths,
)
from tests.episodes import make_action
from tests.helpers import settings
from tests.marft_lab.test_consulting_runs import helped

CONFIG = {
    "model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
    "num_attention_heads": 4, "vocab_size": 100, "max_position_embeddings": 600,
}  # fmt: skip


def math(*overrides: str) -> RunSettings:
    return load_recipe("math_dual", ["--models.base.path", "Qwen/Qwen2.5-3B-Instruct", *overrides])


def planned(run: RunSettings, known: KnownLengths, **more: Any) -> Any:
    return make_plan(run, PlanRequest(1, find_device_spec("h100"), known, **more))


class TestLengths:
    @pytest.mark.parametrize(
        ("known", "said"),
        [
            (KnownLengths(action=100_000_000), r"0 tokens of a prompt and 100,000,000 of an action"),
            (KnownLengths(prompt=2000, action=100), r"2,000 tokens of a prompt and 100 of an action"),
            (KnownLengths(prompt=2000), r"2,000 tokens of a prompt and 512 of an action"),
            (KnownLengths(action=100, longest=3000), r"\(the longest 3,000\)"),
        ],
    )
    def test_those_that_the_model_does_not_read_are_refused(self, known: KnownLengths, said: str) -> None:
        with pytest.raises(
            ValueError, match=said + r".* more than models.base.context_length = 2,048; give fewer, or raise"
        ):
            planned(math(), known)

    def test_the_model_s_own_context_holds_where_the_recipe_has_none(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps(CONFIG), encoding="utf-8")
        run = math("--models.base.context_length", "0")
        with pytest.raises(ValueError, match=r"more than the 600 that models\.base reads; give fewer$"):
            planned(run, KnownLengths(action=601), model_config=tmp_path)
        assert (
            planned(run, KnownLengths(prompt=90, action=510), model_config=tmp_path)
            .workload.policies[0]
            .lengths.row_tokens
            == 600
        )
        assert planned(run, KnownLengths(prompt=90, action=9000)).fits  # of a known name it is not known
        with pytest.raises(ValueError, match=f"more than the {MAX_CONTEXT:,} that"):
            planned(run, KnownLengths(action=MAX_CONTEXT + 1))

    def test_an_average_beyond_the_longest_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"--max-action-tokens 100: actions have 500 tokens on average"):
            planned(math(), KnownLengths(action=500, longest=100))

    def test_prompts_leave_room_for_actions_longer_than_the_recipe_s_limit(self) -> None:
        assert planned(math(), KnownLengths(action=600)).workload.policies[0].lengths.prompt == 2048 - 600
        assert planned(math(), KnownLengths(action=100)).workload.policies[0].lengths.prompt == 2048 - 512

    def test_a_policy_s_limit_is_that_of_its_agent_that_may_write_most(self) -> None:
        table = math("--agents.actor.sampling.max_new_tokens", "900").model_dump(mode="json", exclude_none=True)
        table["agents"][1]["policy"] = "reasoner"
        del table["policies"]["actor"]
        assert compute_workload(parse_recipe(table)).policies[0].lengths.longest == 900

    @pytest.mark.parametrize("option", ["--prompt-tokens", "--action-tokens", "--max-action-tokens"])
    @pytest.mark.parametrize("value", ["0", "nan", "inf"])
    def test_what_is_no_length_is_refused(self, option: str, value: str) -> None:
        done = CliRunner().invoke(app, ["plan", "math_dual", option, value])
        assert done.exit_code != 0
        shown = done.output + str(done.exception)
        assert option in shown


class TestSizes:
    def test_a_file_that_is_not_there_is_named_once_with_what_to_give(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"^--model-config: there is no \S+nofile; give a model's config\.json"):
            find_sizes("base", ModelSettings(path="x/y"), tmp_path / "nofile")
        with pytest.raises(ValueError, match=r"^--model-config: there is no \S+/config\.json;"):
            find_sizes("base", ModelSettings(path="x/y"), tmp_path)

    def test_one_that_cannot_be_read_is_named_with_the_cause_alone(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def refused(self: Path, **_: object) -> str:
            raise PermissionError(13, "Permission denied", str(self))

        file = tmp_path / "config.json"
        file.write_text("{}")
        monkeypatch.setattr(Path, "read_text", refused)
        with pytest.raises(ValueError, match=rf"^--model-config: cannot read {file}: Permission denied; give one"):
            find_sizes("base", ModelSettings(path="x/y"), file)

    def test_the_hub_s_cache_is_asked_for_the_recipe_s_revision(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        file = tmp_path / "config.json"
        file.write_text(json.dumps(CONFIG), encoding="utf-8")
        asked: list[Any] = []

        def look(name: str, config: str, revision: str) -> str:
            asked.append((name, config, revision))
            return str(file)

        monkeypatch.setattr("huggingface_hub.try_to_load_from_cache", look)
        assert find_sizes("base", ModelSettings(path="some/model", revision="v2")).layers == 2
        assert asked == [("some/model", "config.json", "v2")]


def acted(agent: str, started: float, ended: float, tokens: int = 2) -> Action:
    return replace(make_action(agent, tokens=(8,) * tokens), started=started, ended=ended)


def episode(*actions: Action, seconds: float = 10.0, steps: int = 2, fork: Fork | None = None) -> Episode:
    there = (Transition(Observation("o"), 0.0),) * steps
    return Episode(Task("t", "o"), "train/0", 0, actions, "terminated", there, seconds=seconds, fork=fork)


class TestRuns:
    def test_what_is_no_agent_s_time_is_the_environment_s(self) -> None:
        """Agents that act at once are waited for once: of 10 seconds they take 1 to 5 and 7 to 8, in two steps."""
        one = episode(acted("a", 1, 4), acted("b", 2, 5, tokens=6), acted("a", 7, 8))
        found = mean_lengths([one, episode(acted("a", 0, 10), steps=1)], "a run")
        assert found.environment_seconds == pytest.approx(((10 - 4 - 1) / 2 + 0) / 2)
        known = found.lengths
        assert (known.prompt, known.action, known.longest, known.environment_steps) == (3, (2 + 6 + 2 + 2) / 4, 6, 1.5)
        assert known.actions == {"a": 1.5, "b": 0.5}

    def test_the_newest_steps_are_read_and_no_forks(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        files: list[str] = []

        def read(file: Path) -> Sequence[Episode]:
            files.append(file.stem)
            forked = episode(acted("a", 0, 1, tokens=99), fork=Fork("x", "y"))
            return [episode(acted("a", 0, 1)), forked, episode()]

        monkeypatch.setattr("marft_lab.planning.workload.read_episodes", read)
        folder = RunFolder.create(settings("tiny", tmp_path))
        assert read_recorded_lengths(folder) is None
        folder.episodes.mkdir(exist_ok=True)
        for step in range(1, 6):
            (folder.episodes / f"step_{step:06}.parquet").touch()
        found = read_recorded_lengths(folder)
        assert files == ["step_000003", "step_000004", "step_000005"]
        assert found is not None
        assert (found.lengths.longest, found.lengths.actions) == (2, {"a": 1.0})

    def test_what_is_given_takes_the_place_of_what_was_recorded(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        known = KnownLengths(300.0, 40.0, 50.0, 2.0, {"reasoner": 2.0, "actor": 4.0}, "the run")
        monkeypatch.setattr("marft_lab.cli.planning.read_recorded_lengths", lambda _: RecordedLengths(known, 3.0))
        folder = RunFolder.create(settings("tiny", tmp_path, "--rollout.max_steps", "9"))

        def said(given: KnownLengths, seconds: float | None = None) -> dict[str, Any]:
            run_plan(folder.path, [], PlanRequest(1, find_device_spec("h100"), given, seconds), "json")
            made = json.loads(capsys.readouterr().out)
            first = made["policies"][0]
            waits = sum(phase["seconds"] for phase in made["best"]["phases"] if phase["name"] == "environment")
            lengths = [first[name] for name in ("prompt_tokens", "action_tokens", "longest_action")]
            return {"lengths": lengths, "actions": [p["actions"] for p in made["policies"]], "waits": waits}

        assert said(KnownLengths()) == {"lengths": [300, 40, 50], "actions": [8, 16], "waits": 6}
        assert said(KnownLengths(prompt=200, longest=60))["lengths"] == [200, 40, 60]
        assert said(KnownLengths(action=70))["lengths"] == [300, 70, 70]
        assert said(KnownLengths(environment_steps=3)) == {"lengths": [300, 40, 50], "actions": [12, 24], "waits": 9}
        assert said(KnownLengths(), 0.5)["waits"] == 1


def test_what_is_imagined_is_sampled_and_takes_no_environment() -> None:
    run = settings("tiny", "runs", "--training.steps", "9", dyna={"share": 0.75}, algorithm={"name": "grpo"})
    alone, work = compute_workload(run.model_copy(update={"dyna": None})), compute_workload(run)
    assert work.episodes == alone.episodes
    assert [one.actions for one in work.policies] == [4 * one.actions for one in alone.policies]


def test_what_helpers_answer_is_sampled_too(tmp_path: Path) -> None:
    """Two kinds are asked alike: of 1.5 questions an action, half are the helper's of one kind."""
    sampling = {"max_new_tokens": 40}
    kinds = {
        "knowledge": {"policy": "helper", "sampling": sampling},
        "verify": {"policy": "actor", "sampling": sampling},
    }
    changes = {"consulting.helpers": kinds, "consulting.budget": 1.5, "policies.actor.train": "frozen"}
    run = helped(tmp_path, **changes)
    work = {policy.name: policy for policy in compute_workload(run).policies}
    alone = {policy.name: policy for policy in compute_workload(without_helpers(run)).policies}
    asking = alone["reasoner"].actions
    assert work["reasoner"].actions == asking
    assert work["helper"].actions == asking * 1.5 / 2
    assert work["actor"].actions == alone["actor"].actions + asking * 1.5 / 2
    assert work["helper"].lengths.longest == 40
    assert "helper" not in alone
