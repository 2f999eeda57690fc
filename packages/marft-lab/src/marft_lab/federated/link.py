"""A site from outside: its process, started when it is needed, and what passes to and from it."""

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

BEGINNING = 0  # the round in which adapters to begin with are asked for


class SiteLostError(Exception):
    """A site cannot send what it was asked for; the message says how that ended, in words of ours."""


class Link:
    """One site. Close it.

    Args:
        folder: of the site.
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
        """What the site has come to. Its process is started where there is none, and again where it ends.

        Args:
            steps: that it learns.
            files: the adapters that it is given; none: those that it begins with are asked for.

        Raises:
            SiteLostError: it cannot, or has ended too often.
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
        """Its process, and whether it is a new one, which has not been told what it is."""
        with self._changing:
            if self._ending:
                raise SiteLostError("was ended")
            if self._child is None:
                command = lambda descriptor: python_here("marft_lab.federated.site", descriptor)  # noqa: E731
                self._child = Child(self.name, command, quiet=True)  # it speaks to a log of its own
                return self._child, True
            return self._child, False

    def end(self) -> None:
        """End its process, whatever it is at; the next question starts another."""
        with self._changing:
            child, self._child = self._child, None
        if child:
            child.close()

    def leave_out(self) -> None:
        """Have whoever waits for an answer hear that there is none, until :meth:`again`."""
        self._ending = True
        with self._changing:  # a process that is being started is waited for: who asks would wait for it for ever
            if self._child:
                self._child.end()

    def again(self) -> None:
        """It may be asked again."""
        self._ending = False

    def close(self) -> None:
        """End it for good."""
        self._ending = True
        self.end()


def _checked(update: Update) -> dict[str, bytes]:
    """The files of an update.

    Raises:
        ValueError: it is none as sites send them.
    """
    norm, models = update.about.get("norm", 0.0), update.about.get("models", {})
    if not is_finite(norm):
        raise ValueError(f"a norm of {norm!r:.40}")
    if not isinstance(models, dict) or not all(isinstance(one, str) for one in models.values()):
        raise ValueError("digests of models that are none")
    return files_of(update)
