"""What of a run's recipe goes into an export: all that the team needs to act again, and nothing of the machine that it
was trained on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from marft.agents.environment import Session, Split
from marft.common.ownership import is_ours
from marft.common.types import Task
from marft.common.user_modules import CODE
from marft.config.keys import SECRET, secrets_in
from marft.config.parts import EnvironmentPart
from marft.config.plugins import module_in, their_module_in
from marft.runs.export.code import files_of, root_of, scripts_of, versions_of

KEPT = ("name", "seed", "models", "policies", "tools", "agents", "team", "channel", "environment", "rewards", "rollout",
        "evaluation")  # fmt: skip
PROGRAM = "program"  # the organization
STAND_IN = "marft.runs.export.recipe:NotExported"
SKILLS, TEMPLATES, MODELS, POLICIES = "skills", "templates", "models", "policies"
TRUST = "--trust-code"
PARTS = ("name", "organization", "kind")  # keys that name a class of parts, which must be one of that kind
EXAMPLES = (
    "marft_serve.examples.openai_team:solve",
    "marft.examples.orders:multiply",
)  # functions that are meant to be named
MAKERS = ("env", "parallel_env", "raw_env")  # what a module of PettingZoo's has for whoever plays its game
Key = tuple[str | int, ...]


class NotExported(EnvironmentPart):
    """Stands in an export's recipe for an environment of the author's own: its code or data was left out."""

    one_step: ClassVar[bool] = True

    def tasks(self, split: Split) -> list[Task]:  # noqa: ARG002
        """None.

        Raises:
            ValueError: always; the message says what to do.
        """
        raise ValueError(
            "the environment was left out of this export (team.json says why, under left_out); name one to evaluate "
            "on: --environment \"{ name = 'table', path = 'rows.csv', … }\""
        )

    def start(self, task: Task, seed: int) -> Session:  # noqa: ARG002
        """Nothing can be played.

        Raises:
            ValueError: always.
        """
        raise ValueError("the environment was left out of this export")


@dataclass(slots=True)
class Shipped:
    """A recipe to ship, and what goes with it.

    Args:
        table: the recipe; where its values are paths they are relative to the export, and ``paths`` has their keys.
        code: files of the author's own, by where they go.
        copied: folders and files beside them: skills, chat templates.
        packages: top names of packages that the code imports.
        left_out: in sentences.
    """

    table: dict[str, Any]
    paths: list[str] = field(default_factory=list)
    code: dict[str, Path] = field(default_factory=dict)
    copied: dict[str, Path] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)

    def requires(self) -> dict[str, str]:
        """The packages, with the versions that are here."""
        return versions_of(self.packages)

    def source(self, name: str) -> Path | None:
        """The file that one of the export is a copy of; None where it is written for it."""
        known = {**self.code, **self.copied}
        for place in (PurePosixPath(name), *PurePosixPath(name).parents):
            if str(place) in known:
                return known[str(place)] / PurePosixPath(name).relative_to(place)
        return None


def shipped(recipe: Mapping[str, Any], folder: Path) -> Shipped:
    """What of a recipe goes into an export. Policies and local models are for :mod:`.weights` to fill in.

    Args:
        recipe: complete, as it is written down.
        folder: that its paths and modules are in.
    """
    table = {key: deepcopy(value) for key, value in recipe.items() if key in KEPT}
    # helpers are no part of it
    played = {agent.get("policy") for agent in table["agents"]}
    table["policies"] = {name: policy for name, policy in table.get("policies", {}).items() if name in played}
    table["rollout"] = {key: table["rollout"][key] for key in ("max_steps", "timeout_seconds")}
    out = Shipped(table)
    _without_secrets(out)
    for name, model in table["models"].items():
        if model.get("chat_template"):
            target = f"{TEMPLATES}/{name}.jinja"
            out.copied[target] = Path(model["chat_template"])
            model["chat_template"] = target
            out.paths.append(f"models.{name}.chat_template")
    _skills(out)
    for key in [("team",), ("channel",), *(("tools", name) for name in table.get("tools", {}))]:
        _needed(out, key, folder)
    out.left_out += _engine(recipe.get("engine", {}).get("kind", "local"))
    _judged(out, folder)
    return out


def runs_code(table: Mapping[str, Any]) -> list[str]:
    """What of a recipe runs code or programs that are not MARFT's, or sends something somewhere, keys of the
    environment with it: whoever did not write it should read it first."""
    found, commands = list[str](), dict[Key, list[str]]()
    environment = table.get("environment")
    named = isinstance(environment, Mapping) and environment.get("name") == "pettingzoo"
    for key, value in texts_in(table, ()):
        if key[-2:-1] == ("command",) and isinstance(key[-1], int):
            commands.setdefault(key[:-1], []).append(value)
        elif _is_code(key, value, named) or (key[-1] in ("command", "python", "url") and value):
            found.append(f"{dotted(key)} = {value}")
    return [*found, *(f"{dotted(key)} = {' '.join(words)}" for key, words in commands.items())]


def _is_code(key: Key, value: str, games_are_modules: bool) -> bool:
    """Return whether a text names code to run: the author's, or a function of MARFT's that may do anything with what a
    model says.

    Args:
        games_are_modules: as PettingZoo has them; an id of Gymnasium's may begin with one (``module:Game-v0``).
    """
    if key == ("environment", "game"):
        module, colon, name = value.partition(":")
        if module.partition(".")[0] in ("pettingzoo", "gymnasium"):
            return bool(module_in(value)) and name not in MAKERS
        return bool(colon or "." in module) or games_are_modules
    own = is_ours(module_in(value)) and key[-1] not in PARTS and value not in EXAMPLES
    return own or bool(their_module_in(value))


def trust_flag(table: Mapping[str, Any]) -> str:
    """What ``marft eval`` and ``marft serve`` are told beside an export, after a space; "" where it runs nothing."""
    return f" {TRUST}" if runs_code(table) else ""


def _engine(kind: str) -> list[str]:
    """What is said of the engine, which stays behind: a copy of the in-process one is no loss, whoever has vLLM can ask
    for it, and code of the author's own is needed by none."""
    if kind in ("local", "process"):
        return []
    if their_module_in(kind):
        return ["engine: one of the author's own; the in-process engine samples in its place"]
    return [
        f"engine: {kind}, which may not be where this is read; the in-process engine samples in its place, unless it "
        f"is asked for with --engine \"{{ kind = '{kind}' }}\""
    ]


