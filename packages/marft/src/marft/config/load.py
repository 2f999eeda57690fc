"""Recipe loading: from a TOML file and ``--dotted.overrides`` to :class:`RunSettings`.

Errors name the key and the remedy.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from marft.common.atomic import check_regular_file
from marft.common.errors import UserError
from marft.common.packages import missing_extra
from marft.common.user_modules import is_export
from marft.config.algorithm import reduce_to_changes
from marft.config.bundled import bundled_names, bundled_recipe
from marft.config.paths import RECIPE_FOLDER, expand_user, register_module_folder
from marft.config.python_objects import check_objects, object_name, replace_objects
from marft.config.run import RunSettings
from marft.config.secrets import SECRET_NAME, check_no_secrets, redact
from marft.config.settings import MAX_DEPTH, closest_match, did_you_mean, is_too_deep

PRESET_KEY = ["algorithm", "name"]
ENGINE_KEY = ["engine", "kind"]
TEXT_KEYS = (["name"], ["output"])  # overrides that are always text: a run may be named 2026-11-22
EXPORT_RECIPE = "recipe.toml"
MAX_VALUE_LENGTH = 200  # maximum length of a wrong value in a message, in characters

NAME_KEYS = {  # tables that hold a plugin or preset, and the key that a plain string in their place sets
    "algorithm": "name",
    "algorithm.credit": "name",
    "algorithm.objective": "name",
    "algorithm.schedule": "name",
    "channel": "name",
    "engine": "kind",
    "environment": "name",
    "team": "organization",
}


def load_recipe(
    path: str | Path,
    overrides: Sequence[str] = (),
    changes: Mapping[str, Any] = {},
    given: Iterable[Any] = (),
) -> RunSettings:
    """Read a recipe and apply overrides such as ``["--algorithm.level", "token"]``.

    Paths are relative to the recipe's ``recipe_folder``, by default the folder of the file.

    Args:
        path: recipe file, or the name of a bundled recipe if no file has this path.
        overrides: command-line overrides.
        changes: further changes, as tables or dotted keys.
        given: Python objects that the recipe refers to by placeholder.

    Raises:
        UserError: the file is missing or not valid TOML, or a key or value is wrong; the message names it and the
            reason.
    """
    path = expand_user(path)
    file = _find_recipe_file(path)
    if path.name == EXPORT_RECIPE and is_export(path.parent):
        raise UserError(
            f"{path} is the recipe of an export; name the export itself, {path.parent}: its files are checked"
        )
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not in UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from error
    except (ValueError, RecursionError) as error:  # includes numbers with thousands of digits and deeply nested lists
        raise UserError(f"{path} is not valid TOML: {error}") from error
    table.setdefault("name", path.stem)
    table.setdefault(RECIPE_FOLDER, str(path.parent.resolve()))
    return parse_recipe(table, overrides, str(path), changes, given)


def read_plain_table(config: Path) -> Mapping[str, object]:
    """Return a saved recipe as a plain table, without its plugins; empty if the file cannot be read."""
    try:
        return tomllib.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}


def get_table(table: Mapping[str, object], *keys: str) -> Mapping[str, object]:
    """Return an inner table of a plain table; empty if there is none."""
    for key in keys:
        inner = table.get(key)
        table = inner if isinstance(inner, dict) else {}
    return table


def _find_recipe_file(path: Path) -> Path:
    if path.is_file():
        return path
    if path.exists() and not path.is_dir():
        try:
            check_regular_file(path)
        except OSError as error:
            raise UserError(f"no recipe at {path}: {error.strerror}") from None
    if not path.exists() and str(path) in bundled_names():
        return bundled_recipe(str(path))
    missing = missing_extra("recipes", str(path))
    raise UserError(f"no recipe at {path}{f': {missing}' if missing else suggest_recipe(path)}")


def suggest_recipe(path: Path) -> str:
    """Return a suggestion for a missing recipe: a run, a nearby file, or a bundled recipe."""
    run = Path("runs") / path
    if (run / "config.toml").is_file():
        return f"; did you mean the run {str(run)!r}?"
    nearby = [str(file) for file in path.parent.glob("*.toml")] if path.parent.is_dir() else []
    close = closest_match(str(path), [*nearby, *bundled_names()])
    return f"; did you mean {close!r}?" if close else f"; bundled are {', '.join(bundled_names())}"


def parse_recipe(
    table: Mapping[str, Any],
    overrides: Sequence[str] = (),
    source: str = "recipe",
    changes: Mapping[str, Any] = {},
    given: Iterable[Any] = (),
) -> RunSettings:
    """Validate a recipe's tables.

    An overriding preset name applies first. In a complete recipe it replaces the defaults of the previous preset. Then
    the recipe's own changes apply, and then the other overrides.

    Args:
        table: tables of the recipe.
        overrides: command-line overrides.
        source: origin of the tables, for messages.
        changes: further changes, as tables or dotted keys.
        given: Python objects that the tables refer to by placeholder.

    Raises:
        UserError: the recipe is invalid; the message has one line per problem.
    """
    _check_depth(table, source)
    _check_depth(changes, source)
    changed, objects = replace_objects(changes, given)
    table, objects = replace_objects(table, objects.values())
    pairs = [*_parse_overrides(overrides), *flatten_changes(changed)]
    for key, value in [pair for pair in pairs if pair[0] == PRESET_KEY]:
        _set_key(table, key, value)
    _check_depth(table, source)
    try:
        if isinstance(table.get("algorithm"), dict):
            table["algorithm"] = reduce_to_changes(table["algorithm"])
        other_pairs = [pair for pair in pairs if pair[0] != PRESET_KEY]
        other_pairs.sort(key=lambda pair: pair[0] != ENGINE_KEY)  # the engine's kind before its own keys
        for key, value in other_pairs:
            _apply_change(table, key, value)
        _check_depth(table, source)
        check_no_secrets(table, source)
        check_objects(table, source)
        register_module_folder(table.get(RECIPE_FOLDER))
        run = RunSettings.model_validate(table, context={RECIPE_FOLDER: table.get(RECIPE_FOLDER)})
    except ValidationError as error:
        raise UserError(f"{source}:\n{format_errors(error, table)}") from None
    if objects and run.rollout.workers:
        names = ", ".join(object_name(value) for value in objects.values())
        raise UserError(
            f"{source}: rollout.workers: {names} can be given in Python to one process alone; put it into a module "
            "that others can import, or set workers = 0"
        )
    run._given.update(objects)
    return run


def _check_depth(table: Mapping[str, object], source: str) -> None:
    if is_too_deep(table):
        raise UserError(f"{source}: more than {MAX_DEPTH} tables and lists are inside each other")


def format_errors(error: ValidationError, table: Mapping[str, object]) -> str:
    """Format validation errors as indented lines: key, problem and wrong value."""
    lines = []
    problems = error.errors(include_url=False)
    for problem in problems:
        if problem["type"] == "too_short" and any(_is_inside(p["loc"], problem["loc"]) for p in problems):
            continue  # the list is empty only because invalid entries were removed
        location = ".".join(_readable_location(problem["loc"], table))
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "missing":
            message = "is missing"
        elif problem["type"] == "too_short":
            minimum = problem["ctx"]["min_length"]
            message = f"needs at least {minimum} item{'s' if minimum > 1 else ''}"
        elif isinstance(problem["input"], _BrokenToml):
            reason = problem["input"].reason
            message = f"{_format_broken(problem['input'])} is no TOML: {reason}; see that brackets and quotes end"
        elif problem["type"] in ("model_type", "dict_type"):  # pydantic's message would name an internal class
            message = f"is a table of keys, as in {{ key = value }}{_format_input(problem)}"
        elif not isinstance(problem["input"], dict | list) and "input" in problem:
            message = f"{message[0].lower()}{message[1:]}{_format_input(problem)}"
        message = redact(message)
        lines += [f"  {location + ': ' if location else ''}{line}" for line in message.split("\n")]
    return "\n".join(lines)


def first_problem(error: ValidationError) -> str:
    """Return the first validation error: ``step: Input should be a valid integer``."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")


