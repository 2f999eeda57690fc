"""An export is whole or refused, names nothing of its author's machine, and plain peft makes of it what MARFT does."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from peft import LoraConfig

from marft.common.atomic import digest_of_json
from marft.common.types import Episode
from marft.config.bundled import bundled_models
from marft.config.python_objects import check_objects
from marft.envs.tasks import read_tasks
from marft.evaluation.evaluate import evaluate
from marft.models.adapter_files import CONFIG_FILE, read_lora_settings
from marft.rollout.local_runner import LocalRolloutRunner
from marft.runs.checkpoints import CheckpointManager, load_policies
from marft.runs.export.exporter import export_run
from marft.runs.export.manifest import Export, ModelEntry, PolicyEntry, load_export
from marft.runs.export.model_card import _with_llama
from marft.runs.export.recipe import ExportRecipe, check_bases, export_recipe, load_settings
from marft.runs.export.weights import _public_adapter_config, _remove_sampling
from marft.runs.run_folder import RunFolder
from marft.runs.state import CheckpointRecord
from tests.exports import Plain, merged_logits, texts_in, whole
from tests.helpers import write_evaluation
from tests.nights import NIGHT
from tests.runs import contents, finished
from tests.sources import ROOT


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run whose policies have moved, each its own way."""
    rewarded = "--rewards", "[{ name = 'format', pattern = '[0-4] ' }]", "--algorithm.optimizer.learning_rate", "0.02"
    return finished(tmp_path_factory.mktemp("trained"), *rewarded)[1]


@pytest.fixture(scope="module")
def folder(trained: RunFolder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_run(trained, "last", tmp_path_factory.mktemp("exports") / "team", merged=True)


@pytest.fixture(scope="module")
def exported(folder: Path) -> Export:
    return load_export(folder)


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / "team"))


def greedy_episodes(trained: RunFolder, tasks: int) -> list[Episode]:
    """What ``marft eval --mode greedy`` plays, with the run's own checkpoint."""
    run = trained.settings()
    with LocalRolloutRunner(run) as rollouts:
        load_policies(trained.saved_steps()[-1], rollouts.models, dict.fromkeys(run.trained_policies))
        rollouts.publish(0)
        return evaluate(rollouts, "last", "greedy", read_tasks(run.environment, "test")[:tasks])[1]


class TestWhatPeftMakesOfIt:
    def says_the_same(self, trained: RunFolder, exported: Export, tasks: int) -> None:
        plain = Plain(exported)
        told = {agent["role"]: agent["instructions"] for agent in exported.manifest.agents}
        for episode in greedy_episodes(trained, tasks):
            reasoner, actor = episode.actions
            task = episode.task.prompt
            read = {
                "reasoner": plain.ids(told["reasoner"], task),
                "actor": plain.ids(told["actor"], f"{task}\n\nMessage from reasoner:\n{reasoner.text}"),
            }
            for action in (reasoner, actor):
                assert read[action.agent] == action.prompt.tolist()
                assert plain.say(action.policy, read[action.agent], 8) == action.text

    def test_greedy_text_is_that_of_an_evaluation(self, trained: RunFolder, exported: Export) -> None:
        self.says_the_same(trained, exported, 4)

    @pytest.mark.slow
    @pytest.mark.skipif(not NIGHT, reason="the same on a hundred tasks: make nightly")
    def test_also_on_a_hundred_tasks(self, exported: Export, tmp_path: Path, trained: RunFolder) -> None:
        many = shutil.copytree(trained.path, tmp_path / "test")
        recipe = RunFolder(many).config_path
        recipe.write_text(recipe.read_text().replace("held_out_tasks = 16", "held_out_tasks = 200"))
        self.says_the_same(RunFolder(many), exported, 100)

    def test_logits_are_those_of_the_run(self, trained: RunFolder, exported: Export) -> None:
        (episode,) = greedy_episodes(trained, 1)
        plain = Plain(exported)
        for action in episode.actions:
            log_probs = plain.compute_logits(action.policy, whole(action)).log_softmax(-1)
            at = len(action.prompt) - 1
            mine = [log_probs[at + n, token].item() for n, token in enumerate(action.tokens.tolist())]
            assert mine == pytest.approx(action.log_probs.tolist(), abs=1e-5)

    def test_merged_weights_compute_what_the_adapter_does(self, exported: Export) -> None:
        plain = Plain(exported)
        ids = plain.ids("Reason.", "State the final answer: 12 + 34 - 5 =")
        base = merged = plain.compute_logits("reasoner", ids)
        for policy in ("reasoner", "actor"):
            merged = merged_logits(exported, policy, ids)
            assert torch.allclose(merged, plain.compute_logits(policy, ids), atol=1e-4)
        assert not torch.allclose(merged, base, atol=1e-3), "the two policies are two"

    def test_a_merged_model_has_all_that_a_model_has(self, exported: Export) -> None:
        there = {file.name for file in (exported.path / "merged" / "actor").iterdir()}
        assert there >= {
            "config.json", "generation_config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json",
            "chat_template.jinja",
        }  # fmt: skip

    def test_what_its_makers_sample_with_is_left_behind(self, exported: Export, tmp_path: Path) -> None:
        """A penalty on repetition changes greedy text too, in transformers and in vLLM."""
        theirs = {"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0, "do_sample": True, "top_p": 0.8,
                  "temperature": 0.7, "repetition_penalty": 1.5}  # fmt: skip
        (tmp_path / "generation_config.json").write_text(json.dumps(theirs))
        _remove_sampling(tmp_path)
        left = json.loads((tmp_path / "generation_config.json").read_text())
        assert left == {"bos_token_id": 1, "eos_token_id": [2, 3], "pad_token_id": 0}
        for folder in ("models/base", "merged/actor", "merged/reasoner"):
            table = json.loads((exported.path / folder / "generation_config.json").read_text())
            assert table
            assert all(key.endswith("_token_id") for key in table)


