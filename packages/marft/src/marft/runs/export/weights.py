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

from marft.config.consulting import beside
from marft.config.models import ModelSettings, PolicySettings, local_model, readers
from marft.config.run import RunSettings
from marft.models.adapters import CONFIG, WEIGHTS, read_lora_settings
from marft.models.formats import load_config
from marft.models.loading import load_backbone
from marft.models.paths import resolve_path
from marft.runs.checkpoints import Record
from marft.runs.export.manifest import ModelEntry, PolicyEntry
from marft.runs.export.recipe import MODELS, POLICIES, Shipped

MERGED = "merged"
GENERATION = "generation_config.json"
OF_A_MODEL = (
    "config.json", GENERATION, "model.safetensors.index.json", "*.safetensors", "tokenizer*",
    "special_tokens_map.json", "added_tokens.json", "vocab.*", "merges.txt", "*.model", "chat_template*",
    "additional_chat_templates/*",
)  # fmt: skip
OF_WEIGHTS = ("config.json", GENERATION, "*.safetensors", "*.safetensors.index.json")


class Weights:
    """Writer for a checkpoint's weights, with the matching entries for recipe and manifest.

    Args:
        run: recipe saved with the checkpoint.
        draft: unfinished folder of the export.
    """

    def __init__(self, run: RunSettings, record: Record, shipped: Shipped, draft: Path) -> None:
        self.run, self.record, self.shipped, self.draft = run, record, shipped, draft
        self.models: dict[str, ModelEntry] = {}
        self.policies: dict[str, PolicyEntry] = {}

    def write(self, merged: bool) -> None:
        """Write base models, policies and, if requested, base models with merged adapters.

        Raises:
            ValueError: a model or an adapter cannot be read.
        """
        kept = self.shipped.table["policies"]
        of_helpers = {self.run.policies[name].model for name in beside(self.run) if name not in kept}
        for name, model in self.run.models.items():
            if name in of_helpers - readers(self.run.models) - {policy["model"] for policy in kept.values()}:
                del self.shipped.table["models"][name]
            else:
                self._model(name, model)
        for name in list(kept):
            self.policies[name] = self._policy(name, self.run.policies[name])
        self._drop_unused()
        for name, entry in self.policies.items():
            if merged and entry.kind == "adapter":
                target = f"{MERGED}/{name}"
                self._merge(entry, self.draft / target)
                self.policies[name] = entry.model_copy(update={"merged": target})

    def _model(self, name: str, model: ModelSettings) -> None:
        """Export a base model: copy a local folder, or name the commit of a Hub model."""
        table, digest = self.shipped.table["models"][name], self.record.models.get(f"models.{name}", "")
        if model.endpoint is not None:
            self.models[name] = ModelEntry(path=model.path, endpoint=model.endpoint.url)
            return
        folder, commit = Path(resolve_path(model.path)), ""
        options = dict(model.template_options)
        template = table.get("chat_template") or ""
        if not folder.is_dir():
            commit = str(getattr(load_config(model), "_commit_hash", None) or "")
            table["revision"] = commit or model.revision
            self.models[name] = ModelEntry(
                path=model.path, commit=commit, digest=digest, template_options=options, chat_template=template
            )
            return
        table["path"] = f"{MODELS}/{name}"
        table.pop("revision", None)
        self.shipped.paths.append(f"models.{name}.path")
        self.models[name] = ModelEntry(
            path=table["path"], digest=digest, template_options=options, chat_template=template
        )
        _copy(folder, self.draft / table["path"], OF_A_MODEL)
        _without_sampling(self.draft / table["path"])

    def _policy(self, name: str, policy: PolicySettings) -> PolicyEntry:
        path, table = f"{POLICIES}/{name}", self.shipped.table["policies"]
        trained = self.record.path / POLICIES / name
        if policy.train == "full":
            return self._whole(name, policy, trained)
        table[name] = {"model": policy.model, "train": "frozen"}
        folder = trained if policy.train == "lora" else Path(policy.adapter) if policy.adapter else None
        if folder is None:
            return PolicyEntry(kind="base", model=policy.model)
        lora = read_lora_settings(folder)
        _copy(folder, self.draft / path, (WEIGHTS,))
        base = self.models[local_model(self.run.models, policy.model)]
        _write_json(self.draft / path / CONFIG, _adapter_config(folder, base))
        table[name]["adapter"] = path
        self.shipped.paths.append(f"policies.{name}.adapter")
        return PolicyEntry(
            kind="adapter", model=policy.model, path=path, rank=lora.rank, alpha=lora.alpha, targets=lora.targets
        )

    def _whole(self, name: str, policy: PolicySettings, trained: Path) -> PolicyEntry:
        """Export full policy weights to a separate model with the base's tokenizer."""
        path, tables = f"{POLICIES}/{name}", self.shipped.table
        _copy(trained, self.draft / path, OF_WEIGHTS)
        _without_sampling(self.draft / path)
        self._tokenizer(policy.model).save_pretrained(self.draft / path)
        model = name if name not in self.run.models else f"{name}-weights"
        dtype = json.loads((trained / "config.json").read_text(encoding="utf-8")).get("dtype", "float32")
        tables["models"][model] = {**tables["models"][policy.model], "path": path, "dtype": dtype}
        tables["models"][model].pop("revision", None)
        if tables["models"][model].get("chat_template"):
            self.shipped.paths.append(f"models.{model}.chat_template")
        tables["policies"][name] = {"model": model, "train": "frozen"}
        self.shipped.paths.append(f"models.{model}.path")
        options = dict(self.run.models[policy.model].template_options)
        self.models[model] = ModelEntry(path=path, template_options=options)
        return PolicyEntry(kind="weights", model=model, path=path)

    def _drop_unused(self) -> None:
        """Remove base models used only for starting full-weight policies."""
        tables = self.shipped.table
        used = {policy["model"] for policy in tables["policies"].values()}
        local = [name for name, model in tables["models"].items() if not model.get("endpoint")]
        readers = {(tables["models"][name]["endpoint"].get("reader") or local[0]) for name in used if name not in local}
        for name in [name for name in tables["models"] if name not in used | readers]:
            del tables["models"][name], self.models[name]
            shutil.rmtree(self.draft / MODELS / name, ignore_errors=True)
            self.shipped.paths = [path for path in self.shipped.paths if not path.startswith(f"models.{name}.")]

    @torch.no_grad()
    def _merge(self, entry: PolicyEntry, target: Path) -> None:
        """Write the base model with an adapter merged, computed in float32 and saved in the base's dtype."""
        settings = self.run.models[entry.model]
        backbone = load_backbone(settings, torch.device("cpu"), torch.float32)
        kept = getattr(load_config(settings).get_text_config(), "dtype", None) or torch.float32
        model: Any = PeftModel.from_pretrained(backbone.model, str(self.draft / entry.path)).merge_and_unload()
        model.to(kept if isinstance(kept, torch.dtype) else getattr(torch, str(kept))).save_pretrained(target)
        self._tokenizer(entry.model).save_pretrained(target)
        generation = _generation(settings)
        if generation is not None:
            generation.save_pretrained(target)
        _without_sampling(target)
        _without_names(target / "config.json")

    def _tokenizer(self, model: str) -> PreTrainedTokenizerBase:
        """Load the tokenizer of a base model, with the recipe's chat template if set."""
        settings = self.run.models[model]
        path = resolve_path(settings.path)
        tokenizer = AutoTokenizer.from_pretrained(path, revision=settings.revision, trust_remote_code=False)
        assert isinstance(tokenizer, PreTrainedTokenizerBase)
        if settings.chat_template:
            tokenizer.chat_template = Path(settings.chat_template).read_text(encoding="utf-8")
        return tokenizer


