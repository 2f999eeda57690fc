"""Recipe of an export: everything that the team needs to act, without references to the training machine."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from marft.agents.environment import Session, Split
from marft.common.first_party import is_first_party
from marft.common.registry import bundled_plugins, registered_entry_points
from marft.common.types import Task
from marft.common.user_modules import CODE_FOLDER
from marft.config.api_keys import SECRET_NAME, secret_values
from marft.config.plugin_types import EnvironmentPart
from marft.config.plugins import module_name, user_module_name
from marft.runs.export.user_code import find_import_root, find_module_files, find_script_files, find_versions

EXPORTED_KEYS = ("name", "seed", "models", "policies", "tools", "agents", "team", "channel", "environment", "rewards",
        "rollout", "evaluation")  # fmt: skip
PROGRAM = "program"  # name of the organization
PLACEHOLDER = "marft.runs.export.recipe:NotExported"
SKILLS, TEMPLATES, MODELS, POLICIES = "skills", "templates", "models", "policies"
TRUST = "--trust-code"
PARTS = ("name", "organization", "kind")  # keys that name a plugin class, which must be of that kind
GAME_FACTORIES = ("env", "parallel_env", "raw_env")  # attributes of PettingZoo modules that create a game
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
class ExportRecipe:
    """Recipe for an export, with the required files.

    Args:
        table: the recipe; its paths are relative to the export, and ``paths`` has their keys.
        code: user files by their target path.
        copied: other files and folders by their target path: skills, chat templates.
        packages: top-level names of packages that the code imports.
        omitted: sentences about omitted parts.
    """

    table: dict[str, Any]
    paths: list[str] = field(default_factory=list)
    code: dict[str, Path] = field(default_factory=dict)
    copied: dict[str, Path] = field(default_factory=dict)
    packages: set[str] = field(default_factory=set)
    omitted: list[str] = field(default_factory=list)

    def list_requirements(self) -> dict[str, str]:
        """Return the required distributions with their installed versions."""
        return find_versions(self.packages)

    def find_source(self, name: str) -> Path | None:
        """Return the local source file for an exported file. The result is None for a generated file."""
        sources = {**self.code, **self.copied}
        for parent in (PurePosixPath(name), *PurePosixPath(name).parents):
            if str(parent) in sources:
                return sources[str(parent)] / PurePosixPath(name).relative_to(parent)
        return None


def export_recipe(recipe: Mapping[str, Any], folder: Path) -> ExportRecipe:
    """Return the exported part of a recipe. :mod:`.weights` fills in policies and local models.

    Args:
        recipe: complete recipe, as saved.
        folder: folder of its paths and modules.
    """
    table = {key: deepcopy(value) for key, value in recipe.items() if key in EXPORTED_KEYS}
    # helpers are not exported
    used_policies = {agent.get("policy") for agent in table["agents"]}
    table["policies"] = {name: policy for name, policy in table.get("policies", {}).items() if name in used_policies}
    table["rollout"] = {key: table["rollout"][key] for key in ("max_steps", "timeout_seconds")}
    export = ExportRecipe(table)
    _remove_secrets(export)
    for name, model in table["models"].items():
        if model.get("chat_template"):
            target = f"{TEMPLATES}/{name}.jinja"
            export.copied[target] = Path(model["chat_template"])
            model["chat_template"] = target
            export.paths.append(f"models.{name}.chat_template")
    _export_skills(export)
    for key in [("team",), ("channel",), *(("tools", name) for name in table.get("tools", {}))]:
        _export_part(export, key, folder)
    export.omitted += _engine_note(recipe.get("engine", {}).get("kind", "local"))
    _export_rewards(export, folder)
    return export


def find_code_keys(table: Mapping[str, Any]) -> list[str]:
    """Return recipe keys for third-party code, programs and servers.

    Users should read these before they load an export by another author.
    """
    code_keys, commands = list[str](), dict[Key, list[str]]()
    environment = table.get("environment")
    is_pettingzoo = isinstance(environment, Mapping) and environment.get("name") == "pettingzoo"
    for key, value in iterate_texts(table, ()):
        if key[-2:-1] == ("command",) and isinstance(key[-1], int):
            commands.setdefault(key[:-1], []).append(value)
        elif _is_code(key, value, is_pettingzoo) or (key[-1] in ("command", "python", "url") and value):
            code_keys.append(f"{format_key(key)} = {value}")
    return [*code_keys, *(f"{format_key(key)} = {' '.join(words)}" for key, words in commands.items())]


def _is_code(key: Key, value: str, games_are_modules: bool) -> bool:
    """Return True if a text names code to run: user code, or a MARFT function that can act on model output.

    Args:
        games_are_modules: values of ``environment.game`` are modules, as for PettingZoo. For Gymnasium, an ID may begin
            with a module (``module:Game-v0``).
    """
    if key == ("environment", "game"):
        module, colon, name = value.partition(":")
        if module.partition(".")[0] in ("pettingzoo", "gymnasium"):
            return bool(module_name(value)) and name not in GAME_FACTORIES
        return bool(colon or "." in module) or games_are_modules
    is_own_code = is_first_party(module_name(value)) and key[-1] not in PARTS and value not in _example_paths()
    return is_own_code or bool(user_module_name(value))


def _example_paths() -> set[str]:
    """Return the import paths of this project's functions that any recipe may name: they are registered as examples."""
    return {registered_entry_points("examples")[name].value for name in bundled_plugins("examples")}


