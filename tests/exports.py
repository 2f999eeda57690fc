"""What tests of exports share: an export of a small run, and how plain transformers and peft read it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from marft.common.types import Action
from marft.runs.export.manifest import Export

MANIFEST: dict[str, Any] = {
    "marft": "1", "name": "theirs", "made": "today", "checkpoint": {"name": "s", "step": 1, "environment_steps": 1},
    "organization": {}, "channel": {}, "agents": (), "sees": {}, "tools": {}, "policies": {}, "models": {},
    "reorganized": {}, "evaluations": (), "training": {}, "paths": (), "code": (), "requires": {}, "left_out": (),
}  # fmt: skip


class Plain:
    """An export's policies on one base, without anything of MARFT."""

    def __init__(self, export: Export, base: str = "base") -> None:
        adapters = {name: one for name, one in export.manifest.policies.items() if one.model == base and one.path}
        folder = export.path / export.manifest.models[base].path
        self.tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        first, *others = adapters
        model = AutoModelForCausalLM.from_pretrained(folder)
        self.model: Any = PeftModel.from_pretrained(model, export.path / adapters[first].path, adapter_name=first)
        for name in others:
            self.model.load_adapter(export.path / adapters[name].path, name)

    def ids(self, instructions: str, text: str) -> list[int]:
        chat = [{"role": "system", "content": instructions}, {"role": "user", "content": text}]
        found = self.tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=True)
        return list(found["input_ids"])

    def say(self, policy: str, ids: Sequence[int], most: int) -> str:
        self.model.set_adapter(policy)
        read = torch.tensor([list(ids)])
        said = self.model.generate(
            input_ids=read, attention_mask=torch.ones_like(read), max_new_tokens=most, do_sample=False
        )
        return str(self.tokenizer.decode(said[0, len(ids) :], skip_special_tokens=True))

    @torch.no_grad()
    def compute_logits(self, policy: str, ids: Sequence[int]) -> Tensor:
        self.model.set_adapter(policy)
        return self.model(input_ids=torch.tensor([list(ids)])).logits[0]  # type: ignore[no-any-return]


def merged_logits(export: Export, policy: str, ids: Sequence[int]) -> Tensor:
    model: Any = AutoModelForCausalLM.from_pretrained(export.path / export.manifest.policies[policy].merged)
    with torch.no_grad():
        return model(input_ids=torch.tensor([list(ids)])).logits[0]  # type: ignore[no-any-return]


def whole(action: Action) -> list[int]:
    """What was read and said."""
    return [*action.prompt.tolist(), *action.tokens.tolist()]


def texts_in(folder: Path) -> dict[str, str]:
    kinds = (".json", ".toml", ".md", ".jinja", ".py")
    files = [file for file in sorted(folder.rglob("*")) if file.suffix in kinds]
    return {file.relative_to(folder).as_posix(): file.read_text() for file in files}
