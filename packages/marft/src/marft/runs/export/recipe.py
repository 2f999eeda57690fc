"""Recipe of an export: everything that the team needs to act, without references to the training machine."""

from __future__ import annotations

import ast
import os
import re
import sys
import sysconfig
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from importlib.metadata import packages_distributions, version
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from marft.common import user_modules
from marft.common.errors import UserError
from marft.common.packages import bundled_plugins, first_party_folders, is_first_party, registered_entry_points
from marft.common.types import Task
from marft.common.user_modules import CODE_FOLDER, MANIFEST
from marft.config.interfaces.environment import Environment, Session, Split
from marft.config.load import parse_recipe
from marft.config.paths import RECIPE_FOLDER
from marft.config.plugins import import_path_module, user_import_path_module
from marft.config.run import RunSettings
from marft.config.secrets import SECRET_NAME, secret_values
from marft.runs.changes import Key, iterate_texts
from marft.runs.export.manifest import RECIPE, Export

EXPORTED_KEYS = ("name", "seed", "models", "policies", "tools", "agents", "team", "channel", "environment", "rewards",
        "rollout", "evaluation")  # fmt: skip
PROGRAM = "program"  # name of the organization
PLACEHOLDER = "marft.runs.export.recipe:NotExported"
SKILLS, TEMPLATES, MODELS, POLICIES = "skills", "templates", "models", "policies"
TRUST = "--trust-code"
PARTS = ("name", "organization", "kind")  # keys that name a plugin class, which must be of that kind
GAME_FACTORIES = ("env", "parallel_env", "raw_env")  # attributes of PettingZoo modules that create a game


def find_import_root(module: str) -> Path | None:
    """Return the import folder for a user module. The result is None for an installed package."""
    loaded = sys.modules.get(module)
    if loaded is None or not loaded.__file__:
        return None
    file = Path(loaded.__file__).resolve()
    if any(file.is_relative_to(folder) for folder in _installed_folders()):
        return None
    return file.parents[len(module.split(".")) - (0 if file.name == "__init__.py" else 1)]


def find_module_files(modules: Sequence[str], root: Path) -> tuple[dict[str, Path], set[str]]:
    """Return the files for modules and local imports, and the names of other imported packages.

    Files are keyed by their path relative to ``root``. Packages are top-level names without the standard library and
    MARFT.
    """
    files: dict[str, Path] = {}
    packages: set[str] = set()
    pending = list(modules)
    visited: set[str] = set()
    while pending:
        module = pending.pop()
        if module in visited:
            continue
        visited.add(module)
        file = _find_file(module, root)
        if file is None:
            parent = module.rpartition(".")[0]
            pending += [parent] if parent else []
            packages |= set() if parent else {module}
            continue
        files[file.relative_to(root).as_posix()] = file
        parts = module.split(".")
        pending += [".".join(parts[:count]) for count in range(1, len(parts))]
        pending += find_imports(file, module)
    external = {name for name in packages if name not in sys.stdlib_module_names and not is_first_party(name)}
    return dict(sorted(files.items())), external


def find_script_files(scripts: Sequence[Path], root: Path) -> tuple[dict[str, Path], set[str]]:
    """Return the files for scripts and their imports.

    The result has the form of :func:`find_module_files`. A script imports modules from its own folder.
    """
    script_files, packages = dict[str, Path](), set[str]()
    for script in scripts:
        script_files[script.relative_to(root).as_posix()] = script
        if script.suffix == ".py":
            files, imported_packages = find_module_files(list(find_imports(script, "")), script.parent)
            script_files |= {path.relative_to(root).as_posix(): path for path in files.values()}
            packages |= imported_packages
    return script_files, packages


def find_imports(file: Path, module: str) -> Iterator[str]:
    """Yield a file's imports: modules, and names that may be modules.

    Args:
        module: name of the file's module, the start of relative imports.
    """
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            parent = package.split(".")[: len(package.split(".")) - (node.level - 1)] if node.level else []
            base = ".".join([*parent, *([node.module] if node.module else [])])
            yield from [base] if base else []
            yield from (f"{base}.{alias.name}".removeprefix(".") for alias in node.names if alias.name != "*")