def trust_flag(table: Mapping[str, Any]) -> str:
    """Return the flag that ``marft eval`` and ``marft serve`` need for an export with code; "" otherwise."""
    return f" {TRUST}" if find_code_keys(table) else ""


def _engine_note(kind: str) -> list[str]:
    """Return a sentence about the omitted engine.

    There is none for the in-process engines, because their replacement is equivalent. For other engines, the sentence
    names the in-process engine as the replacement.
    """
    if kind in ("local", "process"):
        return []
    if user_module_name(kind):
        return ["engine: one of the author's own; the in-process engine samples in its place"]
    return [
        f"engine: {kind}, which may not be where this is read; the in-process engine samples in its place, unless it "
        f"is asked for with --engine \"{{ kind = '{kind}' }}\""
    ]


def _remove_secrets(export: ExportRecipe) -> None:
    """Remove values under secret-like names: endpoint options and tool keys."""
    for name, model in export.table["models"].items():
        options = (model.get("endpoint") or {}).get("extra_body", {})
        for option in [option for option, value in options.items() if any(secret_values({option: value}))]:
            del options[option]
            export.omitted.append(f"models.{name}.endpoint.extra_body.{option}: it may be a secret; give your own")
    for name, tool in export.table.get("tools", {}).items():
        secret = [key for key, value in tool.items() if SECRET_NAME.search(key) and isinstance(value, str) and value]
        for key in secret:
            del tool[key]
            export.omitted.append(f"tools.{name}.{key}: it may be a secret; give your own")


def _export_skills(export: ExportRecipe) -> None:
    for number, agent in enumerate(export.table["agents"]):
        names: list[str] = []
        for skill in agent.get("skills", []):
            target = f"{SKILLS}/{Path(skill).name}"
            if export.copied.get(target, Path(skill)) != Path(skill):  # another skill with this name
                target += f"-{len(export.copied)}"
            export.copied[target] = Path(skill)
            export.paths.append(f"agents.{number}.skills.{len(names)}")
            names.append(target)
        if names:
            agent["skills"] = names


