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
from marft_lab.federated.settings import FederationSettings, refuse_other

FORMAT = "a federation of MARFT, 1"
MARK, SETTINGS, ROUND = "federation.json", "federation.toml", "round.json"
LOCK = "federation.lock"
BEFORE = (LOCK, "sites")  # files allowed in the folder before the federation starts


@dataclass(frozen=True, slots=True)
class Round:
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


ROUNDS = TypeAdapter(Round)


class History:
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
    def ledger(self) -> Path:
        """Path to the transfer log."""
        return self.path / "ledger.jsonl"

    def begin(self, settings: FederationSettings, resume: bool) -> None:
        """Create the federation in the folder, or resume the federation.

        Args:
            settings: settings of the federation.
            resume: True to resume.

        Raises:
            ValueError: no federation to resume, an existing federation without ``resume``, different settings, or
                foreign files in the folder.
        """
        table = settings.model_dump(mode="json", exclude_none=True)
        there = (self.path / MARK).is_file()
        if resume and not there:
            raise ValueError(f"no federation at {self.path}; leave out --resume")
        if not resume and there:
            raise ValueError(f"a federation is in {self.path} already; go on with it (--resume), or set another name")
        if resume:
            mark = _table(self.path / MARK, ("id", "settings"))
            if not isinstance(mark["id"], str) or not isinstance(mark["settings"], dict):
                raise ValueError(damaged(self.path / MARK, "its id is no text, or its settings are no table"))
            refuse_other(mark["settings"], table)
            atomic.remove_unfinished(self.path / "rounds")
        foreign = [file.name for file in self.path.iterdir() if file.name not in BEFORE and not atomic.is_draft(file)]
        if foreign and not there:
            raise ValueError(f"{self.path} holds {foreign[0]}, which no federation wrote; set another name or output")
        self.sites = frozenset(settings.sites)
        self.id = mark["id"] if resume else secrets.token_hex(8)
        told = {"format": FORMAT, "id": self.id, "settings": table}
        atomic.write_file(self.path / MARK, json.dumps(told, indent=2) + "\n", atomic.OWN)
        atomic.write_file(self.path / SETTINGS, tomli_w.dumps(table), atomic.OWN)

    def folder(self, number: int) -> Path:
        """Return a round's folder."""
        return self.path / "rounds" / f"round_{number:06d}"

    def rounds(self) -> list[Round]:
        """Return the records of the finished rounds, oldest first."""
        found = sorted((self.path / "rounds").glob(f"round_*/{ROUND}"))
        return [self._round(file, number) for number, file in enumerate(found)]

    def _round(self, file: Path, number: int) -> Round:
        """Read a round's record.

        Raises:
            ValueError: the file is damaged, or belongs to a different round or to different sites.
        """
        table = _table(file, [field.name for field in fields(Round)])
        try:
            found = ROUNDS.validate_python(table)
        except ValidationError as error:
            first = error.errors()[0]
            raise ValueError(damaged(file, f"{first['loc'][0]}: {first['msg']}")) from None
        if found.round != number or file.parent != self.folder(number):
            raise ValueError(damaged(file, f"it is of round {found.round}, in the place of round {number}"))
        if self.sites and found.given.keys() != self.sites:
            raise ValueError(damaged(file, f"it gives to {', '.join(found.given)}"))
        return found

    def write(self, one: Round, sent: Mapping[str, Mapping[str, bytes]], given: Sequence[Mapping[str, bytes]]) -> None:
        """Write a round atomically.

        Args:
            one: record of the round.
            sent: received adapter files, by site.
            given: distinct sets of adapter files given to sites.
        """
        with atomic.new_folder(self.folder(one.round)) as draft:
            for place, files in [*((f"sent/{site}", files) for site, files in sent.items()),
                                 *((f"given/{number}", files) for number, files in enumerate(given))]:  # fmt: skip
                for name, data in files.items():
                    (draft / place / name).parent.mkdir(parents=True, exist_ok=True)
                    (draft / place / name).write_bytes(data)
            (draft / ROUND).write_text(json.dumps(asdict(one), indent=1) + "\n", encoding="utf-8")

    def given(self, one: Round) -> dict[str, dict[str, bytes]]:
        """Return the adapter files given to each site after a round."""
        return {site: _files(self.folder(one.round) / "given" / str(number)) for site, number in one.given.items()}

    def let_go(self, last: int, keep: int) -> None:
        """Remove adapters from old rounds; records stay.

        Args:
            last: last finished round.
            keep: number of newest rounds to keep.
        """
        for number in range(max(0, last - keep + 1)):
            for kind in ("sent", "given"):
                shutil.rmtree(self.folder(number) / kind, ignore_errors=True)


def _table(file: Path, keys: Sequence[str]) -> dict[str, Any]:
    """Read a JSON object with required keys.

    Raises:
        ValueError: the file is damaged or lacks a key.
    """
    try:
        table = atomic.read_json(file)
    except ValueError as error:
        table, why = None, str(error)
    else:
        why = f"it is no object of {', '.join(keys)}"
    if not isinstance(table, dict) or not table.keys() >= {*keys}:
        raise ValueError(damaged(file, why))
    return {key: table[key] for key in keys}


def damaged(place: Path, why: str) -> str:
    """Return the error message for a damaged file or folder of a resumed federation."""
    return f"{place} is damaged ({why}); put a copy back, or begin another federation (name, output)"


def _files(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()
    }
