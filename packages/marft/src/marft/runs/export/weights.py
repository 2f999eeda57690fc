"""Weights of an export: PEFT adapters, full models, local base models and merged models."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from transformers import AutoTokenizer, GenerationConfig, PreTrainedTokenizerBase
from transformers.utils.hub import cached_file

from marft.config.bundled import resolve_path
from marft.config.helpers import auxiliary_policies
from marft.config.models import ModelSettings, PolicySettings, local_model, reader_models
from marft.config.run import RunSettings
from marft.models.adapter_files import CONFIG_FILE, WEIGHTS_FILE, read_lora_settings
from marft.models.loader import load_backbone, pick_device, pick_dtype
from marft.models.quantization import replace_by_dequantized
from marft.models.tokenizer_format import load_config
from marft.runs.export.manifest import ModelEntry, PolicyEntry
from marft.runs.export.recipe import MODELS, POLICIES, ExportRecipe
from marft.runs.state import CheckpointRecord

MERGED = "merged"
GENERATION = "generation_config.json"
MODEL_FILES = (
    "config.json",
    GENERATION,
    "model.safetensors.index.json",
    "*.safetensors",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.model",
    "chat_template*",
    "additional_chat_templates/*",
)
WEIGHT_FILES = ("config.json", GENERATION, "*.safetensors", "*.safetensors.index.json")


class WeightExporter:
    """Writer for a checkpoint's weights, with the matching entries for recipe and manifest.

    Args:
        run: recipe saved with the checkpoint.
        staging: unfinished folder of the export.
    """

    def __init__(self, run: RunSettings, record: CheckpointRecord, export: ExportRecipe, staging: Path) -> None:
        self.run, self.record, self.export, self.staging = run, record, export, staging
        self.models: dict[str, ModelEntry] = {}
        self.policies: dict[str, PolicyEntry] = {}

    def write(self, merged: bool) -> None:
        """Write base models, policies and, if requested, base models with merged adapters.

        Raises:
            ValueError: a model or an adapter cannot be read.
        """
        policies = self.export.table["policies"]
        helper_models = {self.run.policies[name].model for name in auxiliary_policies(self.run) if name not in policies}
        own_models = {policy["model"] for policy in policies.values()}
        for name, model in self.run.models.items():
            if name in helper_models - reader_models(self.run.models) - own_models:
                del self.export.table["models"][name]
            else:
                self._export_model(name, model)
        for name in list(policies):
            self.policies[name] = self._export_policy(name, self.run.policies[name])
        self._drop_unused()
        for name, entry in self.policies.items():
            if merged and entry.kind == "adapter":
                target = f"{MERGED}/{name}"
                self._merge(entry, self.staging / target)
                self.policies[name] = entry.model_copy(update={"merged": target})

    def _export_model(self, name: str, model: ModelSettings) -> None:
        """Export a base model: copy a local folder, or name the commit of a Hub model."""
        table, digest = self.export.table["models"][name], self.record.models.get(f"models.{name}", "")
        if model.endpoint is not None:
            self.models[name] = ModelEntry(path=model.path, endpoint=model.endpoint.url)
            return
        folder, path, commit = Path(resolve_path(model.path)), model.path, ""
        if folder.is_dir():
            path = table["path"] = f"{MODELS}/{name}"
            table.pop("revision", None)
            self.export.paths.append(f"models.{name}.path")
            _copy(folder, self.staging / path, MODEL_FILES)
            _remove_sampling(self.staging / path)
        else:
            commit = str(getattr(load_config(model), "_commit_hash", None) or "")
            table["revision"] = commit or model.revision
        options, template = dict(model.template_options), table.get("chat_template") or ""
        self.models[name] = ModelEntry(
            path=path, commit=commit, digest=digest, template_options=options, chat_template=template
        )

    def _export_policy(self, name: str, policy: PolicySettings) -> PolicyEntry:
        path, table = f"{POLICIES}/{name}", self.export.table["policies"]
        trained = self.record.path / POLICIES / name
        if policy.train == "full":
            return self._export_full_model(name, policy, trained)
        table[name] = {"model": policy.model, "train": "frozen"}
        folder = trained if policy.train == "lora" else Path(policy.adapter) if policy.adapter else None
        if folder is None:
            return PolicyEntry(kind="base", model=policy.model)
        lora = read_lora_settings(folder)
        _copy(folder, self.staging / path, (WEIGHTS_FILE,))
        base = self.models[local_model(self.run.models, policy.model)]
        _write_json(self.staging / path / CONFIG_FILE, _public_adapter_config(folder, base))
        table[name]["adapter"] = path
        self.export.paths.append(f"policies.{name}.adapter")
        return PolicyEntry(
            kind="adapter",
            model=policy.model,
            path=path,
            rank=lora.rank,
            alpha=lora.alpha,
            target_modules=lora.target_modules,
        )

    def _export_full_model(self, name: str, policy: PolicySettings, trained: Path) -> PolicyEntry:
        """Export full policy weights to a separate model with the base's tokenizer."""
        path, tables = f"{POLICIES}/{name}", self.export.table
        _copy(trained, self.staging / path, WEIGHT_FILES)
        _remove_sampling(self.staging / path)
        self._load_tokenizer(policy.model).save_pretrained(self.staging / path)
        model = name if name not in self.run.models else f"{name}-weights"
        dtype = json.loads((trained / "config.json").read_text(encoding="utf-8")).get("dtype", "float32")
        tables["models"][model] = {**tables["models"][policy.model], "path": path, "dtype": dtype}
        tables["models"][model].pop("revision", None)
        if tables["models"][model].get("chat_template"):
            self.export.paths.append(f"models.{model}.chat_template")
        tables["policies"][name] = {"model": model, "train": "frozen"}
        self.export.paths.append(f"models.{model}.path")
        options = dict(self.run.models[policy.model].template_options)
        self.models[model] = ModelEntry(path=path, template_options=options)
        return PolicyEntry(kind="weights", model=model, path=path)

    def _drop_unused(self) -> None:
        """Remove base models used only for starting full-weight policies."""
        tables = self.export.table
        used = {policy["model"] for policy in tables["policies"].values()}
        local = [name for name, model in tables["models"].items() if not model.get("endpoint")]
        readers = {
            (tables["models"][name]["endpoint"].get("local_model") or local[0]) for name in used if name not in local
        }
        for name in [name for name in tables["models"] if name not in used | readers]:
            del tables["models"][name], self.models[name]
            shutil.rmtree(self.staging / MODELS / name, ignore_errors=True)
            self.export.paths = [path for path in self.export.paths if not path.startswith(f"models.{name}.")]

    @torch.no_grad()
    def _merge(self, entry: PolicyEntry, target: Path) -> None:
        """Write the base model with an adapter merged, computed in float32 and saved in the base's dtype.

        A quantized base is quantized and dequantized as in training, because the adapter was trained on these weights.
        """
        settings, dtype = self.run.models[entry.model], torch.float32
        if settings.quantization != "none":
            dtype = pick_dtype(settings.dtype, pick_device(self.run.device))
        backbone = load_backbone(settings, torch.device("cpu"), dtype)
        replace_by_dequantized(backbone.model)
        backbone.model.float()
        saved_dtype = getattr(load_config(settings).get_text_config(), "dtype", None) or torch.float32
        model: Any = PeftModel.from_pretrained(backbone.model, str(self.staging / entry.path)).merge_and_unload()
        saved_dtype = saved_dtype if isinstance(saved_dtype, torch.dtype) else getattr(torch, str(saved_dtype))
        model.to(saved_dtype).save_pretrained(target)
        self._load_tokenizer(entry.model).save_pretrained(target)
        generation = _load_generation_config(settings)
        if generation is not None:
            generation.save_pretrained(target)
        _remove_sampling(target)
        _remove_names(target / "config.json")

    def _load_tokenizer(self, model: str) -> PreTrainedTokenizerBase:
        """Load the tokenizer of a base model, with the recipe's chat template if set."""
        settings = self.run.models[model]
        path = resolve_path(settings.path)
        tokenizer = AutoTokenizer.from_pretrained(path, revision=settings.revision, trust_remote_code=False)
        assert isinstance(tokenizer, PreTrainedTokenizerBase)
        if settings.chat_template:
            tokenizer.chat_template = Path(settings.chat_template).read_text(encoding="utf-8")
        return tokenizer


