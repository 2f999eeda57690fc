"""Ranks in processes of their own, as a run has them, for tests that do what a run does not."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from marft.trainer.ranks.group import RankGroup

ROOT = Path(__file__).parents[1]
SECONDS = 240


def together(count: int, works: Sequence[tuple[str, tuple[Any, ...]]], folder: Path) -> list[list[Any]]:
    """What functions give on every rank, by function and rank. All are called in one start of ``count`` processes.

    Args:
        works: functions of a module of tests, by ``module:name``, and what they are given after the group.
    """
    with tempfile.TemporaryDirectory(dir=folder) as name:
        meeting, asked = Path(name) / "meeting", Path(name) / "asked"
        asked.write_bytes(pickle.dumps(list(works)))
        command = [sys.executable, "-m", "tests.ranked", str(meeting), str(asked), str(count)]
        processes = [subprocess.Popen([*command, str(rank)], cwd=ROOT) for rank in range(count)]
        try:
            statuses = [process.wait(SECONDS) for process in processes]
        finally:
            for process in processes:
                process.kill()
        assert not any(statuses), f"a rank failed: {statuses}"
        said = [pickle.loads((Path(name) / f"asked.{rank}").read_bytes()) for rank in range(count)]
    return [list(of_work) for of_work in zip(*said, strict=True)]


def main(meeting: str, asked: str, count: int, rank: int) -> None:
    torch.set_num_threads(1)
    group = RankGroup(meeting, rank, count, torch.device("cpu"), 60.0)
    found = []
    for place, arguments in pickle.loads(Path(asked).read_bytes()):
        module, _, name = place.partition(":")
        found.append(getattr(import_module(module), name)(group, *arguments))
    group.close()
    Path(f"{asked}.{rank}").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:3], *map(json.loads, sys.argv[3:5]))
