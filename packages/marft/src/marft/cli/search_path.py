"""Cleanup for ``sys.path``: remove the working folder (from an empty entry in PYTHONPATH) and exports.

No library may be imported from these folders. The command imports this module before all libraries.
"""

import os
import sys
from pathlib import Path

MARK = '"a team of MARFT"'  # content of an export's manifest


def clean() -> None:
    """Remove the folders from ``sys.path``, and from PYTHONPATH for child processes."""
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    here = str(Path.cwd())
    mine = [entry for entry in entries if entry and not _is_export(entry)]
    if mine == entries or entries == [""]:
        return
    gone = {entry for entry in entries if entry not in mine} | ({here} if "" in entries and here not in mine else set())
    gone |= {os.path.realpath(entry) for entry in gone} - {os.path.realpath(entry) for entry in mine}
    os.environ["PYTHONPATH"] = os.pathsep.join(mine)
    sys.path[:] = [entry for entry in sys.path if entry not in gone and os.path.abspath(entry) not in gone]  # noqa: PTH100


def _is_export(folder: str) -> bool:
    manifest = Path(folder, "team.json")
    try:
        return manifest.is_file() and MARK in manifest.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


clean()