def to_toml(run: RunSettings) -> str:
    """Return the complete, resolved recipe as TOML; parsing it gives the same run."""
    table = run.model_dump(mode="json", exclude_none=True)
    text = tomli_w.dumps(table, multiline_strings=True)
    return text if tomllib.loads(text) == table else tomli_w.dumps(table)  # line breaks such as \r\n need escapes


def _is_inside(location: Sequence[str | int], outer: Sequence[str | int]) -> bool:
    return len(location) > len(outer) and tuple(location[: len(outer)]) == tuple(outer)


def _format_input(problem: ErrorDetails) -> str:
    """Return the wrong value for a message, except under keys where a secret may have been entered by mistake."""
    may_be_secret = any(SECRET_NAME.search(str(part)) or "variable" in str(part) for part in problem["loc"])
    if may_be_secret and problem["input"] and isinstance(problem["input"], str | dict | list):
        return ""
    return f" (given: {_format_value(problem['input'])})"


def _format_broken(text: str) -> str:
    if SECRET_NAME.search(text):
        return "what was given (it is not shown, for it may hold a secret)"
    return _format_value(str(text))


def _format_value(value: object) -> str:
    try:
        text = redact(repr(value))
    except ValueError:  # Python refuses to print a number with so many digits
        return "a number of thousands of digits"
    return text if len(text) <= MAX_VALUE_LENGTH else text[:MAX_VALUE_LENGTH] + "…"


