"""A run's checkpoint with adapters from elsewhere in the place of its own: the run goes on from them."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from marft.common import atomic
from marft.models.adapters import WEIGHTS
from marft.runs.checkpoints import Record, digest_of_file, digest_of_table
from marft.runs.stated import STATE


def receive(record: Record, adapters: Mapping[str, Path]) -> None:
    """Put adapters into a checkpoint. Critic, optimizer and progress stay what they are; what the checkpoint was rated
    is of other weights, and is forgotten. It is there whole at every moment, before or after.

    Args:
        adapters: folders with the weights, by policy: of the layers and shapes of those that are there.
    """
    table = atomic.read_json(record.path / STATE)
    del table["digest"]
    with atomic.new_folder(record.path) as draft:
        shutil.copytree(record.path, draft, dirs_exist_ok=True)
        for policy, folder in adapters.items():
            name = f"policies/{policy}/{WEIGHTS}"
            assert name in table["files"], name
            shutil.copyfile(folder / WEIGHTS, draft / name)
            table["files"][name] = digest_of_file(draft / name)
        if table["best_step"] == record.state.step:
            table |= {"best_step": 0, "best_score": -1.0, "best_by": ""}
        (draft / STATE).write_text(json.dumps({**table, "digest": digest_of_table(table)}, indent=2) + "\n")


def make_whole(checkpoint: Path) -> None:
    """Put back what a crash left of a checkpoint that was about to receive: what was there before."""
    for before in checkpoint.parent.glob(f"{atomic.UNFINISHED}*{atomic.BEFORE}"):
        if not checkpoint.exists():
            before.rename(checkpoint)
            atomic.sync_folder(checkpoint.parent)