def _adapter_config(folder: Path, base: ModelEntry) -> dict[str, Any]:
    """Return an adapter's configuration with the public name of its base model."""
    table = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    named = {"base_model_name_or_path": base.path, "revision": base.commit or None, "inference_mode": True}
    return {**table, **named, "task_type": "CAUSAL_LM", "auto_mapping": None}


def _generation(settings: ModelSettings) -> GenerationConfig | None:
    """Return a base model's generation config. The result is None without a config."""
    path = resolve_path(settings.path)
    found = cached_file(path, GENERATION, revision=settings.revision, _raise_exceptions_for_missing_entries=False)
    return GenerationConfig.from_pretrained(path, revision=settings.revision) if found else None


def _copy(source: Path, target: Path, patterns: tuple[str, ...]) -> None:
    """Copy the data files of a model, without code or pickles."""
    for pattern in patterns:
        for file in sorted(source.glob(pattern)):
            if file.is_file():
                place = target / file.relative_to(source)
                place.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(file, place)
    if (target / "config.json").is_file():
        _without_names(target / "config.json")


def _without_sampling(folder: Path) -> None:
    """Remove a model's generation defaults except its special-token IDs.

    The sampling defaults of the model's authors differ from those in training. A repetition penalty would also change
    greedy text.
    """
    path = folder / GENERATION
    if path.is_file():
        table = json.loads(path.read_text(encoding="utf-8"))
        _write_json(path, {key: value for key, value in table.items() if key.endswith("_token_id")})


def _without_names(config: Path) -> None:
    """Remove the original path from a model's configuration."""
    table = json.loads(config.read_text(encoding="utf-8"))
    if table.pop("_name_or_path", None) is not None:
        _write_json(config, table)


def _write_json(path: Path, table: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(table, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
