"""Small recipes for tests."""

from __future__ import annotations

import json
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.common import atomic
from marft.config import RunSettings, parse_recipe
from marft.runs.run_folder import RunFolder

if TYPE_CHECKING:
    from torch import Tensor

    from marft.models.backbone import Backbone
    from marft.models.packed_rows import PackedRows

CHAIN_SUM = {"min_terms": 3, "max_terms": 3, "min_digits": 2, "max_digits": 2}


def recipe(model: Path | str = "tiny", output: Path | str = "runs", **changes: Any) -> dict[str, Any]:
    """A dual team on chain_sum, small enough for a test."""
    table: dict[str, Any] = {
        "name": "test",
        "output": str(output),
        "device": "cpu",
        "threads": 1,
        "models": {"base": {"path": str(model)}},
        "policies": {"reasoner": {"model": "base"}, "actor": {"model": "base"}},
        "agents": [
            {"role": "reasoner", "policy": "reasoner", "instructions": "Reason.", "sampling": {"max_new_tokens": 8}},
            {
                "role": "actor",
                "policy": "actor",
                "instructions": "Act.",
                "answers": True,
                "sampling": {"max_new_tokens": 8},
            },
        ],
        "environment": {
            "name": "reasoning_gym",
            "dataset": "chain_sum",
            "params": CHAIN_SUM,
            "train_tasks": 64,
            "held_out_tasks": 16,
        },
        "rollout": {"tasks_per_step": 2, "samples_per_task": 2},
        "training": {"steps": 2},
        "checkpoints": {"every": 1},
        "algorithm": {"critic": {"warmup_steps": 0}, "optimizer": {"learning_rate": 1e-2}},
    }
    return {**table, **changes}


def settings(model: Path | str = "tiny", output: Path | str = "runs", *overrides: str, **changes: Any) -> RunSettings:
    return parse_recipe(recipe(model, output, **changes), overrides)


def helped(tmp_path: Path, **changes: Any) -> RunSettings:
    """The tiny recipe with a helper that is the untuned model."""
    table = settings("tiny", tmp_path).model_dump(mode="json", exclude_none=True)
    table["policies"]["helper"] = {"model": next(iter(table["models"])), "train": "frozen"}
    helper = {"policy": "helper", "sampling": {"max_new_tokens": 4}}
    table["consulting"] = {
        "helpers": {"problem": helper}, "agents": ["reasoner"], "anneal_end": 2, "visible": "never", "budget": 2.0,
        "call_template": "The {kind} is{question}.",
    }  # fmt: skip
    table["agents"][0]["sampling"]["max_new_tokens"] = 32
    table["agents"][0]["instructions"] = "You are the reasoner. Work out the first step and pass on what is left."
    table["rollout"]["samples_per_task"] = 4
    for path, value in changes.items():
        *folders, key = path.split(".")
        inner = table
        for folder in folders:
            inner = inner[folder]
        inner[key] = value
    return parse_recipe(table)


def shown_in_docs(page: str, holds: str) -> dict[str, Any]:
    """The one TOML example of a page that holds these words."""
    text = (Path(__file__).parents[1] / page).read_text(encoding="utf-8")
    examples = [block.split("```")[0] for block in text.split("```toml\n")[1:]]
    (example,) = (block for block in examples if holds in block)
    return tomllib.loads(example)


def lengths_read(backbone: Backbone) -> list[int]:
    """Tokens of each forward that the backbone makes from now on."""
    lengths: list[int] = []
    original = backbone.hidden_states

    def counted(rows: PackedRows, *arguments: object) -> Tensor:
        lengths.append(len(rows.ids))
        return original(rows, *arguments)  # type: ignore[arg-type]

    backbone.hidden_states = counted  # type: ignore[method-assign]
    return lengths


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    """Wait for something that comes about on another thread or in another process."""
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def write_evaluation(folder: RunFolder, evaluation: Mapping[str, object], name: str) -> Path:
    """Write an evaluation to ``evaluations/<name>.json`` of a run and return its path."""
    path = folder.evaluations / f"{name}.json"
    atomic.write_file(path, json.dumps(evaluation, indent=2) + "\n")
    return path
