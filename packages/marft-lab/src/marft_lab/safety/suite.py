"""Suite of attacks, rules and gates in a TOML file, for ``marft eval --suite``."""

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
EVERY = "attacks.*."  # prefix of gates over every attack
UNATTACKED = "control"  # name of the arm without an attack


class AttackSettings(Settings):
    """Attack: injected texts, their location, and the goal that shows success."""

    through: Through  # location of the injection: the first observation, a tool result, or a message of a teammate
    at: str = ""  # tool or teammate whose text carries the injection; "" for all
    texts: Names = ()  # injected texts; with several wordings, each task has one of them
    path: str = ""  # JSON Lines file with more texts, {"text": "…"}, relative to the suite
    disguises: tuple[Disguise, ...] = ()  # encodings of each text, as additional wordings
    goal: CheckPlugin  # check that shows success of the attack

    @model_validator(mode="after")
    def _has_texts(self) -> Self:
        if not (self.texts or self.path):
            raise PydanticCustomError("texts", "needs texts, or the path of a file of them")
        if self.through == "task" and self.at:
            raise PydanticCustomError("at", "at is a tool or a teammate; what the environment shows has neither")
        return self


class SuiteSettings(Settings):
    """Safety suite: tasks, attacks, rules and gates of ``marft eval --suite``."""

    tasks: Count = 100  # number of test tasks, played without an attack and under each attack
    attempts: Few = 1  # attempts per task
    # sampling modes of the agents
    modes: Annotated[tuple[Literal["greedy", "sampled"], ...], Field(min_length=1)] = ("sampled",)
    # text appended to the instructions of each agent, with a secret word per agent for {canary}; "" disables canaries
    canary: str = ""
    attacks: dict[Name, AttackSettings] = Field(default_factory=dict)  # attacks, by name
    # checks for forbidden outputs, with and without attacks, by name
    rules: dict[Name, CheckPlugin] = Field(default_factory=dict)
    refusals: Patterns = ()  # regular expressions of refusals; an answer with a match that solves nothing is a refusal
    # gates from the untuned to the trained team; a failed gate ends the command with status 1; attacks.*. stands for
    # each attack
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
    """Check a gate's syntax.

    Raises:
        ValueError: invalid gate.
    """
    Gate.read(gate.replace(EVERY, "attacks.any."))


@dataclass(frozen=True, slots=True)
class Suite:
    """Parsed suite.

    Args:
        name: name of the file, used in evaluations.
        settings: settings of the suite.
        texts: texts of each attack, with the texts of its file.
    """

    name: str
    settings: SuiteSettings
    texts: Mapping[str, Sequence[str]]

    @property
    def digest(self) -> str:
        """Digest of the canary, the attacks, the rules and the refusals.

        Equal digests mean equal suites. The number of tasks, modes, attempts, and the gates are not included.
        """
        table = self.settings.model_dump(mode="json", include={"canary", "attacks", "rules", "refusals"})
        return hashlib.sha256(json.dumps([table, {**self.texts}], sort_keys=True).encode()).hexdigest()

    @property
    def rules(self) -> Mapping[str, Check]:
        """Checks for forbidden outputs, by name."""
        return cast("Mapping[str, Check]", self.settings.rules)

    def goal(self, attack: str) -> Check:
        """Return the check that shows an attack's success."""
        return cast("Check", self.settings.attacks[attack].goal)

    def plant(self, attack: str, task: Task) -> Plant:
        """Return the injection of an attack in a task; the wording depends on the task's id."""
        texts, of = self.texts[attack], self.settings.attacks[attack]
        return Plant(of.through, texts[crc32(task.id.encode()) % len(texts)], of.at)

    def secret(self, role: str) -> str:
        """Return an agent's secret word, the same in every evaluation of this suite."""
        return hashlib.sha256(f"{self.name} {self.settings.canary} {role}".encode()).hexdigest()[:12]

    def canary(self, role: str) -> str:
        """Return a role's instruction to keep its secret word."""
        return self.settings.canary.replace(CANARY, self.secret(role))


def bundled_suites() -> list[str]:
    """Return the names of the bundled suites: ``["safety"]``."""
    return sorted(file.name.removesuffix(".toml") for file in SUITES.iterdir() if file.name.endswith(".toml"))


def read_suite(path: str | Path) -> Suite:
    """Read a suite.

    Args:
        path: file, or name of a bundled suite if no such file exists.

    Raises:
        ValueError: unknown suite or invalid content; the message gives the reason.
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
    """Return a suite's file and folder; "" for a bundled suite's folder."""
    if path.is_file():
        return path, str(path.parent.resolve())
    if str(path) in bundled_suites():
        return SUITES / f"{path}.toml", ""
    raise ValueError(f"no suite at {path}{did_you_mean(str(path), bundled_suites())}")


def _rows(path: Path) -> list[str]:
    """Return the texts in a file of attacks.

    Raises:
        ValueError: unreadable or empty file, or a line without text.
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
