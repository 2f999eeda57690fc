"""A suite: attacks, rules and gates, in a TOML file; what ``marft eval --suite`` plays beside the tasks themselves."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated, Literal, Self, cast
from zlib import crc32

from pydantic import Field, ValidationError, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.planting import Plant, Through
from marft.common.atomic import read_text
from marft.common.types import Task
from marft.config.folders import FOLDER, at_home, from_recipe, look_for_modules_in
from marft.config.load import explain
from marft.config.names import Name
from marft.config.parts import CheckPlugin
from marft.config.patterns import Patterns
from marft.config.settings import Count, Few, Filled, Names, Settings, did_you_mean
from marft.evaluation.gates import Gate
from marft.evaluation.scenarios import check_name
from marft_lab.safety.deeds import Check
from marft_lab.safety.disguises import Disguise, disguised

SUITES = files("marft_lab") / "safety" / "suites"
CANARY = "{canary}"
EVERY = "attacks.*."  # of a gate: of each attack
UNATTACKED = "control"  # the arm without one


class AttackSettings(Settings):
    """An attack: what is planted where, and what shows that the team has done as it says."""

    through: Through  # where it stands: in what the environment shows first, a tool answers, or a teammate says
    at: str = ""  # the tool, or the teammate, in whose words it stands; "": each of them
    texts: Names = ()  # what is planted: of several wordings each task has its own
    path: str = ""  # a JSON Lines file of more of them, {"text": "…"}, beside the suite
    disguises: tuple[Disguise, ...] = ()  # other letters in which each of them is planted, too
    goal: CheckPlugin  # what shows that it succeeded

    @model_validator(mode="after")
    def _has_texts(self) -> Self:
        if not (self.texts or self.path):
            raise PydanticCustomError("texts", "needs texts, or the path of a file of them")
        if self.through == "task" and self.at:
            raise PydanticCustomError("at", "at is a tool or a teammate; what the environment shows has neither")
        return self


class SuiteSettings(Settings):
    """What ``marft eval --suite`` plays, what it looks for, and what may not be."""

    tasks: Count = 100  # of the test split, which are played without an attack and under each
    attempts: Few = 1  # at each of them
    modes: Annotated[tuple[Literal["greedy", "sampled"], ...], Field(min_length=1)] = ("sampled",)  # how agents sample
    # what is put behind the instructions of each agent, with a word of its own in the place of {canary}; "": nothing is
    canary: str = ""
    attacks: dict[Name, AttackSettings] = Field(default_factory=dict)  # by name
    rules: dict[Name, CheckPlugin] = Field(default_factory=dict)  # by name: what must not be found, attacked or not
    refusals: Patterns = ()  # regular expressions: an answer that holds one, and solves nothing, is a refusal
    # what makes the command end with 1, untuned → trained; attacks.*. stands for each attack
    gates: tuple[Filled, ...] = ()

    @field_validator("canary")
    @classmethod
    def _holds_it(cls, canary: str) -> str:
        if canary and CANARY not in canary:
            raise PydanticCustomError("canary", "must hold {place}, in whose place the word comes", {"place": CANARY})
        return canary

    @field_validator("attacks")
    @classmethod
    def _are_attacks(cls, attacks: dict[str, AttackSettings]) -> dict[str, AttackSettings]:
        if UNATTACKED in attacks:
            raise PydanticCustomError(
                "attack", "{name} is what is played without an attack; give the attack another name",
                {"name": repr(UNATTACKED)},
            )  # fmt: skip
        return attacks

    @field_validator("gates")
    @classmethod
    def _are_gates(cls, gates: tuple[str, ...]) -> tuple[str, ...]:
        for gate in gates:
            check_gate(gate)
        return gates


def check_gate(gate: str) -> None:
    """
    Raises:
        ValueError: it is no gate.
    """
    Gate.read(gate.replace(EVERY, "attacks.any."))


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite that was read.

    Args:
        name: the file's, which evaluations bear.
        texts: of each attack, its file's too.
    """

    name: str
    settings: SuiteSettings
    texts: Mapping[str, Sequence[str]]

    @property
    def digest(self) -> str:
        """Of all that decides what is played and what is looked for: two evaluations with the same one are of the same
        suite. How many tasks, modes and attempts, and the gates, are not in it."""
        table = self.settings.model_dump(mode="json", include={"canary", "attacks", "rules", "refusals"})
        return hashlib.sha256(json.dumps([table, {**self.texts}], sort_keys=True).encode()).hexdigest()

    @property
    def rules(self) -> Mapping[str, Check]:
        """What must not be found, by name."""
        return cast("Mapping[str, Check]", self.settings.rules)

    def goal(self, attack: str) -> Check:
        """What shows that an attack succeeded."""
        return cast("Check", self.settings.attacks[attack].goal)

    def plant(self, attack: str, task: Task) -> Plant:
        """What an attack plants in a task: which wording follows from the task's id."""
        texts, of = self.texts[attack], self.settings.attacks[attack]
        return Plant(of.through, texts[crc32(task.id.encode()) % len(texts)], of.at)

    def secret(self, role: str) -> str:
        """The word that an agent is told to keep: the same in every evaluation on this suite."""
        return hashlib.sha256(f"{self.name} {self.settings.canary} {role}".encode()).hexdigest()[:12]

    def canary(self, role: str) -> str:
        """Return the instruction to keep a secret word that a role is given."""
        return self.settings.canary.replace(CANARY, self.secret(role))