def _export_part(export: ExportRecipe, key: Key, folder: Path) -> None:
    """Export a required part: copy its code, and report values that refer to this machine."""
    part = _get_table(export.table, key)
    for _, value in list(iterate_texts(part, key)):
        module = user_module_name(value)
        if module:
            root = find_import_root(module)
            if root is None:
                export.packages.add(module.partition(".")[0])
                continue
            files, packages = find_module_files([module], root)
            export.code |= {f"{CODE_FOLDER}/{name}": file for name, file in files.items()}
            export.packages |= packages
    if part.get("command"):
        _export_command(export, key, part, folder)
    elif part.get("organization") == PROGRAM:
        _set_work_folder(export, key, part, folder)
    for name, value in list(part.items()):
        if any(_is_local_path(text) for _, text in iterate_texts(value, ())):
            del part[name]
            export.omitted.append(
                f"{format_key((*key, name))}: it names a place on the machine of training; give your own"
            )


def _export_command(export: ExportRecipe, key: Key, part: dict[str, Any], folder: Path) -> None:
    """Export the local scripts in a command, which then runs in the folder of the copies."""
    work_folder = Path(part.get("folder") or folder)
    scripts = [
        work_folder / word
        for word in part["command"]
        if not Path(word).is_absolute() and (work_folder / word).is_file()
    ]
    files, packages = find_script_files(scripts, work_folder)
    export.code |= {f"{CODE_FOLDER}/{name}": file for name, file in files.items()}
    export.packages |= packages
    _set_work_folder(export, key, part, folder)


def _set_work_folder(export: ExportRecipe, key: Key, part: dict[str, Any], folder: Path) -> None:
    """Set a program's working folder to the code folder of the export, or to the reader's own without code."""
    if export.code:
        part["folder"] = CODE_FOLDER
        export.paths.append(format_key((*key, "folder")))
    elif Path(part.get("folder") or folder) == folder:
        part.pop("folder", None)


def _export_rewards(export: ExportRecipe, folder: Path) -> None:
    """Export environment and reward terms, unless they need user code, files or servers."""
    rewards = []
    for number, reward in enumerate(export.table.get("rewards", [])):
        reason = _find_obstacle(reward, folder)
        if reason:
            export.omitted.append(f"rewards.{number} ({reward['name']}): {reason}")
        else:
            rewards.append(reward)
    export.table["rewards"] = rewards
    reason = _find_obstacle(export.table["environment"], folder)
    if reason:
        export.omitted.append(f"environment ({export.table['environment']['name']}): {reason}")
        export.table["environment"] = {"name": PLACEHOLDER}


def _find_obstacle(part: Mapping[str, Any], folder: Path) -> str:
    """Return the reason why a part cannot be exported; "" for an exportable part."""
    if "endpoint" in part or "url" in part:
        return "it asks a server of the author's"
    for key, value in iterate_texts(part, ()):
        if user_module_name(value):
            return f"its code ({value}) is not needed to serve the team"
        path = folder / value
        if _is_local_path(value) or ((set("/.") & set(value)) and len(value) < 1000 and path.exists()):
            return f"its {format_key(key)} is a file of the author's"
    return ""


def _is_local_path(text: str) -> bool:
    return text.startswith(("/", "~/", "\\\\")) or bool(re.match(r"[A-Za-z]:[\\/]", text))


def iterate_texts(value: object, key: Key) -> Iterator[tuple[Key, str]]:
    """Yield the texts in a table or list, with their keys."""
    if isinstance(value, str):
        yield key, value
    elif isinstance(value, Mapping):
        for name, inner in value.items():
            yield from iterate_texts(inner, (*key, name))
    elif isinstance(value, list | tuple):
        for number, inner in enumerate(value):
            yield from iterate_texts(inner, (*key, number))


def _get_table(table: Mapping[str, Any], key: Key) -> dict[str, Any]:
    value: Any = table
    for part in key:
        value = value[part]
    assert isinstance(value, dict)
    return value


def format_key(key: Key) -> str:
    """Return a key in dotted form."""
    return ".".join(map(str, key))
