"""Coordinator's connection to a site: the site's process, requests and replies."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from threading import Lock

from marft.common.processes.child import Child
from marft.common.processes.python_here import python_here
from marft_lab.federated.ledger import COORDINATOR, Ledger
from marft_lab.federated.settings import FederationSettings
from marft_lab.federated.words import About, Asked, Failed, Update, data_of, files_of, is_finite, receive, send

BEGINNING = 0  # round of the request for initial adapters


class SiteLostError(Exception):
    """Error for a site without a reply.

    The message describes the outcome in the coordinator's own words.
    """


class Link:
    """Connection to one site; call :meth:`close` at the end.

    Args:
        name: name of the site.
        settings: settings of the federation.
        id_: identifier of the federation.
        folder: folder of the site.
        ledger: transfer log.
    """

    def __init__(self, name: str, settings: FederationSettings, id_: str, folder: Path, ledger: Ledger) -> None:
        site = settings.sites[name]
        self.name, self.folder, self._ledger, self._tries = name, folder, ledger, settings.tries
        self._about = About(
            {"name": name, "folder": str(folder), "recipe": site.recipe, "changes": site.changes},
            {
                "id": id_, "seed": settings.seed, "steps": settings.rounds * settings.steps,
                "clip": settings.privacy.clip, "noise": settings.privacy.noise,
                "counts": bool(settings.combine.counted),
            },
        )  # fmt: skip
        self._child: Child | None = None
        self._changing = Lock()
        self._ending = False

    def ask(self, round_: int, steps: int, files: Mapping[str, bytes]) -> Update:
        """Request an update from the site and return the update.

        The site's process is started if necessary, and restarted after an exit.

        Args:
            round_: number of the round.
            steps: training steps.
            files: adapter files for the site; empty to request the initial adapters.

        Raises:
            SiteLostError: the site failed, or its process exited too often.
        """
        outcome = ""
        for _ in range(self._tries):
            child = None
            try:
                child, new = self._started()
                if new:
                    send(child.socket, self._about)
                self._ledger.note(round_, COORDINATOR, self.name, files)
                send(child.socket, Asked(round_, steps, *data_of(files)))
                answer = receive(child.socket)
                sent = _checked(answer) if isinstance(answer, Update) else {}
            except (EOFError, OSError, ValueError) as error:
                if child is None:
                    outcome = f"cannot be started ({error})"
                elif isinstance(error, ValueError):
                    outcome = f"sent what nobody asked for ({error})"
                else:
                    outcome = child.outcome()
                self.end()
                if self._ending:
                    raise SiteLostError(outcome) from None
                continue
            if isinstance(answer, Failed):
                self.end()
                raise SiteLostError(f"cannot; {self.folder / 'site.log'} says why")
            if not isinstance(answer, Update) or answer.round != round_:
                self.end()
                raise SiteLostError(f"answered {type(answer).__name__} in the place of round {round_}")
            about = json.dumps(answer.about, sort_keys=True).encode()
            self._ledger.note(round_, self.name, COORDINATOR, {**sent, "about": about})
            return answer
        raise SiteLostError(f"{outcome}, {self._tries} times; {self.folder / 'site.log'} may say why")

    def _started(self) -> tuple[Child, bool]:
        """Return the site's process, and True if the process is new and needs its assignment."""
        with self._changing:
            if self._ending:
                raise SiteLostError("was ended")
            if self._child is None:
                command = lambda descriptor: python_here("marft_lab.federated.site", descriptor)  # noqa: E731
                self._child = Child(self.name, command, quiet=True)  # the site writes its output to its own log
                return self._child, True
            return self._child, False

    def end(self) -> None:
        """Terminate the site's process, even during a request; the next request starts a new process."""
        with self._changing:
            child, self._child = self._child, None
        if child:
            child.close()

    def leave_out(self) -> None:
        """Abandon the pending request, and reject new requests until :meth:`again`."""
        self._ending = True
        with self._changing:  # wait for a process that is being started; its request would otherwise block forever
            if self._child:
                self._child.end()

    def again(self) -> None:
        """Accept requests again."""
        self._ending = False

    def close(self) -> None:
        """Terminate the site's process and reject further requests."""
        self._ending = True
        self.end()


def _checked(update: Update) -> dict[str, bytes]:
    """Return an update's files.

    Raises:
        ValueError: invalid norm, model digests or files.
    """
    norm, models = update.about.get("norm", 0.0), update.about.get("models", {})
    if not is_finite(norm):
        raise ValueError(f"a norm of {norm!r:.40}")
    if not isinstance(models, dict) or not all(isinstance(one, str) for one in models.values()):
        raise ValueError("digests of models that are none")
    return files_of(update)
