"""Decision between resume and start, for commands that do either."""

from __future__ import annotations

from pathlib import Path

from marft.runs.run_folder import RunFolder


def resolve_start(folder: RunFolder, start_from: Path | None) -> tuple[bool, Path | None, bool]:
    """Return the arguments that resume or start a run in a folder.

    The result has three items: True to resume, the checkpoint to start from, and True to overwrite an interrupted
    start.

    Args:
        start_from: checkpoint for a start; ignored once the run has a checkpoint of its own.
    """
    if folder.should_resume(begins_with=start_from is not None):
        return True, None, False
    return False, folder.interrupted_start() or start_from, folder.is_run()
