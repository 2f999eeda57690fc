"""Recipe of an export: everything that the team needs to act, without references to the training machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from marft.agents.environment import Session, Split
from marft.common.ownership import is_ours
from marft.common.registry import bundled_parts, registered
from marft.common.types import Task
from marft.common.user_modules import CODE
from marft.config.keys import SECRET, secrets_in
from marft.config.parts import EnvironmentPart
from marft.config.plugins import module_in, their_module_in
from marft.runs.export.code import files_of, root_of, scripts_of, versions_of

KEPT = ("name", "seed", "models", "policies", "tools", "agents", "team", "channel", "environment", "rewards", "rollout",
        "evaluation")  # fmt: skip
PROGRAM = "program"  # name of the organization
STAND_IN = "marft.runs.export.recipe:NotExported"
SKILLS, TEMPLATES, MODELS, POLICIES = "skills", "templates", "models", "policies"
TRUST = "--trust-code"
PARTS = ("name", "organization", "kind")  # keys that name a plugin class, which must be of that kind
MAKERS = ("env", "parallel_env", "raw_env")  # attributes of PettingZoo modules that create a game
Key = tuple[str | int, ...]


class NotExported(EnvironmentPart):
    """Placeholder for a user environment in an export's recipe; its code or data was left out."""

    one_step: ClassVar[bool] = True

    def tasks(self, split: Split) -> list[Task]:  # noqa: ARG002
        """Raise an error, because no tasks were exported.

        Raises:
            ValueError: always; the message names the remedy.
        """
        raise ValueError(
            "the environment was left out of this export (team.json says why, under left_out); name one to evaluate "
            "on: --environment \"{ name = 'table', path = 'rows.csv', … }\""
        )

    def start(self, task: Task, seed: int) -> Session:  # noqa: ARG002
        """Raise an error, because no environment was exported.

        Raises:
            ValueError: always.
        """
        raise ValueError("the environment was left out of this export")


@dataclass(slots=True)
class Shipped:
    """Recipe for an export, with the required files.

    Args:
        table: the recipe; its paths are relative to the export, and ``paths`` has their keys.
        code: user files by their target path.
        copied: other files and folders by their target path: skills, chat templates.
        packages: top-level names of packages that the code imports.
        left_out: sentences about omitted parts.
    """

    table: dict[str, Any]
    paths: list[str] = field(default_factory=list)
    code: dict[str, Path] = field(default_factory=dict)
    copied: dict[str, Path] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    left_out: list[str] = field(default_factory=list)

    def requires(self) -> dict[str, str]:
        """Return the required distributions with their installed versions."""
        return versions_of(self.packages)

    def source(self, name: str) -> Path | None:
        """Return the local source file for an exported file. The result is None for a generated file."""
        known = {**self.code, **self.copied}
        for place in (PurePosixPath(name), *PurePosixPath(name).parents):
            if str(place) in known:
                return known[str(place)] / PurePosixPath(name).relative_to(place)
        return None


def shipped(recipe: Mapping[str, Any], folder: Path) -> Shipped:
    """Return the exported part of a recipe. :mod:`.weights` fills in policies and local models.

    Args:
        recipe: complete recipe, as saved.
        folder: folder of its paths and modules.
    """
    table = {key: deepcopy(value) for key, value in recipe.items() if key in KEPT}
    # helpers are not exported
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
    """Return recipe keys for third-party code, programs and servers.

    Users should read these before they load an export by another author.
    """
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
    """Return True if a text names code to run: user code, or a MARFT function that can act on model output.

    Args:
        games_are_modules: values of ``environment.game`` are modules, as for PettingZoo. For Gymnasium, an ID may begin
            with a module (``module:Game-v0``).
    """
    if key == ("environment", "game"):
        module, colon, name = value.partition(":")
        if module.partition(".")[0] in ("pettingzoo", "gymnasium"):
            return bool(module_in(value)) and name not in MAKERS
        return bool(colon or "." in module) or games_are_modules
    own = is_ours(module_in(value)) and key[-1] not in PARTS and value not in _examples()
    return own or bool(their_module_in(value))


def _examples() -> set[str]:
    """Return the import paths of this project's functions that any recipe may name: they are registered as examples."""
    return {registered("examples")[name].value for name in bundled_parts("examples")}


def trust_flag(table: Mapping[str, Any]) -> str:
    """Return the flag that ``marft eval`` and ``marft serve`` need for an export with code; "" otherwise."""
    return f" {TRUST}" if runs_code(table) else ""


def _engine(kind: str) -> list[str]:
    """Return a sentence about the omitted engine.

    There is none for the in-process engines, because their replacement is equivalent. For other engines, the sentence
    names the in-process engine as the replacement.
    """
    if kind in ("local", "process"):
        return []
    if their_module_in(kind):
        return ["engine: one of the author's own; the in-process engine samples in its place"]
    return [
        f"engine: {kind}, which may not be where this is read; the in-process engine samples in its place, unless it "
        f"is asked for with --engine \"{{ kind = '{kind}' }}\""
    ]


def _without_secrets(out: Shipped) -> None:
    """Remove values under secret-like names: endpoint options and tool keys."""
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
            if out.copied.get(target, Path(skill)) != Path(skill):  # another skill with this name
                target += f"-{len(out.copied)}"
            out.copied[target] = Path(skill)
            out.paths.append(f"agents.{number}.skills.{len(names)}")
            names.append(target)
        if names:
            agent["skills"] = names


def _needed(out: Shipped, key: Key, folder: Path) -> None:
    """Export a required part: copy its code, and report values that refer to this machine."""
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
    """Export the local scripts in a command, which then runs in the folder of the copies."""
    works = Path(part.get("folder") or folder)
    scripts = [works / word for word in part["command"] if not Path(word).is_absolute() and (works / word).is_file()]
    files, others = scripts_of(scripts, works)
    out.code |= {f"{CODE}/{name}": file for name, file in files.items()}
    out.packages |= others
    _works_in_code(out, key, part, folder)


def _works_in_code(out: Shipped, key: Key, part: dict[str, Any], folder: Path) -> None:
    """Set a program's working folder to the code folder of the export, or to the reader's own without code."""
    if out.code:
        part["folder"] = CODE
        out.paths.append(dotted((*key, "folder")))
    elif Path(part.get("folder") or folder) == folder:
        part.pop("folder", None)


def _judged(out: Shipped, folder: Path) -> None:
    """Export environment and reward terms, unless they need user code, files or servers."""
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
    """Return the reason why a part cannot be exported; "" for an exportable part."""
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
    """Yield the texts in a table or list, with their keys."""
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
    """Return a key in dotted form."""
    return ".".join(map(str, key))