def find_versions(packages: set[str]) -> dict[str, str]:
    """Return installed distributions and versions for the given packages."""
    distributions = packages_distributions()
    return {name: version(name) for package in sorted(packages) for name in distributions.get(package, [])[:1]}


def _find_file(module: str, root: Path) -> Path | None:
    path = root.joinpath(*module.split("."))
    return next((file for file in (path.with_suffix(".py"), path / "__init__.py") if file.is_file()), None)


def _installed_folders() -> Iterator[Path]:
    for name in ("stdlib", "platstdlib", "purelib", "platlib"):
        yield Path(sysconfig.get_path(name)).resolve()
    yield from (folder.resolve() for folder in first_party_folders())


class NotExported(Environment):
    """Placeholder for a user environment in an export's recipe; its code or data was left out."""

    one_step: ClassVar[bool] = True

    def tasks(self, split: Split) -> list[Task]:  # noqa: ARG002
        """Raise an error, because no tasks were exported.

        Raises:
            UserError: always; the message names the remedy.
        """
        raise UserError(
            "the environment was left out of this export (team.json says why, under left_out); name one to evaluate "
            "on: --environment \"{ name = 'table', path = 'rows.csv', … }\""
        )

    def start(self, task: Task, seed: int) -> Session:  # noqa: ARG002
        """Raise an error, because no environment was exported.

        Raises:
            UserError: always.
        """
        raise UserError("the environment was left out of this export")


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


def describe_foreign_code(table: Mapping[str, object]) -> list[str]:
    """Return recipe keys for third-party code, programs and servers.

    Users should read these before they load an export by another author.
    """
    code_keys, commands = list[str](), dict[Key, list[str]]()
    environment = table.get("environment")
    is_pettingzoo = isinstance(environment, Mapping) and environment.get("name") == "pettingzoo"
    for key, value in iterate_texts(table):
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
            return bool(import_path_module(value)) and name not in GAME_FACTORIES
        return bool(colon or "." in module) or games_are_modules
    is_own_code = is_first_party(import_path_module(value)) and key[-1] not in PARTS and value not in _example_paths()
    return is_own_code or bool(user_import_path_module(value))


def _example_paths() -> set[str]:
    """Return the import paths of this project's functions that any recipe may name: they are registered as examples."""
    return {registered_entry_points("examples")[name].value for name in bundled_plugins("examples")}


def trust_flag(table: Mapping[str, object]) -> str:
    """Return the flag that ``marft eval`` and ``marft serve`` need for an export with code; "" otherwise."""
    return f" {TRUST}" if describe_foreign_code(table) else ""


def _engine_note(kind: str) -> list[str]:
    """Return a sentence about the omitted engine.

    There is none for the in-process engines, because their replacement is equivalent. For other engines, the sentence
    names the in-process engine as the replacement.
    """
    if kind in ("local", "process"):
        return []
    if user_import_path_module(kind):
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
        module = user_import_path_module(value)
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
        if any(_is_local_path(text) for _, text in iterate_texts(value)):
            del part[name]
            export.omitted.append(
                f"{format_key((*key, name))}: it names a place on the machine of training; give your own"
            )


def _export_command(export: ExportRecipe, key: Key, part: dict[str, Any], folder: Path) -> None:
    """Export the local scripts in a command, which then runs in the folder of the copies."""
    work_folder = Path(part.get("folder") or folder)
    relative_paths = [word for word in part["command"] if not Path(word).is_absolute()]
    scripts = [work_folder / path for path in relative_paths if (work_folder / path).is_file()]
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


def _find_obstacle(part: Mapping[str, object], folder: Path) -> str:
    """Return the reason why a part cannot be exported; "" for an exportable part."""
    if "endpoint" in part or "url" in part:
        return "it asks a server of the author's"
    for key, value in iterate_texts(part):
        if user_import_path_module(value):
            return f"its code ({value}) is not needed to serve the team"
        path = folder / value
        if _is_local_path(value) or ((set("/.") & set(value)) and len(value) < 1000 and path.exists()):
            return f"its {format_key(key)} is a file of the author's"
    return ""


def _is_local_path(text: str) -> bool:
    return text.startswith(("/", "~/", "\\\\")) or bool(re.match(r"[A-Za-z]:[\\/]", text))


