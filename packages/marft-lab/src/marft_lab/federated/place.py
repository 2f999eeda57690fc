"""Folder of a site: its run, the last given adapters, and its progress in the current round."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from marft.common import atomic
from marft.config.run import CheckpointSettings
from marft.runs.checkpoints import Checkpoints, Record, name_of
from marft.runs.folder import RunFolder
from marft.runs.receiving import make_whole, receive
from marft_lab.federated.parcels import write_folder
from marft_lab.federated.recipes import RUN

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class Begun:
    """Round in progress at a site; the given adapters replace the weights of checkpoint ``since``."""

    round: int
    since: int
    until: int  # training step at which the site sends its update


@dataclass(frozen=True, slots=True)
class Place:
    """Folder of a site.

    ::

        run/           run of the site, as `marft train` writes it
        start/         initial adapters of the run
        given/         last given adapters
        round.json     round in progress
        sent.jsonl     log of sent files
        noise.key      secret key of the noise
        federation.id  identifier of the federation
        site.log       output of the process
    """

    path: Path

    @property
    def run(self) -> RunFolder:
        """The site's run folder."""
        return RunFolder(self.path / RUN)

    @property
    def start(self) -> Path:
        """Folder with the initial adapters."""
        return self.path / "start"

    @property
    def given(self) -> Path:
        """Folder with the last given adapters."""
        return self.path / "given"

    @property
    def journal(self) -> Path:
        """File with the round in progress."""
        return self.path / "round.json"

    @property
    def sent(self) -> Path:
        """Log with the sent files."""
        return self.path / "sent.jsonl"

    @property
    def log(self) -> Path:
        """Log from the site's process."""
        return self.path / "site.log"

    def join(self, federation: str) -> None:
        """Assign the site to a federation, permanently.

        Raises:
            ValueError: the folder belongs to a different federation.
        """
        mark = self.path / "federation.id"
        if not mark.is_file():
            atomic.write_file(mark, federation + "\n")
        elif mark.read_text(encoding="ascii", errors="replace").strip() != federation:
            raise ValueError(
                f"{self.path} is of another federation, whose rounds it counts; give the site another folder (or move "
                "this one away)"
            )

    def begun(self) -> Begun | None:
        """Return the round in progress; None before the first round.

        Raises:
            ValueError: damaged round file.
        """
        if not self.journal.is_file():
            return None
        try:
            return Begun(**atomic.read_json(self.journal))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.journal} is damaged: {error}; take the site's folder from a backup") from error

    def newest(self) -> Record | None:
        """Return the newest checkpoint in the site's run; None before the first checkpoint."""
        if not self.run.is_run():
            return None
        if (begun := self.begun()) is not None:
            make_whole(self.run.checkpoints / name_of(begun.since))
        return Checkpoints(self.run, CheckpointSettings()).newest()[0]

    def begin(self, round_: int, steps: int, files: Mapping[str, bytes]) -> Begun:
        """Begin or resume a round, and put the given adapters in place.

        The method is safe to repeat after any interrupt.

        Args:
            round_: number of the round.
            steps: training steps of the round.
            files: given adapter files, by name.

        Raises:
            ValueError: the checkpoint at the start of the round is missing.
        """
        newest, begun = self.newest(), self.begun()
        step = newest.state.step if newest else 0
        # the last adapters are given in a round without steps; its number may be reused by a later round with steps
        if begun is None or begun.round != round_ or (steps and begun.until == begun.since):
            write_folder(self.given, files)
            begun = Begun(round_, step, step + steps)
            atomic.write_file(self.journal, json.dumps(asdict(begun)) + "\n")
        if step < begun.since:
            raise ValueError(
                f"{self.run.checkpoints}: the checkpoint of step {begun.since}, from which round {round_} began, is "
                "gone or damaged; put it back"
            )
        if newest is None:
            write_folder(self.start, {name: (self.given / name).read_bytes() for name in files})
        elif step == begun.since:
            receive(newest, {policy.name: policy for policy in sorted(self.given.iterdir())})
        return begun

    def noise_key(self) -> bytes:
        """Return the noise generator's key: 256 bits from the operating system, created on first use.

        With a fixed key, a repeated round sends the same update.

        Raises:
            ValueError: damaged key file.
        """
        key = self.path / "noise.key"
        if not key.is_file():
            atomic.write_file(key, secrets.token_bytes(KEY_BYTES), rights=0o600)
        found = key.read_bytes()
        if len(found) != KEY_BYTES:
            raise ValueError(f"{key} is damaged; put it back from a copy, or remove it and another one is drawn")
        return found
