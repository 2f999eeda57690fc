"""Log with a line per file transfer between the coordinator and the sites."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from marft.common import atomic
from marft_lab.federated.words import digest_of

COORDINATOR = "coordinator"


class Ledger:
    """Transfer log ``ledger.jsonl``: one line per transferred file.

    A transfer that is repeated after an interrupt has another line.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._writing = path, Lock()
        atomic.drop_unfinished_line(path)

    def note(self, round_: int, sender: str, to: str, files: Mapping[str, bytes]) -> None:
        """Write one line per file.

        Args:
            round_: number of the round.
            sender: name of a site, or the coordinator.
            to: recipient.
            files: transferred files, by name.
        """
        with self._writing, self.path.open("a", encoding="utf-8") as file:
            for name, data in files.items():
                row = {
                    "round": round_, "from": sender, "to": to, "file": name, "bytes": len(data),
                    "digest": digest_of(data),
                }  # fmt: skip
                file.write(json.dumps(row) + "\n")