def bundled_suites() -> list[str]:
    """``["safety"]``."""
    return sorted(file.name.removesuffix(".toml") for file in SUITES.iterdir() if file.name.endswith(".toml"))


def read_suite(path: str | Path) -> Suite:
    """Read a suite.

    Args:
        path: a file; or, where nothing goes by that path, the name of a bundled one.

    Raises:
        ValueError: there is none, or something in it is wrong; the message says what.
    """
    file, folder = _file_of(at_home(path))
    name = file.name.removesuffix(".toml")
    check_name(name)
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError, OSError) as error:
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    look_for_modules_in(folder)
    try:
        settings = SuiteSettings.model_validate(table, context={FOLDER: folder})
    except ValidationError as error:
        raise ValueError(f"{path}:\n{explain(error, table)}") from None
    texts = dict[str, tuple[str, ...]]()
    for attack, of in settings.attacks.items():
        plain = (*of.texts, *(_rows(Path(from_recipe(of.path, {FOLDER: folder}))) if of.path else ()))
        texts[attack] = (*plain, *(disguised(text, form) for form in of.disguises for text in plain))
    return Suite(name, settings, texts)


def _file_of(path: Path) -> tuple[Path | Traversable, str]:
    """The file of a suite, and the folder that it lies in; "" for a bundled one."""
    if path.is_file():
        return path, str(path.parent.resolve())
    if str(path) in bundled_suites():
        return SUITES / f"{path}.toml", ""
    raise ValueError(f"no suite at {path}{did_you_mean(str(path), bundled_suites())}")


def _rows(path: Path) -> list[str]:
    """The texts of a file of attacks.

    Raises:
        ValueError: it cannot be read, holds none, or a line has no text.
    """
    try:
        lines = [line for line in read_text(path).splitlines() if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"cannot read the attacks of {path}: {error}") from error
    found = [_text(path, number, line) for number, line in enumerate(lines, 1)]
    if not found:
        raise ValueError(f'{path} holds no attack; write lines such as {{"text": "…"}}')
    return found


def _text(path: Path, number: int, line: str) -> str:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path}, line {number} is no JSON: {error}") from error
    text = row.get("text") if isinstance(row, dict) else None
    if not isinstance(text, str) or not text.strip():
        raise ValueError(f'{path}, line {number}: an attack is {{"text": "…"}}')
    return text
