"""Federation folder: received adapters, given adapters and a record per round."""

from __future__ import annotations

import json
import secrets
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import TypeAdapter, ValidationError

from marft.common import atomic
from marft.common.errors import UserError
from marft.config.load import first_problem
from marft_lab.federated.settings import FederationSettings, check_unchanged

FORMAT = "a federation of MARFT, 1"
IDENTITY_FILE, SETTINGS_FILE, ROUND_FILE = "federation.json", "federation.toml", "round.json"
LOCK_FILE = "federation.lock"
ALLOWED_FILES = (LOCK_FILE, "sites")  # files allowed in the folder before the federation starts


@dataclass(frozen=True, slots=True)
class RoundRecord:
    """Record of a finished round.

    Args:
        round: number of the round; 0 for the start.
        took_part: sites that replied.
        left_out: missing sites, with the reasons.
        mixing: for each site, its row of mixing weights over all sites.
        given: for each site, the index of its folder in ``given``.
        norms: L2 norm of each site's change, if the privacy settings permit.
        apart: distance of the sites from their average, before and after aggregation.
        epsilon: privacy budget ε spent so far by each site that took part in all rounds; None without noise.
        bases: digests of the base models, by policy.
    """

    round: int
    took_part: Sequence[str]
    left_out: Mapping[str, str]
    mixing: Mapping[str, Sequence[float]]
    given: Mapping[str, int]
    norms: Mapping[str, float]
    apart: Sequence[float]
    epsilon: float | None  # ε spent so far by each site that took part in all rounds
    bases: Mapping[str, str]  # digests of base models, by policy


ROUND_ADAPTER = TypeAdapter(RoundRecord)


class FederationFolder:
    """Folder of a federation.

    ::

        federation.json  federation.toml     identity and settings
        ledger.jsonl                          transfer log
        rounds/round_000001/round.json        record of the round
                            sent/SITE/POLICY  received adapters
                            given/0/POLICY    distinct adapters given to sites after the round
        sites/NAME                            default folder of a site, only read by the site
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id: str  # unique identifier of the federation, set by begin
        self.sites: frozenset[str] = frozenset()

    @property
    def transfer_log(self) -> Path:
        """Path to the transfer log."""
        return self.path / "ledger.jsonl"

    def create_or_resume(self, settings: FederationSettings, resume: bool) -> None:
        """Create the federation in the folder, or resume the federation.

        Args:
            settings: settings of the federation.
            resume: True to resume.

        Raises:
            UserError: no federation to resume, an existing federation without ``resume``, different settings, or
                foreign files in the folder.
        """
        table = settings.model_dump(mode="json", exclude_none=True)
        exists = (self.path / IDENTITY_FILE).is_file()
        if resume and not exists:
            raise UserError(f"no federation at {self.path}; leave out --resume")
        if not resume and exists:
            raise UserError(f"a federation is in {self.path} already; go on with it (--resume), or set another name")
        if resume:
            mark = _read_table(self.path / IDENTITY_FILE, ("id", "settings"))
            if not isinstance(mark["id"], str) or not isinstance(mark["settings"], dict):
                raise UserError(
                    damage_message(self.path / IDENTITY_FILE, "its id is no text, or its settings are no table")
                )
            check_unchanged(mark["settings"], table)
            atomic.remove_temp_entries(self.path / "rounds")
        foreign = [
            file.name
            for file in self.path.iterdir()
            if file.name not in ALLOWED_FILES and not atomic.is_temp_file(file)
        ]
        if foreign and not exists:
            raise UserError(f"{self.path} holds {foreign[0]}, which no federation wrote; set another name or output")
        self.sites = frozenset(settings.sites)
        self.id = mark["id"] if resume else secrets.token_hex(8)
        identity = {"format": FORMAT, "id": self.id, "settings": table}
        atomic.write_file(self.path / IDENTITY_FILE, json.dumps(identity, indent=2) + "\n", atomic.PRIVATE_MODE)
        atomic.write_file(self.path / SETTINGS_FILE, tomli_w.dumps(table), atomic.PRIVATE_MODE)

    def round_folder(self, number: int) -> Path:
        """Return a round's folder."""
        return self.path / "rounds" / f"round_{number:06d}"

    def read_rounds(self) -> list[RoundRecord]:
        """Return the records of the finished rounds, oldest first."""
        files = sorted((self.path / "rounds").glob(f"round_*/{ROUND_FILE}"))
        return [self._read_round(file, number) for number, file in enumerate(files)]

    def _read_round(self, file: Path, number: int) -> RoundRecord:
        """Read a round's record.

        Raises:
            UserError: the file is damaged, or belongs to a different round or to different sites.
        """
        table = _read_table(file, [field.name for field in fields(RoundRecord)])
        try:
            record = ROUND_ADAPTER.validate_python(table)
        except ValidationError as error:
            raise UserError(damage_message(file, first_problem(error))) from None
        if record.round != number or file.parent != self.round_folder(number):
            raise UserError(damage_message(file, f"it is of round {record.round}, in the place of round {number}"))
        if self.sites and record.given.keys() != self.sites:
            raise UserError(damage_message(file, f"it gives to {', '.join(record.given)}"))
        return record

    def write_round(
        self, record: RoundRecord, sent: Mapping[str, Mapping[str, bytes]], given_files: Sequence[Mapping[str, bytes]]
    ) -> None:
        """Write a round atomically.

        Args:
            record: record of the round.
            sent: received adapter files, by site.
            given_files: distinct sets of adapter files given to sites.
        """
        with atomic.new_folder(self.round_folder(record.round)) as draft:
            for subfolder, files in [
                *((f"sent/{site}", files) for site, files in sent.items()),
                *((f"given/{number}", files) for number, files in enumerate(given_files)),
            ]:
                for name, data in files.items():
                    (draft / subfolder / name).parent.mkdir(parents=True, exist_ok=True)
                    (draft / subfolder / name).write_bytes(data)
            (draft / ROUND_FILE).write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")

    def read_given(self, record: RoundRecord) -> dict[str, dict[str, bytes]]:
        """Return the adapter files given to each site after a round."""
        return {
            site: _read_files(self.round_folder(record.round) / "given" / str(number))
            for site, number in record.given.items()
        }

    def prune(self, last: int, keep: int) -> None:
        """Remove adapters from old rounds; records stay.

        Args:
            last: last finished round.
            keep: number of newest rounds to keep.
        """
        for number in range(max(0, last - keep + 1)):
            for kind in ("sent", "given"):
                shutil.rmtree(self.round_folder(number) / kind, ignore_errors=True)


def _read_table(file: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Read a JSON object with required keys.

    Raises:
        UserError: the file is damaged or lacks a key.
    """
    try:
        table = atomic.read_json(file)
    except ValueError as error:
        table, reason = None, str(error)
    else:
        reason = f"it is no object of {', '.join(keys)}"
    if not isinstance(table, dict) or not table.keys() >= {*keys}:
        raise UserError(damage_message(file, reason))
    return {key: table[key] for key in keys}


def damage_message(path: Path, reason: str) -> str:
    """Return the error message for a damaged file or folder of a resumed federation."""
    return f"{path} is damaged ({reason}); put a copy back, or begin another federation (name, output)"


def _read_files(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()
    }
