"""Files of a run and of its checkpoints: their names, and the deletion of these files and nothing else.

A resume needs this state, all of it in the folder of a checkpoint:

- ``state.json``: the progress of the run (:class:`marft.runs.state.State`, with the numbers of credit and schedule in
  ``component_state``), and digests of all other files, of the metrics log, of the models and of the user code.
- ``policies/<name>/``: the weights of each trained policy; ``critic.safetensors``: the critic;
  ``optimizer.safetensors``: the moments of the policies' and the critic's optimizers, and the reference policy of a
  pairwise objective.
- ``recipe.toml``: the recipe, to compare it with the recipe of the resume.
- ``ahead.*`` and ``again.*``: the episodes of an asynchronous rollout and of a replay buffer
  (``RolloutSource.save``), ``world_model.json`` and ``league/``: the state of other rollout sources.
- ``callbacks.json`` and ``callbacks.safetensors``: the state of callbacks (``Callback.state_dict``).

The metrics log outside is truncated to its length at the checkpoint.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from marft.common.atomic import TEMP_PREFIX, read_json

STATE_FILE, RECIPE_FILE = "state.json", "recipe.toml"
CRITIC_FILE, OPTIMIZER_FILE = "critic.safetensors", "optimizer.safetensors"
CALLBACK_VALUES_FILE, CALLBACK_ARRAYS_FILE = "callbacks.json", "callbacks.safetensors"
CHECKPOINT_NAME, START_NAME = re.compile(r"step_\d{6,}"), re.compile(r"start_\d{1,9}")
CHECKPOINT = re.compile(rf"checkpoints/({CHECKPOINT_NAME.pattern}|{START_NAME.pattern})(?=/|$)")
ADAPTER = r"adapter_(model\.safetensors|config\.json)"
CHECKPOINT_FILES = re.compile(
    r"(state\.json|recipe\.toml|(critic|optimizer|callbacks)\.safetensors|(callbacks|world_model)\.json"
    rf"|(ahead|again)\.(json|parquet)|policies/[^/]+/{ADAPTER}"
    rf"|league/(league\.json|step_\d{{6,}}/{ADAPTER}))"
)
EVALUATION = r"[^/]+-(?:greedy|sampled)(?:-shuffled)?(?:-(?:on|as)-[\w.-]+)?"
SUITE_EVALUATION = r"[^/]+-(?:greedy|sampled)-on-[\w.-]+?"
RUN_FILES = re.compile(
    r"(run\.json|tools\.json|profiles\.json|config\.toml|metrics\.jsonl|metrics\.damaged-\d+\.jsonl|report\.html|error\.txt"
    r"|(episodes|credit|imagined)/step_\d{6,}\.parquet"
    rf"|evaluations/(eval\.lock|{EVALUATION}\.(json|parquet)|{EVALUATION}\.parts/(key\.json|part_\d{{6,}}\.parquet))"
    rf"|evaluations/{SUITE_EVALUATION}/(findings\.jsonl|[\w-]+\.(json|parquet)|[\w-]+\.parts/(key\.json|part_\d{{6,}}\.parquet))"
    r"|replays/step_\d{6,}\.(html|json)"
    r"|graphs/step_\d{6,}-[^/]+\.svg"
    r"|league/league\.(json|html|svg)"
    r"|worth/(worth\.(json|html|md)|[a-z0-9-]+\.svg|arms/[0-9a-f]{32}\.parquet)"
    r"|synthesis\.json|rows/(manifest\.json|\w+\.jsonl)"
    r"|tensorboard/events\.out\.tfevents\.[^/]+)"
)
RUN_FOLDERS = re.compile(
    rf"(episodes|credit|imagined|evaluations|evaluations/{EVALUATION}\.parts|evaluations/{SUITE_EVALUATION}(/[\w-]+\.parts)?|replays|graphs|league|rows|tensorboard|worth|worth/arms"
    rf"|checkpoints|{CHECKPOINT.pattern}(/policies(/[^/]+)?|/league(/step_\d{{6,}})?)?)"
)


def find_run_files(folder: Path, subfolder: Path | None = None) -> Iterator[Path]:
    """Yield the files in a run's folder with names that a run uses, and unfinished folders.

    Args:
        subfolder: search only this folder.
    """
    for folder_path, folders, files in os.walk(subfolder or folder):
        parent = Path(folder_path)
        for name in [name for name in folders if name.startswith(TEMP_PREFIX)]:
            folders.remove(name)
            yield parent / name
        inside = parent.relative_to(folder).as_posix()
        checkpoint = CHECKPOINT.match(inside)
        listed = _read_file_list(folder / checkpoint[0]) if checkpoint else frozenset()
        for name in files:
            path = parent / name
            at = path.relative_to(folder).as_posix()
            if checkpoint:
                at = path.relative_to(folder / checkpoint[0]).as_posix()
            is_run_file = (at in listed or CHECKPOINT_FILES.fullmatch(at)) if checkpoint else RUN_FILES.fullmatch(at)
            if is_run_file or name.startswith(TEMP_PREFIX):
                yield path


def remove_run(folder: Path, start: Path | None = None) -> list[Path]:
    """Delete the files of a run and return the remaining files.

    The marker and the recipe stay: they already belong to the next run, and after a crash the remaining files still
    belong to a run.

    Args:
        start: checkpoint with the initial weights of the next run, which is kept.
    """
    protected = {folder / "run.json", folder / "config.toml", folder / "run.lock"}
    for path in _sort_lists_last(find_run_files(folder)):
        if path not in protected and start not in path.parents:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    _remove_empty(folder)
    remaining = [path for path in folder.rglob("*") if not path.is_dir() or path.is_symlink()]
    return sorted(path for path in remaining if path not in protected and start not in path.parents)


def remove_checkpoint(path: Path) -> None:
    """Delete a checkpoint's files. Files of other origin are kept."""
    run = path.parents[1]
    for file in _sort_lists_last(find_run_files(run, path)):
        file.unlink()
    _remove_empty(run)


def find_foreign_checkpoint_files(folder: Path) -> list[Path]:
    """Return files from other origins in the places for checkpoints."""
    checkpoint_paths = [
        path for path in (folder / "checkpoints").glob("*") if CHECKPOINT.fullmatch(f"checkpoints/{path.name}")
    ]
    run_files = set(find_run_files(folder))
    links = [path for path in checkpoint_paths if path.is_symlink() or not path.is_dir()]
    inside = [file for path in checkpoint_paths if path not in links for file in path.rglob("*")]
    foreign = [file for file in inside if (file.is_symlink() or not file.is_dir()) and file not in run_files]
    return sorted([*links, *foreign])


def _remove_empty(folder: Path) -> None:
    """Delete empty folders that belong to a run."""
    for folder_path, _, _ in os.walk(folder, topdown=False):
        path = Path(folder_path)
        if path != folder and RUN_FOLDERS.fullmatch(path.relative_to(folder).as_posix()) and not any(path.iterdir()):
            path.rmdir()


def _sort_lists_last(paths: Iterable[Path]) -> list[Path]:
    """Sort paths for deletion with file lists last.

    If a deletion is interrupted, the remaining files can still be identified as the run's.
    """
    return sorted(paths, key=lambda path: path.name == STATE_FILE)


def _read_file_list(checkpoint: Path) -> frozenset[str]:
    """Return the files listed by a checkpoint."""
    try:
        return frozenset(read_json(checkpoint / STATE_FILE)["files"])
    except (OSError, ValueError, KeyError, TypeError):
        return frozenset()
