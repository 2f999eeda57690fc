"""Connection of the coordinator to one site, and the log of file transfers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from marft.common import atomic
from marft.common.errors import UserError
from marft.common.processes.child_process import ChildProcess, python_command
from marft_lab.federated.messages import (
    Assignment,
    TrainFailure,
    TrainRequest,
    Update,
    is_finite,
    pack_files,
    receive,
    send,
    sha256_digest,
    unpack_files,
)
from marft_lab.federated.settings import FederationSettings

COORDINATOR = "coordinator"
INITIAL_ROUND = 0  # round of the request for initial adapters


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


class SiteFailedError(Exception):
    """Error for a site without a reply.

    The message describes the outcome in the coordinator's own words.
    """


class SiteLink:
    """Connection to one site; call :meth:`close` at the end.

    Args:
        name: name of the site.
        settings: settings of the federation.
        id_: identifier of the federation.
        folder: folder of the site.
        transfer_log: transfer log.
    """

    def __init__(
        self, name: str, settings: FederationSettings, id_: str, folder: Path, transfer_log: TransferLog
    ) -> None:
        site = settings.sites[name]
        self.name, self.folder, self._transfer_log = name, folder, transfer_log
        self._max_attempts = 1 + settings.max_retries
        self._assignment = Assignment(
            {"name": name, "folder": str(folder), "recipe": site.recipe, "changes": site.overrides},
            {
                "id": id_,
                "seed": settings.seed,
                "steps": settings.rounds * settings.steps,
                "clip": settings.privacy.clip,
                "noise": settings.privacy.noise_multiplier,
                "counts": bool(settings.combine.contribution_unit),
            },
        )
        self._child: ChildProcess | None = None
        self._lock = Lock()
        self._is_closing = False

    def request_update(self, round_: int, steps: int, files: Mapping[str, bytes]) -> Update:
        """Request an update from the site and return the update.

        The site's process is started if necessary, and restarted after an exit.

        Args:
            round_: number of the round.
            steps: training steps.
            files: adapter files for the site; empty to request the initial adapters.

        Raises:
            SiteFailedError: the site failed, or its process exited too often.
        """
        outcome = ""
        for _ in range(self._max_attempts):
            child = None
            try:
                child, new = self._ensure_started()
                if new:
                    send(child.socket, self._assignment)
                self._transfer_log.log_transfer(round_, COORDINATOR, self.name, files)
                send(child.socket, TrainRequest(round_, steps, *pack_files(files)))
                answer = receive(child.socket)
                sent = _validate_update(answer) if isinstance(answer, Update) else {}
            except (EOFError, OSError, ValueError) as error:
                if child is None:
                    outcome = f"cannot be started ({error})"
                elif isinstance(error, ValueError):
                    outcome = f"sent what nobody asked for ({error})"
                else:
                    outcome = child.wait_or_terminate()
                self.end()
                if self._is_closing:
                    raise SiteFailedError(outcome) from None
                continue
            if isinstance(answer, TrainFailure):
                self.end()
                raise SiteFailedError(f"cannot; {self.folder / 'site.log'} says why")
            if not isinstance(answer, Update) or answer.round != round_:
                self.end()
                raise SiteFailedError(f"answered {type(answer).__name__} in the place of round {round_}")
            report = json.dumps(answer.report, sort_keys=True).encode()
            self._transfer_log.log_transfer(round_, self.name, COORDINATOR, {**sent, "about": report})
            return answer
        raise SiteFailedError(f"{outcome}, {self._max_attempts} times; {self.folder / 'site.log'} may say why")

    def _ensure_started(self) -> tuple[ChildProcess, bool]:
        """Return the site's process, and True if the process is new and needs its assignment."""
        with self._lock:
            if self._is_closing:
                raise SiteFailedError("was ended")
            if self._child is None:
                command = lambda descriptor: python_command("marft_lab.federated.site", descriptor)  # noqa: E731
                self._child = ChildProcess(self.name, command, quiet=True)  # the site writes its output to its own log
                return self._child, True
            return self._child, False

    def end(self) -> None:
        """Terminate the site's process, even during a request; the next request starts a new process."""
        with self._lock:
            child, self._child = self._child, None
        if child:
            child.close()

    def abandon_request(self) -> None:
        """Abandon the pending request, and reject new requests until :meth:`accept_requests`."""
        self._is_closing = True
        with self._lock:  # wait for a process that is being started; its request would otherwise block forever
            if self._child:
                self._child.end()

    def accept_requests(self) -> None:
        """Accept requests again."""
        self._is_closing = False

    def close(self) -> None:
        """Terminate the site's process and reject further requests."""
        self._is_closing = True
        self.end()


def _validate_update(update: Update) -> dict[str, bytes]:
    """Return an update's files.

    Raises:
        UserError: invalid norm, model digests or files.
    """
    norm, models = update.report.get("norm", 0.0), update.report.get("models", {})
    if not is_finite(norm):
        raise UserError(f"a norm of {norm!r:.40}")
    if not isinstance(models, dict) or not all(isinstance(digest, str) for digest in models.values()):
        raise UserError("digests of models that are none")
    return unpack_files(update)
