"""Adapter replacement in a checkpoint, from which the run then resumes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from marft.common import atomic
from marft.models.adapter_files import WEIGHTS_FILE
from marft.runs.checkpoints import CheckpointRecord, digest_of_file, digest_of_table
from marft.runs.state_schema import STATE_FILE


def replace_adapters(record: CheckpointRecord, adapters: Mapping[str, Path]) -> None:
    """Replace adapters in a checkpoint, atomically.

    Critic, optimizer and progress are kept. If the checkpoint is the best one, its score is reset, because it belongs
    to the old weights.

    Args:
        adapters: by policy, folders with weights of the same layers and shapes.
    """
    table = atomic.read_json(record.path / STATE_FILE)
    del table["digest"]
    with atomic.new_folder(record.path) as staging:
        shutil.copytree(record.path, staging, dirs_exist_ok=True)
        for policy, folder in adapters.items():
            name = f"policies/{policy}/{WEIGHTS_FILE}"
            assert name in table["files"], name
            shutil.copyfile(folder / WEIGHTS_FILE, staging / name)
            table["files"][name] = digest_of_file(staging / name)
        if table["best_step"] == record.state.step:
            table |= {"best_step": 0, "best_score": -1.0, "best_by": ""}
        (staging / STATE_FILE).write_text(json.dumps({**table, "digest": digest_of_table(table)}, indent=2) + "\n")


def recover_checkpoint(checkpoint: Path) -> None:
    """Restore the old checkpoint after a crash during :func:`replace_adapters`."""
    for before in checkpoint.parent.glob(f"{atomic.TEMP_PREFIX}*{atomic.BACKUP_SUFFIX}"):
        if not checkpoint.exists():
            before.rename(checkpoint)
            atomic.sync_folder(checkpoint.parent)