class TestTheRecipe:
    def test_it_evaluates_to_what_the_run_does(self, trained: RunFolder, exported: Export) -> None:
        before = greedy_episodes(trained, 4)
        run = load_settings(exported)
        assert run.trained_policies == ()
        with LocalRolloutRunner(run) as rollouts:
            check_bases(exported, rollouts.models.compute_digests())
            after = evaluate(rollouts, "export", "greedy", read_tasks(run.environment, "test")[:4])[1]
        assert [whole(a) for e in after for a in e.actions] == [whole(a) for e in before for a in e.actions]

    def test_another_base_is_refused(self, exported: Export) -> None:
        with pytest.raises(ValueError, match=r"models\.base \(models/base\) is not what the team of .* learned on"):
            check_bases(exported, {"models.base": "0" * 64})

    def test_it_can_lie_anywhere(self, copy: Path) -> None:
        moved = copy.rename(copy.parent / "elsewhere")
        assert load_settings(load_export(moved)).models["base"].path == str(moved / "models" / "base")


class TestWhole:
    def test_the_manifest_lists_every_file_but_itself_and_the_card(self, exported: Export) -> None:
        assert {*exported.manifest.files, "team.json", "README.md"} == set(contents(exported.path))

    def test_a_changed_byte_is_seen_in_every_file(self, copy: Path) -> None:
        for name in load_export(copy).manifest.files:
            file, before = copy / name, (copy / name).read_bytes()
            file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
            with pytest.raises(ValueError, match=rf"{name} is damaged: it is not as it was written"):
                load_export(copy)
            file.write_bytes(before)

    @pytest.mark.parametrize(
        "name", ["policies/actor/adapter_model.safetensors", "models/base/config.json", "recipe.toml"]
    )
    def test_one_that_is_cut_short_or_missing_is_named(self, copy: Path, name: str) -> None:
        before = (copy / name).read_bytes()
        (copy / name).write_bytes(before[:-7])
        with pytest.raises(ValueError, match=rf"{name} is damaged: it has [\d,]+ bytes of [\d,]+"):
            load_export(copy)
        (copy / name).unlink()
        with pytest.raises(ValueError, match=f"{name} is missing"):
            load_export(copy)

    def test_weights_that_were_put_there_are_refused_and_notes_are_not(self, copy: Path) -> None:
        (copy / "notes.txt").write_text("mine")
        (copy / "README.md").write_text("another card")
        load_export(copy)
        names = ("code/more.py", "skills/x/SKILL.md", "templates/x.jinja", "merged/actor/x.bin", "models/base/x.bin")
        for name in (*names, "policies/actor/more.safetensors"):
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes(b"")
            with pytest.raises(ValueError, match=f"{name} was not written with it"):
                load_export(copy)
            (copy / name).unlink()

    @pytest.mark.parametrize(
        ("change", "says"),
        [
            ({"name": "other"}, "team.json is damaged"),
            ({"schema_version": 2}, "is of schema 2, and this version of MARFT reads 1"),
            ({"format": "a recipe for soup"}, "team.json is not one that MARFT writes"),
        ],
    )
    def test_a_manifest_that_is_not_as_it_was_written_is_refused(
        self, copy: Path, change: dict[str, object], says: str
    ) -> None:
        table = json.loads((copy / "team.json").read_text())
        (copy / "team.json").write_text(json.dumps({**table, **change}))
        with pytest.raises(ValueError, match=says):
            load_export(copy)

    def test_a_folder_of_something_else_is_none(self, tmp_path: Path, trained: RunFolder) -> None:
        for other in (tmp_path, trained.path, tmp_path / "nothing"):
            with pytest.raises(ValueError, match=r"is no export of a team: it has no team\.json"):
                load_export(other)

    @pytest.mark.parametrize("name", ["../outside", "/etc/hostname"])
    def test_a_manifest_names_no_file_outside(self, copy: Path, name: str) -> None:

        table = json.loads((copy / "team.json").read_text())
        del table["digest"]
        table["files"][name] = {"sha256": "0", "bytes": 0}
        (copy / "team.json").write_text(json.dumps({**table, "digest": digest_of_json(table)}))
        with pytest.raises(ValueError, match="which is no file of an export"):
            load_export(copy)


