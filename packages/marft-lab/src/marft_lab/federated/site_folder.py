"""Folder of a site: its run, the last given adapters, and its progress in the current round."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from marft.common import atomic
from marft.config.run import CheckpointSettings
from marft.runs.adapter_update import recover_checkpoint, replace_adapters
from marft.runs.checkpoints import CheckpointManager, CheckpointRecord, checkpoint_name
from marft.runs.run_folder import RunFolder
from marft_lab.federated.adapter_io import write_adapters
from marft_lab.federated.recipes import RUN_NAME

KEY_BYTES = 32


@dataclass(frozen=True, slots=True)
class RoundProgress:
    """Round in progress at a site; the given adapters replace the weights of checkpoint ``since``."""

    round: int
    since: int
    until: int  # training step at which the site sends its update


@dataclass(frozen=True, slots=True)
class SiteFolder:
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
        return RunFolder(self.path / RUN_NAME)

    @property
    def initial_adapters(self) -> Path:
        """Folder with the initial adapters."""
        return self.path / "start"

    @property
    def given_adapters(self) -> Path:
        """Folder with the last given adapters."""
        return self.path / "given"

    @property
    def round_file(self) -> Path:
        """File with the round in progress."""
        return self.path / "round.json"

    @property
    def sent_log(self) -> Path:
        """Log with the sent files."""
        return self.path / "sent.jsonl"

    @property
    def process_log(self) -> Path:
        """Log from the site's process."""
        return self.path / "site.log"

    def join_federation(self, federation_id: str) -> None:
        """Assign the site to a federation, permanently.

        Raises:
            ValueError: the folder belongs to a different federation.
        """
        id_file = self.path / "federation.id"
        if not id_file.is_file():
            atomic.write_file(id_file, federation_id + "\n")
        elif id_file.read_text(encoding="ascii", errors="replace").strip() != federation_id:
            raise ValueError(
                f"{self.path} is of another federation, whose rounds it counts; give the site another folder (or move "
                "this one away)"
            )

    def read_progress(self) -> RoundProgress | None:
        """Return the round in progress; None before the first round.

        Raises:
            ValueError: damaged round file.
        """
        if not self.round_file.is_file():
            return None
        try:
            return RoundProgress(**atomic.read_json(self.round_file))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{self.round_file} is damaged: {error}; take the site's folder from a backup") from error

    def newest_checkpoint(self) -> CheckpointRecord | None:
        """Return the newest checkpoint in the site's run; None before the first checkpoint."""
        if not self.run.is_run():
            return None
        if (progress := self.read_progress()) is not None:
            recover_checkpoint(self.run.checkpoints / checkpoint_name(progress.since))
        return CheckpointManager(self.run, CheckpointSettings()).newest()[0]

    def start_round(self, round_: int, steps: int, files: Mapping[str, bytes]) -> RoundProgress:
        """Begin or resume a round, and put the given adapters in place.

        The method is safe to repeat after any interrupt.

        Args:
            round_: number of the round.
            steps: training steps of the round.
            files: given adapter files, by name.

        Raises:
            ValueError: the checkpoint at the start of the round is missing.
        """
        newest, progress = self.newest_checkpoint(), self.read_progress()
        step = newest.state.step if newest else 0
        # the last adapters are given in a round without steps; its number may be reused by a later round with steps
        if progress is None or progress.round != round_ or (steps and progress.until == progress.since):
            write_adapters(self.given_adapters, files)
            progress = RoundProgress(round_, step, step + steps)
            atomic.write_file(self.round_file, json.dumps(asdict(progress)) + "\n")
        if step < progress.since:
            raise ValueError(
                f"{self.run.checkpoints}: the checkpoint of step {progress.since}, from which round {round_} began, is "
                "gone or damaged; put it back"
            )
        if newest is None:
            write_adapters(self.initial_adapters, {name: (self.given_adapters / name).read_bytes() for name in files})
        elif step == progress.since:
            replace_adapters(newest, {policy.name: policy for policy in sorted(self.given_adapters.iterdir())})
        return progress

    def read_noise_key(self) -> bytes:
        """Return the noise generator's key: 256 bits from the operating system, created on first use.

        With a fixed key, a repeated round sends the same update.

        Raises:
            ValueError: damaged key file.
        """
        path = self.path / "noise.key"
        if not path.is_file():
            atomic.write_file(path, secrets.token_bytes(KEY_BYTES), mode=0o600)
        data = path.read_bytes()
        if len(data) != KEY_BYTES:
            raise ValueError(f"{path} is damaged; put it back from a copy, or remove it and another one is drawn")
        return data