def _without_secrets(out: Shipped) -> None:
    """Take out what stands under names that sound like secrets: an endpoint's options, a tool's keys."""
    for name, model in out.table["models"].items():
        options = (model.get("endpoint") or {}).get("options", {})
        for option in [option for option, value in options.items() if any(secrets_in({option: value}))]:
            del options[option]
            out.left_out.append(f"models.{name}.endpoint.options.{option}: it may be a secret; give your own")
    for name, tool in out.table.get("tools", {}).items():
        secret = [key for key, value in tool.items() if SECRET.search(key) and isinstance(value, str) and value]
        for key in secret:
            del tool[key]
            out.left_out.append(f"tools.{name}.{key}: it may be a secret; give your own")


def _skills(out: Shipped) -> None:
    for number, agent in enumerate(out.table["agents"]):
        names: list[str] = []
        for skill in agent.get("skills", []):
            target = f"{SKILLS}/{Path(skill).name}"
            if out.copied.get(target, Path(skill)) != Path(skill):  # another one of that name
                target += f"-{len(out.copied)}"
            out.copied[target] = Path(skill)
            out.paths.append(f"agents.{number}.skills.{len(names)}")
            names.append(target)
        if names:
            agent["skills"] = names


def _needed(out: Shipped, key: Key, folder: Path) -> None:
    """A part that the team cannot act without: its code goes along, and what is of this machine is named."""
    part = _at(out.table, key)
    for _, value in list(texts_in(part, key)):
        module = their_module_in(value)
        if module:
            root = root_of(module)
            if root is None:
                out.packages.add(module.partition(".")[0])
                continue
            files, others = files_of([module], root)
            out.code |= {f"{CODE}/{name}": file for name, file in files.items()}
            out.packages |= others
    if part.get("command"):
        _command(out, key, part, folder)
    elif part.get("organization") == PROGRAM:
        _works_in_code(out, key, part, folder)
    for name, value in list(part.items()):
        if any(_of_this_machine(text) for _, text in texts_in(value, ())):
            del part[name]
            out.left_out.append(f"{dotted((*key, name))}: it names a place on the machine of training; give your own")


def _command(out: Shipped, key: Key, part: dict[str, Any], folder: Path) -> None:
    """Programs that lie in the folder that a command works in go along, and the command works there."""
    works = Path(part.get("folder") or folder)
    scripts = [works / word for word in part["command"] if not Path(word).is_absolute() and (works / word).is_file()]
    files, others = scripts_of(scripts, works)
    out.code |= {f"{CODE}/{name}": file for name, file in files.items()}
    out.packages |= others
    _works_in_code(out, key, part, folder)


def _works_in_code(out: Shipped, key: Key, part: dict[str, Any], folder: Path) -> None:
    """A program works where its code lies in the export; without code of its own, where whoever reads that does."""
    if out.code:
        part["folder"] = CODE
        out.paths.append(dotted((*key, "folder")))
    elif Path(part.get("folder") or folder) == folder:
        part.pop("folder", None)


def _judged(out: Shipped, folder: Path) -> None:
    """Environment and rewards say what an answer is worth: they go along where they need nothing of the author's."""
    kept = []
    for number, reward in enumerate(out.table.get("rewards", [])):
        why = _foreign(reward, folder)
        if why:
            out.left_out.append(f"rewards.{number} ({reward['name']}): {why}")
        else:
            kept.append(reward)
    out.table["rewards"] = kept
    why = _foreign(out.table["environment"], folder)
    if why:
        out.left_out.append(f"environment ({out.table['environment']['name']}): {why}")
        out.table["environment"] = {"name": STAND_IN}


def _foreign(part: Mapping[str, Any], folder: Path) -> str:
    """Why a part cannot go along; "" where it can."""
    if "endpoint" in part or "url" in part:
        return "it asks a server of the author's"
    for key, value in texts_in(part, ()):
        if their_module_in(value):
            return f"its code ({value}) is not needed to serve the team"
        where = folder / value
        if _of_this_machine(value) or ((set("/.") & set(value)) and len(value) < 1000 and where.exists()):
            return f"its {dotted(key)} is a file of the author's"
    return ""


def _of_this_machine(text: str) -> bool:
    return text.startswith(("/", "~/", "\\\\")) or bool(re.match(r"[A-Za-z]:[\\/]", text))


def texts_in(value: object, key: Key) -> Iterator[tuple[Key, str]]:
    """The texts in a table or a list, each with its key."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from texts_in(inner, (*key, name))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from texts_in(inner, (*key, number))


def _at(table: Mapping[str, Any], key: Key) -> dict[str, Any]:
    found: Any = table
    for part in key:
        found = found[part]
    assert isinstance(found, dict)
    return found


def dotted(key: Key) -> str:
    """A key in a line."""
    return ".".join(map(str, key))
