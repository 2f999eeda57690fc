"""Adapter replacement in a checkpoint, from which the run then resumes."""

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
    """Replace adapters in a checkpoint, atomically.

    Critic, optimizer and progress are kept. If the checkpoint is the best one, its score is reset, because it belongs
    to the old weights.

    Args:
        adapters: by policy, folders with weights of the same layers and shapes.
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
    """Restore the old checkpoint after a crash during :func:`receive`."""
    for before in checkpoint.parent.glob(f"{atomic.UNFINISHED}*{atomic.BEFORE}"):
        if not checkpoint.exists():
            before.rename(checkpoint)
            atomic.sync_folder(checkpoint.parent)
