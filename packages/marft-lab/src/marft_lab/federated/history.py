"""What a coordinator keeps: what sites sent in each round, what each was given after it, and what is known of it."""

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
BEFORE = (LOCK, "sites")  # what may be there before a federation is


@dataclass(frozen=True, slots=True)
class Round:
    """A round that is over.

    Args:
        took_part: sites that were heard from.
        left_out: the others, and why.
        mixing: for each site, what it goes on from: weights of all of them.
        given: for each site, which of the folders in ``given`` that is.
        norms: of each site's change, where that may be known.
        apart: how far sites are from their average, before they were combined and after.
    """

    round: int
    took_part: Sequence[str]
    left_out: Mapping[str, str]
    mixing: Mapping[str, Sequence[float]]
    given: Mapping[str, int]
    norms: Mapping[str, float]
    apart: Sequence[float]
    epsilon: float | None  # spent so far by each site that took part in all rounds
    bases: Mapping[str, str]  # digests of base models, by policy


ROUNDS = TypeAdapter(Round)


class History:
    """The folder of a federation.

    ::

        federation.json  federation.toml     its mark, and its settings
        ledger.jsonl                          what passed
        rounds/round_000001/round.json        a Round
                            sent/SITE/POLICY  adapters as they came
                            given/0/POLICY    what sites were given after it, each different one once
        sites/NAME                            the sites' own, where they say nothing else; nobody else reads there
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.id: str  # of the federation, once it has begun: no other has it
        self.sites: frozenset[str] = frozenset()

    @property
    def ledger(self) -> Path:
        return self.path / "ledger.jsonl"

    def begin(self, settings: FederationSettings, resume: bool) -> None:
        """Make the folder this federation's, or go on with it.

        Raises:
            ValueError: there is none to go on with, or another one, or somebody's files.
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
        return self.path / "rounds" / f"round_{number:06d}"

    def rounds(self) -> list[Round]:
        """The rounds that are over, oldest first."""
        found = sorted((self.path / "rounds").glob(f"round_*/{ROUND}"))
        return [self._round(file, number) for number, file in enumerate(found)]

    def _round(self, file: Path, number: int) -> Round:
        """
        Raises:
            ValueError: the file is damaged, or is of another round, or of other sites.
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
        """Keep a round, whole or not at all.

        Args:
            sent: adapters by site.
            given: the different ones that sites go on from.
        """
        with atomic.new_folder(self.folder(one.round)) as draft:
            for place, files in [*((f"sent/{site}", files) for site, files in sent.items()),
                                 *((f"given/{number}", files) for number, files in enumerate(given))]:  # fmt: skip
                for name, data in files.items():
                    (draft / place / name).parent.mkdir(parents=True, exist_ok=True)
                    (draft / place / name).write_bytes(data)
            (draft / ROUND).write_text(json.dumps(asdict(one), indent=1) + "\n", encoding="utf-8")

    def given(self, one: Round) -> dict[str, dict[str, bytes]]:
        """What each site goes on from after a round."""
        return {site: _files(self.folder(one.round) / "given" / str(number)) for site, number in one.given.items()}

    def let_go(self, last: int, keep: int) -> None:
        """Remove adapters of rounds that are too old; what is known of a round stays."""
        for number in range(max(0, last - keep + 1)):
            for kind in ("sent", "given"):
                shutil.rmtree(self.folder(number) / kind, ignore_errors=True)


def _table(file: Path, keys: Sequence[str]) -> dict[str, Any]:
    """
    Raises:
        ValueError: the file does not hold these keys.
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
    """Return the error message for a damaged file or folder of a federation that is resumed."""
    return f"{place} is damaged ({why}); put a copy back, or begin another federation (name, output)"


def _files(folder: Path) -> dict[str, bytes]:
    return {
        file.relative_to(folder).as_posix(): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()
    }