def _public_adapter_config(folder: Path, base: ModelEntry) -> dict[str, object]:
    """Return an adapter's configuration with the public name of its base model."""
    table = json.loads((folder / CONFIG_FILE).read_text(encoding="utf-8"))
    public_fields = {"base_model_name_or_path": base.path, "revision": base.commit or None, "inference_mode": True}
    return {**table, **public_fields, "task_type": "CAUSAL_LM", "auto_mapping": None}


def _load_generation_config(settings: ModelSettings) -> GenerationConfig | None:
    """Return a base model's generation config. The result is None without a config."""
    path = resolve_path(settings.path)
    file = cached_file(path, GENERATION, revision=settings.revision, _raise_exceptions_for_missing_entries=False)
    return GenerationConfig.from_pretrained(path, revision=settings.revision) if file else None


def _copy(source: Path, target: Path, patterns: tuple[str, ...]) -> None:
    """Copy the data files of a model, without code or pickles."""
    for pattern in patterns:
        for file in sorted(source.glob(pattern)):
            if file.is_file():
                destination = target / file.relative_to(source)
                destination.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, destination)
    if (target / "config.json").is_file():
        _remove_names(target / "config.json")


def _remove_sampling(folder: Path) -> None:
    """Remove a model's generation defaults except its special-token IDs.

    The sampling defaults of the model's authors differ from those in training. A repetition penalty would also change
    greedy text.
    """
    path = folder / GENERATION
    if path.is_file():
        table = json.loads(path.read_text(encoding="utf-8"))
        _write_json(path, {key: value for key, value in table.items() if key.endswith("_token_id")})


def _remove_names(config: Path) -> None:
    """Remove the original path from a model's configuration."""
    table = json.loads(config.read_text(encoding="utf-8"))
    if table.pop("_name_or_path", None) is not None:
        _write_json(config, table)


def _write_json(path: Path, table: Mapping[str, object]) -> None:
    path.write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
