"""What is written of an export's weights: bases as others find them, adapters in them, and what nobody needs left out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from marft.cli.evaluation import EvaluationOptions
from marft.cli.evaluation import evaluate as evaluate_targets
from marft.config.models import ModelSettings
from marft.config.run import RunSettings
from marft.models.adapter_files import WEIGHTS_FILE
from marft.models.policy_registry import PolicyRegistry
from marft.runs.export.exporter import export_run
from marft.runs.export.manifest import ModelEntry, PolicyEntry
from marft.runs.export.recipe import ExportRecipe
from marft.runs.export.weights import WeightExporter
from marft.runs.run_folder import RunFolder
from tests.helpers import settings
from tests.runs import contents


def weights(run: RunSettings, draft: Path, **table: Any) -> WeightExporter:
    record: Any = SimpleNamespace(models={"models.base": "d1"}, path=draft / "checkpoint")
    return WeightExporter(
        run, record, ExportRecipe({"models": {"base": {"path": "?", "revision": "main"}}, **table}), draft
    )


def test_a_base_of_the_hub_is_named_by_the_commit_that_was_loaded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marft.runs.export.weights.load_config", lambda _: SimpleNamespace(_commit_hash="c0ffee"))
    it = weights(settings(), tmp_path)
    it._export_model(
        "base", ModelSettings(path="org/model", revision="v1", template_options={"enable_thinking": False})
    )
    assert it.models["base"] == ModelEntry(
        path="org/model", commit="c0ffee", digest="d1", template_options={"enable_thinking": False}
    )
    assert it.export.table["models"]["base"]["revision"] == "c0ffee"
    assert (it.export.paths, contents(tmp_path)) == ([], {})


def test_a_base_in_a_folder_goes_along_without_code_and_pickles(tmp_path: Path) -> None:
    data = ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
    (tmp_path / "base").mkdir()
    for name in (*data, "modeling.py", "pytorch_model.bin", "training_args.pt", "optimizer.pt", ".env", "notes.txt"):
        (tmp_path / "base" / name).write_text("{}")
    it = weights(settings(), tmp_path / "draft")
    it._export_model("base", ModelSettings(path=str(tmp_path / "base"), template_options={"enable_thinking": False}))
    assert it.models["base"] == ModelEntry(path="models/base", digest="d1", template_options={"enable_thinking": False})
    assert it.export.table["models"]["base"] == {"path": "models/base"}
    assert it.export.paths == ["models.base.path"]
    assert set(contents(tmp_path / "draft")) == {f"models/base/{name}" for name in data}


def test_a_merged_model_has_its_bases_type_and_the_recipes_chat_template(tmp_path: Path, random_model: Path) -> None:
    base, template = tmp_path / "base", tmp_path / "mine.jinja"
    template.write_text("{{ messages[0].content }}!")
    model: Any = AutoModelForCausalLM.from_pretrained(random_model, dtype=torch.bfloat16)
    model.save_pretrained(base)
    AutoTokenizer.from_pretrained(random_model).save_pretrained(base)
    torch.manual_seed(0)
    lora = LoraConfig(r=2, lora_alpha=6, target_modules=["q_proj"], init_lora_weights=False)
    get_peft_model(model.float(), lora).save_pretrained(str(tmp_path / "policies" / "actor"))
    run = settings(base, tmp_path, "--models.base.chat_template", str(template))
    entry = PolicyEntry(kind="adapter", model="base", path="policies/actor")
    weights(run, tmp_path)._merge(entry, tmp_path / "merged")
    merged, before = (load_file(folder / "model.safetensors") for folder in (tmp_path / "merged", base))
    assert {tensor.dtype for tensor in merged.values()} == {torch.bfloat16}
    change = load_file(tmp_path / "policies" / "actor" / WEIGHTS_FILE)
    for name, tensor in before.items():
        expected = tensor.double()
        if name.endswith("q_proj.weight"):
            a, b = (change[f"base_model.model.{name[:-7]}.lora_{part}.weight"].double() for part in "AB")
            expected = expected + 6 / 2 * b @ a
            assert not torch.equal(merged[name], tensor)
        torch.testing.assert_close(merged[name].double(), expected, rtol=2**-8, atol=1e-6)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").chat_template == template.read_text()


def test_bases_that_nobody_is_on_or_reads_with_are_left_out(tmp_path: Path) -> None:
    local = ("first", "reads", "on", "spare")
    far = {"far": {"path": "m", "endpoint": {"local_model": "reads"}}, "other": {"path": "m", "endpoint": {"url": "x"}}}
    models = {**{name: {"path": f"models/{name}"} for name in local}, **far}
    policies = {name: {"model": name} for name in ("far", "other", "on")}
    it = weights(settings(), tmp_path, models=models, policies=policies)
    it.models = {name: ModelEntry(path=str(table["path"])) for name, table in models.items()}
    it.export.paths = [f"models.{name}.path" for name in local]
    for name in local:
        (tmp_path / "models" / name).mkdir(parents=True)
    it._drop_unused()
    kept = {"reads", "first", "on"}
    assert set(it.models) == set(it.export.table["models"]) == {*kept, "far", "other"}
    assert set(it.export.paths) == {f"models.{name}.path" for name in kept}
    assert {folder.name for folder in (tmp_path / "models").iterdir()} == kept


@pytest.mark.slow
def test_on_another_base_it_is_neither_evaluated_nor_served(
    trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("prometheus_client", reason="needs a server: pip install 'marft[serve]'")
    from marft_serve.serving.options import ServeOptions
    from marft_serve.serving.server import run_server
    from marft_serve.serving.settings import load_served_team

    path = export_run(trained, "last", tmp_path / "team")
    monkeypatch.setattr(PolicyRegistry, "compute_digests", lambda _: {"models.base": "0" * 64})
    with pytest.raises(ValueError, match=r"is not what the team of .* learned on"):
        evaluate_targets([path], [], EvaluationOptions(mode="greedy", tasks=1))
    with pytest.raises(ValueError, match=r"is not what the team of .* learned on"):
        run_server(load_served_team(path, "best"), ServeOptions(port=0), lambda *_: pytest.fail("it is served"))
