"""What a site has of its own: a run, what it was given last, and where in which round it is."""

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
    """The round that a site is in: what it was given stands for its weights at step ``since``."""

    round: int
    since: int
    until: int  # the step at which it sends


@dataclass(frozen=True, slots=True)
class Place:
    """The folder of a site.

    ::

        run/           its run, as `marft train` writes it
        start/         adapters that the run began with
        given/         adapters that it was given last
        round.json     where it is
        sent.jsonl     what has left it
        noise.key      what its noise is drawn with; nobody else's to know
        federation.id  of the federation that it is in
        site.log       what it has said
    """

    path: Path

    @property
    def run(self) -> RunFolder:
        return RunFolder(self.path / RUN)

    @property
    def start(self) -> Path:
        return self.path / "start"

    @property
    def given(self) -> Path:
        return self.path / "given"

    @property
    def journal(self) -> Path:
        return self.path / "round.json"

    @property
    def sent(self) -> Path:
        return self.path / "sent.jsonl"

    @property
    def log(self) -> Path:
        return self.path / "site.log"

    def join(self, federation: str) -> None:
        """Assign the site to a federation, for good.

        Raises:
            ValueError: it is another one's.
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
        """Return the round that the site has begun; None if there is none.

        Raises:
            ValueError: what says so is damaged.
        """
        if not self.journal.is_file():
            return None
        try:
            return Begun(**atomic.read_json(self.journal))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.journal} is damaged: {error}; take the site's folder from a backup") from error

    def newest(self) -> Record | None:
        """The newest checkpoint of its run."""
        if not self.run.is_run():
            return None
        if (begun := self.begun()) is not None:
            make_whole(self.run.checkpoints / name_of(begun.since))
        return Checkpoints(self.run, CheckpointSettings()).newest()[0]

    def begin(self, round_: int, steps: int, files: Mapping[str, bytes]) -> Begun:
        """Begin a round, or go on with it: what was given is in its place, however often this is stopped.

        Args:
            files: the adapters that are given, as they arrived.

        Raises:
            ValueError: what the round began from is gone.
        """
        newest, begun = self.newest(), self.begun()
        step = newest.state.step if newest else 0
        # the last round's adapters are given in a round of no steps, whose number is the next one's if there is one yet
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
        """What its noise is drawn with: 256 bits, drawn once from the system, so that a round that is done again is the
        same.

        Raises:
            ValueError: they are damaged.
        """
        key = self.path / "noise.key"
        if not key.is_file():
            atomic.write_file(key, secrets.token_bytes(KEY_BYTES), rights=0o600)
        found = key.read_bytes()
        if len(found) != KEY_BYTES:
            raise ValueError(f"{key} is damaged; put it back from a copy, or remove it and another one is drawn")
        return found