def _readable_location(location: Sequence[str | int], table: Mapping[str, object]) -> list[str]:
    """Return an error location with an agent's index replaced by its role.

    ``('agents', 1, 'policy')`` → ``['agents', 'actor', 'policy']``. An agent without a role keeps its index.
    """
    if location[-1:] == ("[key]",):  # the table's name is wrong, and the message shows it
        location = location[:-2]
    words = [str(part) for part in location]
    if len(location) > 1 and location[0] == "agents" and isinstance(location[1], int):
        agents = table.get("agents")
        if isinstance(agents, list) and location[1] < len(agents) and isinstance(agents[location[1]], dict):
            words[1] = str(agents[location[1]].get("role", words[1]))
    return [word if word.isprintable() and len(word) <= MAX_VALUE_LENGTH else _format_value(word) for word in words]


def override_keys(overrides: Sequence[str]) -> list[str]:
    """Return the overridden keys: ``["algorithm.level"]``."""
    return [".".join(key) for key, _ in _parse_overrides(overrides)]


def other_overrides(overrides: Sequence[str], tables: Sequence[str]) -> list[str]:
    """Return overrides outside the given tables.

    >>> other_overrides(["--team.visible", "all", "--seed=3"], ["team"])
    ['--seed=3']
    """
    result, words = list[str](), list(overrides)
    while words:
        word = words.pop(0)
        value = [] if "=" in word else words[:1]
        words = words[len(value) :]
        if word[2:].partition("=")[0].partition(".")[0] not in tables:
            result += [word, *value]
    return result


def overrides_to_tables(overrides: Sequence[str]) -> dict[str, object]:
    """Return overrides as nested tables.

    >>> overrides_to_tables(["--lines", "3", "--params.digits=2"])
    {'lines': 3, 'params': {'digits': 2}}

    Raises:
        UserError: an argument is not an override.
    """
    table: dict[str, object] = {}
    for key, value in _parse_overrides(overrides):
        _set_key(table, key, value)
    return table


def _parse_overrides(overrides: Sequence[str]) -> list[tuple[list[str], object]]:
    pairs = []
    words = list(overrides)
    while words:
        option = words.pop(0)
        if not option.startswith("--"):
            raise UserError(f"unexpected argument {option!r}; overrides look like --algorithm.level token")
        key, equals, text = option[2:].partition("=")
        if not equals:
            if not words:
                raise UserError(f"{option} needs a value")
            text = words.pop(0)
        value = _parse_value(text)
        if key == "algorithm" and _is_plain_string(value):
            key = ".".join(PRESET_KEY)
        parts = key.split(".")
        pairs.append((parts, value if isinstance(value, str) or parts not in TEXT_KEYS else text))
    return pairs


