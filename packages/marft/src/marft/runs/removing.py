"""Cleanup: delete files written by a run, and nothing else."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from marft.common.atomic import UNFINISHED, read_json

LIST = "state.json"  # file of a checkpoint that lists its files
CHECKPOINT = re.compile(r"checkpoints/(step_\d{6,}|start_\d{1,9})(?=/|$)")
IN_CHECKPOINTS = re.compile(
    r"(state\.json|recipe\.toml|critic\.safetensors|optimizer\.safetensors|(ahead|again)\.(json|parquet)|world_model\.json"
    r"|policies/[^/]+/adapter_(model\.safetensors|config\.json)"
    r"|league/(league\.json|step_\d{6,}/adapter_(model\.safetensors|config\.json)))"
)
EVALUATION = r"[^/]+-(?:greedy|sampled)(?:-shuffled)?(?:-(?:on|as)-[\w.-]+)?"
ON_SUITE = r"[^/]+-(?:greedy|sampled)-on-[\w.-]+?"
IN_RUNS = re.compile(
    r"(run\.json|tools\.json|profiles\.json|config\.toml|metrics\.jsonl|metrics\.damaged-\d+\.jsonl|report\.html|error\.txt"
    r"|(episodes|credit|imagined)/step_\d{6,}\.parquet"
    rf"|evaluations/(eval\.lock|{EVALUATION}\.(json|parquet)|{EVALUATION}\.parts/(key\.json|part_\d{{6,}}\.parquet))"
    rf"|evaluations/{ON_SUITE}/(findings\.jsonl|[\w-]+\.(json|parquet)|[\w-]+\.parts/(key\.json|part_\d{{6,}}\.parquet))"
    r"|replays/step_\d{6,}\.(html|json)"
    r"|graphs/step_\d{6,}-[^/]+\.svg"
    r"|league/league\.(json|html|svg)"
    r"|worth/(worth\.(json|html|md)|[a-z0-9-]+\.svg|arms/[0-9a-f]{32}\.parquet)"
    r"|synthesis\.json|rows/(manifest\.json|\w+\.jsonl)"
    r"|tensorboard/events\.out\.tfevents\.[^/]+)"
)
FOLDERS = re.compile(
    rf"(episodes|credit|imagined|evaluations|evaluations/{EVALUATION}\.parts|evaluations/{ON_SUITE}(/[\w-]+\.parts)?|replays|graphs|league|rows|tensorboard|worth|worth/arms"
    rf"|checkpoints|{CHECKPOINT.pattern}(/policies(/[^/]+)?|/league(/step_\d{{6,}})?)?)"
)


def written_by_a_run(folder: Path, below: Path | None = None) -> Iterator[Path]:
    """Yield the files in a run's folder with names that a run uses, and unfinished folders.

    Args:
        below: search only this folder.
    """
    for place, folders, files in os.walk(below or folder):
        where = Path(place)
        for name in [name for name in folders if name.startswith(UNFINISHED)]:
            folders.remove(name)
            yield where / name
        inside = where.relative_to(folder).as_posix()
        checkpoint = CHECKPOINT.match(inside)
        listed = _listed(folder / checkpoint[0]) if checkpoint else frozenset()
        for name in files:
            path = where / name
            at = path.relative_to(folder).as_posix()
            if checkpoint:
                at = path.relative_to(folder / checkpoint[0]).as_posix()
            mine = (at in listed or IN_CHECKPOINTS.fullmatch(at)) if checkpoint else IN_RUNS.fullmatch(at)
            if mine or name.startswith(UNFINISHED):
                yield path


def remove_run(folder: Path, start: Path | None = None) -> list[Path]:
    """Delete the files of a run and return the remaining files.

    The marker and the recipe stay: they already belong to the next run, and after a crash the remaining files still
    belong to a run.

    Args:
        start: checkpoint with the initial weights of the next run, which is kept.
    """
    kept = {folder / "run.json", folder / "config.toml", folder / "run.lock"}
    for path in _lists_last(written_by_a_run(folder)):
        if path not in kept and start not in path.parents:
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    _remove_empty(folder)
    left = [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    return sorted(path for path in left if path not in kept and start not in path.parents)


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint's files. Files of other origin are kept."""
    run = path.parents[1]
    for file in _lists_last(written_by_a_run(run, path)):
        file.unlink()
    _remove_empty(run)


def among_checkpoints(folder: Path) -> list[Path]:
    """Return files from other origins in the places for checkpoints."""
    places = [path for path in (folder / "checkpoints").glob("*") if CHECKPOINT.fullmatch(f"checkpoints/{path.name}")]
    mine = set(written_by_a_run(folder))
    links = [path for path in places if path.is_symlink() or not path.is_dir()]
    inside = [
        file
        for path in places
        if path not in links
        for file in path.rglob("*")
        if file.is_symlink() or not file.is_dir()
    ]
    return sorted([*links, *(file for file in inside if file not in mine)])


def _remove_empty(folder: Path) -> None:
    """Delete empty folders that belong to a run."""
    for place, _, _ in os.walk(folder, topdown=False):
        path = Path(place)
        if path != folder and FOLDERS.fullmatch(path.relative_to(folder).as_posix()) and not any(path.iterdir()):
            path.rmdir()


def _lists_last(paths: Iterable[Path]) -> list[Path]:
    """Sort paths for deletion with file lists last.

    If a deletion is interrupted, the remaining files can still be identified as the run's.
    """
    return sorted(paths, key=lambda path: path.name == LIST)


def _listed(checkpoint: Path) -> frozenset[str]:
    """Return the files listed by a checkpoint."""
    try:
        return frozenset(read_json(checkpoint / LIST)["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()
