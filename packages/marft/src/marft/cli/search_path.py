"""Cleanup for ``sys.path``: remove the working folder (from an empty entry in PYTHONPATH) and exports.

No library may be imported from these folders. The command imports this module before all libraries.
"""

import os
import sys
from pathlib import Path

EXPORT_MARKER = '"a team of MARFT"'  # content of an export's manifest


def clean_search_path() -> None:
    """Remove the folders from ``sys.path``, and from PYTHONPATH for child processes."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    working_folder = str(Path.cwd())
    kept_entries = [entry for entry in entries if entry and not _is_export(entry)]
    if kept_entries == entries or entries == [""]:
        return
    removed = {entry for entry in entries if entry not in kept_entries} | (
        {working_folder} if "" in entries and working_folder not in kept_entries else set()
    )
    removed |= {os.path.realpath(entry) for entry in removed} - {os.path.realpath(entry) for entry in kept_entries}
    os.environ["PYTHONPATH"] = os.pathsep.join(kept_entries)
    sys.path[:] = [entry for entry in sys.path if entry not in removed and os.path.abspath(entry) not in removed]  # noqa: PTH100


def _is_export(folder: str) -> bool:
    manifest = Path(folder, "team.json")
    try:
        return manifest.is_file() and EXPORT_MARKER in manifest.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


clean_search_path()