def _get_table(table: Mapping[str, Any], key: Key) -> dict[str, Any]:
    value: Any = table
    for part in key:
        value = value[part]
    assert isinstance(value, dict)
    return value


def format_key(key: Key) -> str:
    """Return a key in dotted form."""
    return ".".join(map(str, key))


def read_recipe_table(export: Export, trust_code: bool = False) -> dict[str, object]:
    """Return an export's recipe table.

    Args:
        trust_code: accept third-party code, programs and servers in the recipe.

    Raises:
        UserError: the recipe names third-party code without ``trust_code``, or does not match its manifest.
    """
    table = tomllib.loads((export.path / RECIPE).read_text(encoding="utf-8"))
    code_keys = describe_foreign_code(table)
    if code_keys and not trust_code:
        raise UserError(
            f"{export.path} would run code, or ask servers, of its author's: {'; '.join(code_keys[:5])}. Read it, and "
            "say --trust-code"
        )
    export_folder = export.path.resolve()
    for key in export.manifest.paths:
        try:
            _resolve(table, key.split("."), export_folder)
        except (ValueError, KeyError, IndexError, TypeError) as error:
            raise UserError(f"{export.path}: {RECIPE} has no path in the export under {key!r}") from error
    folder = export_folder / CODE_FOLDER if (export_folder / CODE_FOLDER).is_dir() else export_folder
    unknown_keys = sorted(set(table) - set(EXPORTED_KEYS))
    user_modules.warn_once(
        f"{export.path}: {RECIPE} has keys of no export, which are not read: {unknown_keys}" if unknown_keys else ""
    )
    table = {key: table[key] for key in EXPORTED_KEYS if key in table}
    _check_unlisted(export, table, folder)
    user_modules.warn_once(export.note)
    user_modules.add_root(user_modules.export_root(export_folder, folder, export.digests if trust_code else {}))
    return {**table, RECIPE_FOLDER: str(folder)}


def _check_unlisted(export: Export, table: Mapping[str, object], folder: Path) -> None:
    """Check the recipe's files against the manifest.

    Raises:
        UserError: the recipe names a file or folder of the export without an entry in the manifest.
    """
    export_folder = export.path.resolve()
    unlisted = {
        file for name in export.unlisted for file in (export_folder / name, *(export_folder / name).parents)
    } - {file for name in export.digests for file in (export_folder / name).parents}
    for key, value in iterate_texts(table):
        if Path(os.path.normpath(folder / value)) in unlisted:
            raise UserError(
                f"{export.path}: {format_key(key)} of {RECIPE} names {value}, which {MANIFEST} does not list"
            )


def load_settings(export: Export, overrides: Sequence[str] = (), trust_code: bool = False) -> RunSettings:
    """Return the settings of an exported team, for evaluation and serving without training.

    Raises:
        UserError: see :func:`read_recipe_table`; or a part that was left out of the export is not given.
    """
    return parse_recipe(read_recipe_table(export, trust_code), overrides, str(export.path / RECIPE))


def check_bases(export: Export, loaded_digests: Mapping[str, str]) -> None:
    """Check the loaded base models against the models used in training.

    Args:
        loaded_digests: digests of the loaded models
            (:meth:`marft.models.policy_registry.PolicyRegistry.compute_digests`).

    Raises:
        UserError: a model has other weights, another tokenizer or another chat template.
    """
    for name, model in export.manifest.models.items():
        if model.digest and loaded_digests.get(f"models.{name}", model.digest) != model.digest:
            raise UserError(
                f"models.{name} ({model.path}) is not what the team of {export.path} learned on: its weights, "
                "tokenizer or chat template are others"
            )


def _resolve(table: Any, key: Sequence[str], folder: Path) -> None:
    """Make a relative path of a recipe absolute, in place.

    Raises:
        ValueError, KeyError, IndexError, TypeError: the key has no path, or the path leaves the export.
    """
    for part in key[:-1]:
        table = table[int(part)] if isinstance(table, list) else table[part]
    last = int(key[-1]) if isinstance(table, list) else key[-1]
    target = folder / table[last]
    if not target.resolve().is_relative_to(folder):
        raise UserError("it leads out of the export")
    table[last] = str(target)