def _parse_value(text: str) -> object:
    """Parse a TOML value; invalid TOML becomes a string, so ``--algorithm.level token`` needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError) as error:
        return _BrokenToml(text, error) if text.lstrip()[:1] in ("{", "[") else text


class _BrokenToml(str):
    """Invalid TOML that begins like a table or list, with the parser's error.

    The error is reported if the key does not accept a string.
    """

    reason: str

    def __new__(cls, text: str, error: Exception) -> _BrokenToml:
        broken = super().__new__(cls, text)
        broken.reason = str(error).split(" (at ")[0]  # the position refers to an internal line
        return broken


def _is_plain_string(value: object) -> bool:
    return isinstance(value, str) and not isinstance(value, _BrokenToml)


def _apply_change(table: dict[str, object], key: Sequence[str], value: object) -> None:
    """Set a key; a plain string in place of a plugin selects it and drops another plugin's keys."""
    key = key[:1] if key == ENGINE_KEY else key  # engines share no keys
    tag = NAME_KEYS.get(".".join(key))
    if tag and _is_plain_string(value):
        node: object = table
        for part in key:
            node = node.get(part) if isinstance(node, dict) else None
        current = node if isinstance(node, dict) and node.get(tag, value) == value else {}
        value = {**current, tag: value}
    _set_key(table, key, value)


def _set_key(table: dict[str, object], key: Sequence[str], value: object) -> None:
    node: object = table
    for depth, part in enumerate(key):
        last = depth == len(key) - 1
        if isinstance(node, list):
            index = _list_index(node, part, ".".join(key))
            if last:
                node[index] = value
                return
            node[index] = dict(node[index]) if isinstance(node[index], dict) else node[index]
            node = node[index]
        elif isinstance(node, dict):
            if last:
                node[part] = value
                return
            inner = node.get(part, {})
            node[part] = list(inner) if isinstance(inner, list) else dict(inner) if isinstance(inner, dict) else inner
            node = node[part]
        else:
            raise UserError(f"--{'.'.join(key)}: {'.'.join(key[:depth])} is no table")


def _list_index(items: list[object], part: str, key: str) -> int:
    roles = [item.get("role") if isinstance(item, dict) else None for item in items]
    if part in roles:
        return roles.index(part)
    indices = [str(index) for index in range(len(items))]
    if part in indices:
        return indices.index(part)
    names = [role for role in roles if isinstance(role, str)]
    hint = did_you_mean(part, names) if names else f"; known: 0 to {len(items) - 1}"
    raise UserError(f"--{key}: no entry {part!r}{hint}")


def flatten_changes(changes: Mapping[str, Any], inside: Sequence[str] = ()) -> Iterator[tuple[list[str], Any]]:
    """Yield changed keys and values, with nested tables flattened.

    Keys that a table does not mention keep their values. A table with another plugin name replaces the plugin, as a
    plain string does.

    >>> list(flatten_changes({"training.steps": 5, "algorithm": {"name": "grpo", "kl": {"coefficient": 0.0}}}))
    [(['training', 'steps'], 5), (['algorithm', 'name'], 'grpo'), (['algorithm', 'kl', 'coefficient'], 0.0)]

    Args:
        inside: key of the enclosing table.
    """
    for key, value in changes.items():
        parts = [*inside, *str(key).split(".")]
        tag = NAME_KEYS.get(".".join(parts), "")
        if isinstance(value, Mapping) and value:
            if tag in value:
                yield _tag_path(parts), value[tag]
            yield from flatten_changes({name: inner for name, inner in value.items() if name != tag}, parts)
        else:
            yield _tag_path(parts) if isinstance(value, str) else parts, value


def _tag_path(parts: list[str]) -> list[str]:
    """Return the key that a plain string sets: a preset has its own name key."""
    return [*parts, "name"] if parts == ["algorithm"] else parts
