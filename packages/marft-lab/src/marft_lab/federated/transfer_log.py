"""Log with a line per file transfer between the coordinator and the sites."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from marft.common import atomic
from marft_lab.federated.messages import sha256_digest

COORDINATOR = "coordinator"


class TransferLog:
    """Transfer log ``ledger.jsonl``: one line per transferred file.

    A transfer that is repeated after an interrupt has another line.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, Lock()
        atomic.truncate_partial_line(path)

    def log_transfer(self, round_: int, sender: str, to: str, files: Mapping[str, bytes]) -> None:
        """Write one line per file.

        Args:
            round_: number of the round.
            sender: name of a site, or the coordinator.
            to: recipient.
            files: transferred files, by name.
        """
        with self._lock, self.path.open("a", encoding="utf-8") as file:
            for name, data in files.items():
                row = {
                    "round": round_,
                    "from": sender,
                    "to": to,
                    "file": name,
                    "bytes": len(data),
                    "digest": sha256_digest(data),
                }
                file.write(json.dumps(row) + "\n")
