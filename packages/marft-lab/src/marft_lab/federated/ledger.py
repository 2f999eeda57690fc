"""What has left which site, and what it was given: a line for each file, as it passed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from marft.common import atomic
from marft_lab.federated.words import digest_of

COORDINATOR = "coordinator"


class Ledger:
    """``ledger.jsonl``: nothing passes without a line. What is sent again, after something was stopped, has another."""

    def __init__(self, path: Path) -> None:
        self.path, self._writing = path, Lock()
        atomic.drop_unfinished_line(path)

    def note(self, round_: int, sender: str, to: str, files: Mapping[str, bytes]) -> None:
        """Write a line for each file.

        Args:
            sender: a site, or the coordinator.
            files: what passed, by name.
        """
        with self._writing, self.path.open("a", encoding="utf-8") as file:
            for name, data in files.items():
                row = {
                    "round": round_, "from": sender, "to": to, "file": name, "bytes": len(data),
                    "digest": digest_of(data),
                }  # fmt: skip
                file.write(json.dumps(row) + "\n")
