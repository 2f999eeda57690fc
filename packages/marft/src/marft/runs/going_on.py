"""Whoever starts a run again need not know whether there is one yet."""

from __future__ import annotations

from pathlib import Path

from marft.runs.folder import RunFolder


def resumed_or_started(folder: RunFolder, start_from: Path | None) -> tuple[bool, Path | None, bool]:
    """Whether to go on with what is in a folder, what to start from, and whether to take the place of a start that came
    to nothing.

    Args:
        start_from: the checkpoint that a start is given; it is heeded until the run has one of its own.
    """
    if folder.goes_on(begins_with=start_from is not None):
        return True, None, False
    return False, folder.start_cut_short() or start_from, folder.is_run()