class TestWriting:
    def test_nothing_but_an_export_is_written_over_and_that_when_asked(self, trained: RunFolder, copy: Path) -> None:
        with pytest.raises(ValueError, match=r"holds an export already; choose --output.*\(--overwrite\)"):
            export_run(trained, "last", copy)
        (copy / "notes.txt").write_text("somebody's")
        with pytest.raises(ValueError, match=r"holds what the export there did not bring: notes\.txt"):
            export_run(trained, "1", copy, overwrite=True)
        (copy / "notes.txt").unlink()
        export_run(trained, "1", copy, overwrite=True)
        assert load_export(copy).manifest.checkpoint.name == "step_000001"
        (copy / "team.json").unlink()
        with pytest.raises(ValueError, match="is no export of MARFT's, and nothing else is written over"):
            export_run(trained, "last", copy, overwrite=True)

    def test_one_that_fails_leaves_what_was_there(
        self, trained: RunFolder, copy: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = contents(copy)
        monkeypatch.setattr("marft.runs.export.exporter.write_manifest", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            export_run(trained, "last", copy, overwrite=True)
        assert contents(copy) == before
        assert [path.name for path in copy.parent.iterdir()] == ["team"]

    def test_a_damaged_checkpoint_is_not_exported(self, mine: tuple[object, RunFolder], tmp_path: Path) -> None:
        weights = mine[1].saved_steps()[-1] / "policies" / "actor" / "adapter_model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-1] + b"?")
        with pytest.raises(ValueError, match=r"policies/actor/adapter_model\.safetensors is damaged"):
            export_run(mine[1], "last", tmp_path / "team")
        assert not (tmp_path / "team").exists()

    def test_what_names_one_all_the_same_is_told_and_not_as_left_out(
        self, trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def names_one(*words: Any) -> ExportRecipe:
            out = export_recipe(*words)
            out.table["agents"][0]["instructions"] = "Look into /tmp/x/rows.csv."
            out.table["team"] |= {"organization": "their_team:Mine"}
            return out

        monkeypatch.setattr("marft.runs.export.exporter.list_local_folders", lambda *_: ["/tmp/x"])
        monkeypatch.setattr("marft.runs.export.exporter.export_recipe", names_one)
        folder = export_run(trained, "last", tmp_path / "team")
        assert caplog.messages[-1].startswith(
            "agents.0.instructions of recipe.toml names /tmp/x, a folder of this machine"
        )
        assert not [sentence for sentence in caplog.messages if "left out" in sentence]
        card = (folder / "README.md").read_text()
        assert "- agents.0.instructions of recipe.toml" in card
        assert "/tmp/x" not in card
        assert "marft serve . --trust-code\nmarft eval . --trust-code" in card

    def test_what_was_given_in_python_is_not_exported(
        self, mine: tuple[object, RunFolder], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def read(_: CheckpointRecord) -> None:
            check_objects({"rewards": [{"name": "function", "call": "given in Python: brevity"}]}, "recipe.toml")

        monkeypatch.setattr(CheckpointRecord, "read_recipe", read)
        with pytest.raises(ValueError, match=r"cannot be exported.*: brevity \(rewards.*my_module:brevity") as told:
            export_run(mine[1], "last", tmp_path / "team")
        assert "load_run" not in str(told.value)
        assert not (tmp_path / "team").exists()

    def test_nothing_names_a_folder_of_the_machine(self, trained: RunFolder, folder: Path) -> None:
        for name, text in texts_in(folder).items():
            if name.rpartition("/")[2] != "tokenizer.json":
                assert str(trained.path.parent) not in text, name
                assert str(ROOT) not in text, name

    def test_neither_optimizer_nor_critic_nor_episodes_go_along(self, exported: Export) -> None:
        assert {name.split("/")[0] for name in exported.manifest.files} == {
            "merged", "models", "policies", "recipe.toml",
        }  # fmt: skip
        assert not [name for name in exported.manifest.files if "optimizer" in name or "critic" in name]

    def test_the_best_is_the_one_that_was_found_best(
        self, trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        names = {"best": "step_000001"}
        monkeypatch.setattr(CheckpointManager, "find", lambda self, name: self.path / names[name])
        assert load_export(export_run(trained, "best", tmp_path / "team")).manifest.checkpoint.step == 1

    @pytest.mark.slow
    def test_a_policy_without_lora_goes_whole_and_a_frozen_one_with_its_adapter(
        self, trained: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        template, adapter = tmp_path / "own.jinja", trained.saved_steps()[-1] / "policies" / "reasoner"
        template.write_text(
            f"{{# of {tmp_path / 'test'} #}}" + (bundled_models()["tiny"] / "chat_template.jinja").read_text()
        )
        run, folder = finished(
            tmp_path, "--models.second", f"{{ path = 'tiny', chat_template = '{template}' }}", "--training.steps", "1",
            "--policies.actor", "{ model = 'second', train = 'full' }",
            "--policies.reasoner", f"{{ model = 'base', train = 'frozen', adapter = '{adapter}' }}",
        )  # fmt: skip
        exported = load_export(export_run(folder, "last", tmp_path / "team"))
        reasoner, actor = (exported.manifest.policies[name] for name in ("reasoner", "actor"))
        assert (actor.kind, actor.path, reasoner.kind) == ("weights", "policies/actor", "adapter")
        assert set(exported.manifest.models) == {"base", "actor"}
        assert not [name for name in exported.manifest.files if "second" in name and not name.startswith("templates")]
        assert any(f"line 1 of templates/second.jinja names {folder.path}" in sentence for sentence in caplog.messages)
        before = greedy_episodes(folder, 2)
        with LocalRolloutRunner(load_settings(exported)) as rollouts:
            after = evaluate(rollouts, "export", "greedy", read_tasks(run.environment, "test")[:2])[1]
        assert [whole(a) for e in after for a in e.actions] == [whole(a) for e in before for a in e.actions]


class TestManifestAndCard:
    def test_the_manifest_says_who_sees_whom_and_how_it_did(
        self, mine: tuple[object, RunFolder], tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        folder = mine[1]
        for checkpoint, accuracy in (("base", 0.25), ("step_000002", 0.75), ("step_000001", 0.5)):
            evaluation = {
                "checkpoint": checkpoint, "mode": "greedy", "split": "test", "shuffled_messages": False, "tasks": 16,
                "failed": 0, "unknown": 0, "accuracy": accuracy, "interval": [accuracy - 0.1, accuracy + 0.1],
                "reward": accuracy, "reward_interval": None, "agents": {}, "outcomes": {}, "rewards": {},
            }  # fmt: skip
            write_evaluation(folder, evaluation, f"{checkpoint}-greedy")
        manifest = load_export(export_run(folder, "last", tmp_path / "team")).manifest
        assert not caplog.records
        assert manifest.sees == {"actor": ("reasoner",), "reasoner": ()}
        assert [one["accuracy"] for one in manifest.evaluations] == [0.25, 0.75]
        card = (tmp_path / "team" / "README.md").read_text()
        assert "| before | greedy | own | 16 | 25.0 % (15.0 to 35.0) | 0.250 |" in card
        assert "| after | greedy | own | 16 | 75.0 % (65.0 to 85.0) | 0.750 |" in card
        header = yaml.safe_load(card.split("---\n")[1])
        assert (header["library_name"], header["pipeline_tag"]) == ("peft", "text-generation")

    def test_the_code_of_the_card_loads_it(self, exported: Export, monkeypatch: pytest.MonkeyPatch) -> None:
        (code,) = re.findall(r"```python\n(.*?)```", (exported.path / "README.md").read_text(), re.DOTALL)
        monkeypatch.chdir(exported.path)
        names: dict[str, Any] = {}
        exec(code, names)
        assert set(names["model"].peft_config) == {"reasoner", "actor"}
        assert names["model"].generation_config.repetition_penalty in (None, 1.0)

    def test_without_an_evaluation_both_say_so(
        self, trained: RunFolder, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        export_run(trained, "last", tmp_path / "team")
        assert "no evaluation of step_000002 is saved" in caplog.messages[0]
        assert "was not evaluated before it was exported" in (tmp_path / "team" / "README.md").read_text()

    def test_an_adapter_names_its_base_as_others_find_it(self, exported: Export, tmp_path: Path) -> None:
        trained = exported.path / "policies" / "actor"
        assert json.loads((trained / CONFIG_FILE).read_text())["base_model_name_or_path"] == "models/base"
        entry = exported.manifest.policies["actor"]
        assert (entry.rank, entry.alpha, set(entry.target_modules)) == (8, 16.0, {"q_proj", "v_proj"})
        LoraConfig(
            r=4, lora_alpha=8, target_modules="all-linear", use_rslora=True, lora_dropout=0.1,
            base_model_name_or_path="/home/me/model",
        ).save_pretrained(str(tmp_path))  # fmt: skip
        shutil.copy(trained / "adapter_model.safetensors", tmp_path)
        table = _public_adapter_config(tmp_path, ModelEntry(path="org/model", commit="c0ffee"))
        assert (table["base_model_name_or_path"], table["revision"]) == ("org/model", "c0ffee")
        assert (table["use_rslora"], table["lora_alpha"], table["lora_dropout"]) == (True, 8, 0.1)
        before = read_lora_settings(tmp_path)
        (tmp_path / CONFIG_FILE).write_text(json.dumps(table))
        assert read_lora_settings(tmp_path) == before


def test_an_exports_settings_can_be_changed(exported: Export) -> None:
    assert load_settings(exported, ["--agents.actor.sampling.temperature", "0"]).agents[1].sampling.temperature == 0


@pytest.mark.parametrize(
    ("commit", "base"), [("", "team/models/base"), ("0" * 40, "base")], ids=["a base in here", "one of the hub"]
)
def test_commands_for_llama_cpp_convert_base_and_adapter(commit: str, base: str) -> None:
    adapters = {"actor": PolicyEntry(kind="adapter", model="base", path="policies/actor")}
    models = {"base": ModelEntry(path="org/name" if commit else "models/base", commit=commit)}
    (text,) = _with_llama(models, "team", adapters, {})
    commands = re.findall(r"```sh\n(.*)\n```", text, re.DOTALL)[0].splitlines()
    assert commands[-3:] == [
        f"python convert_hf_to_gguf.py {base} --outfile base.gguf",
        f"python convert_lora_to_gguf.py --base {base} team/policies/actor --outfile actor.gguf",
        "llama-cli -m base.gguf --lora actor.gguf",
    ]
    assert commands[:-3] == ([f"hf download org/name --revision {commit} --local-dir base"] if commit else [])
