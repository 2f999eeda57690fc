"""Recipe loading: from a TOML file and ``--dotted.overrides`` to :class:`RunSettings`.

Errors name the key and the remedy.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from marft.common.atomic import regular
from marft.common.satellites import not_installed
from marft.common.user_modules import is_export
from marft.config.algorithm import under_the_preset_named
from marft.config.bundled import bundled, bundled_names
from marft.config.changing import NAMED, pairs_of
from marft.config.folders import FOLDER, at_home, look_for_modules_in
from marft.config.given import in_words, name_of, refuse_missing
from marft.config.keys import SECRET
from marft.config.run import RunSettings
from marft.config.secrets import censored, refuse_secrets
from marft.config.settings import DEEPEST, closest, did_you_mean, too_deep

PRESET = ["algorithm", "name"]
ENGINE = ["engine", "kind"]
TEXTS = (["name"], ["output"])  # overrides that are always text: a run may be named 2026-11-22
OF_AN_EXPORT = "recipe.toml"
MOST_SHOWN = 200  # maximum length of a wrong value in a message, in characters


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
        ValueError: the file is missing or not valid TOML, or a key or value is wrong; the message names it and the
            reason.
    """
    path = at_home(path)
    file = _file_of(path)
    if path.name == OF_AN_EXPORT and is_export(path.parent):
        raise ValueError(
            f"{path} is the recipe of an export; name the export itself, {path.parent}: its files are checked"
        )
    try:
        table = tomllib.loads(file.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8 ({error.reason} at byte {error.start}); save it as UTF-8") from error
    except (ValueError, RecursionError) as error:  # includes numbers with thousands of digits and deeply nested lists
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    table.setdefault("name", path.stem)
    table.setdefault(FOLDER, str(path.parent.resolve()))
    return parse_recipe(table, overrides, str(path), changes, given)


def _file_of(path: Path) -> Path:
    if path.is_file():
        return path
    if path.exists() and not path.is_dir():
        try:
            regular(path)
        except OSError as error:
            raise ValueError(f"no recipe at {path}: {error.strerror}") from None
    if not path.exists() and str(path) in bundled_names():
        return bundled(str(path))
    missing = not_installed("recipes", str(path))
    raise ValueError(f"no recipe at {path}{f': {missing}' if missing else near(path)}")


def near(path: Path) -> str:
    """Return a suggestion for a missing recipe: a run, a nearby file, or a bundled recipe."""
    run = Path("runs") / path
    if (run / "config.toml").is_file():
        return f"; did you mean the run {str(run)!r}?"
    beside = [str(file) for file in path.parent.glob("*.toml")] if path.parent.is_dir() else []
    close = closest(str(path), [*beside, *bundled_names()])
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
        ValueError: the recipe is invalid; the message has one line per problem.
    """
    _check_depth(table, source)
    _check_depth(changes, source)
    (table, changed), known = _in_words(table, changes, given)
    pairs = [*_pairs(overrides), *pairs_of(changed)]
    for key, value in [pair for pair in pairs if pair[0] == PRESET]:
        _set(table, key, value)
    _check_depth(table, source)
    try:
        if isinstance(table.get("algorithm"), dict):
            table["algorithm"] = under_the_preset_named(table["algorithm"])
        others = [pair for pair in pairs if pair[0] != PRESET]
        for key, value in sorted(others, key=lambda pair: pair[0] != ENGINE):  # the engine's kind before its own keys
            _change(table, key, value)
        _check_depth(table, source)
        refuse_secrets(table, source)
        refuse_missing(table, source)
        look_for_modules_in(table.get(FOLDER))
        run = RunSettings.model_validate(table, context={FOLDER: table.get(FOLDER)})
    except ValidationError as error:
        raise ValueError(f"{source}:\n{explain(error, table)}") from None
    if known and run.rollout.processes:
        names = ", ".join(name_of(value) for value in known.values())
        raise ValueError(
            f"{source}: rollout.processes: {names} can be given in Python to one process alone; put it into a module "
            "that others can import, or set processes = 0"
        )
    run._given.update(known)
    return run


def _in_words(
    table: Mapping[str, Any], changes: Mapping[str, Any], given: Iterable[Any]
) -> tuple[tuple[dict[str, Any], dict[str, Any]], dict[str, Any]]:
    """Return recipe and changes as a file could hold them, and the Python objects by placeholder."""
    changed, known = in_words(changes, given)
    whole, known = in_words(table, known.values())
    return (whole, changed), known


def _check_depth(table: Mapping[str, object], source: str) -> None:
    if too_deep(table):
        raise ValueError(f"{source}: more than {DEEPEST} tables and lists are inside each other")


def explain(error: ValidationError, table: Mapping[str, object]) -> str:
    """Format validation errors as indented lines: key, problem and wrong value."""
    lines = []
    problems = error.errors(include_url=False)
    for problem in problems:
        if problem["type"] == "too_short" and any(_inside(p["loc"], problem["loc"]) for p in problems):
            continue  # the list is empty only because invalid entries were removed
        where = ".".join(_readable(problem["loc"], table))
        message = problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "missing":
            message = "is missing"
        elif problem["type"] == "too_short":
            least = problem["ctx"]["min_length"]
            message = f"needs at least {least} item{'s' if least > 1 else ''}"
        elif isinstance(problem["input"], _Broken):
            message = (
                f"{_broken(problem['input'])} is no TOML: {problem['input'].why}; see that brackets and quotes end"
            )
        elif problem["type"] in ("model_type", "dict_type"):  # pydantic's message would name an internal class
            message = f"is a table of keys, as in {{ key = value }}{_given(problem)}"
        elif not isinstance(problem["input"], dict | list) and "input" in problem:
            message = f"{message[0].lower()}{message[1:]}{_given(problem)}"
        message = censored(message)
        lines += [f"  {where + ': ' if where else ''}{line}" for line in message.split("\n")]
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


def _inside(location: Sequence[str | int], outer: Sequence[str | int]) -> bool:
    return len(location) > len(outer) and tuple(location[: len(outer)]) == tuple(outer)


def _given(problem: ErrorDetails) -> str:
    """Return the wrong value for a message, except under keys where a secret may have been entered by mistake."""
    about_secrets = any(SECRET.search(str(part)) or "variable" in str(part) for part in problem["loc"])
    if about_secrets and problem["input"] and isinstance(problem["input"], str | dict | list):
        return ""
    return f" (given: {_shown(problem['input'])})"


def _broken(text: str) -> str:
    return "what was given (it is not shown, for it may hold a secret)" if SECRET.search(text) else _shown(str(text))


def _shown(value: object) -> str:
    try:
        text = censored(repr(value))
    except ValueError:  # Python refuses to print a number with so many digits
        return "a number of thousands of digits"
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…"


def _readable(location: Sequence[str | int], table: Mapping[str, object]) -> list[str]:
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
    return [word if word.isprintable() and len(word) <= MOST_SHOWN else _shown(word) for word in words]


def keys_of(overrides: Sequence[str]) -> list[str]:
    """Return the overridden keys: ``["algorithm.level"]``."""
    return [".".join(key) for key, _ in _pairs(overrides)]


def overrides_of_others(overrides: Sequence[str], tables: Sequence[str]) -> list[str]:
    """Return overrides outside the given tables.

    >>> overrides_of_others(["--team.sees", "all", "--seed=3"], ["team"])
    ['--seed=3']
    """
    kept, words = list[str](), list(overrides)
    while words:
        word = words.pop(0)
        value = [] if "=" in word else words[:1]
        words = words[len(value) :]
        if word[2:].partition("=")[0].partition(".")[0] not in tables:
            kept += [word, *value]
    return kept


def tables_of(overrides: Sequence[str]) -> dict[str, object]:
    """Return overrides as nested tables.

    >>> tables_of(["--lines", "3", "--params.digits=2"])
    {'lines': 3, 'params': {'digits': 2}}

    Raises:
        ValueError: an argument is not an override.
    """
    table: dict[str, object] = {}
    for key, value in _pairs(overrides):
        _set(table, key, value)
    return table


def _pairs(overrides: Sequence[str]) -> list[tuple[list[str], object]]:
    pairs = []
    words = list(overrides)
    while words:
        option = words.pop(0)
        if not option.startswith("--"):
            raise ValueError(f"unexpected argument {option!r}; overrides look like --algorithm.level token")
        key, equals, text = option[2:].partition("=")
        if not equals:
            if not words:
                raise ValueError(f"{option} needs a value")
            text = words.pop(0)
        value = _value(text)
        if key == "algorithm" and _is_word(value):
            key = ".".join(PRESET)
        parts = key.split(".")
        pairs.append((parts, value if isinstance(value, str) or parts not in TEXTS else text))
    return pairs


def _value(text: str) -> object:
    """Parse a TOML value; invalid TOML becomes a string, so ``--algorithm.level token`` needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError) as error:
        return _Broken(text, error) if text.lstrip()[:1] in ("{", "[") else text


class _Broken(str):
    """Invalid TOML that begins like a table or list, with the parser's error.

    The error is reported if the key does not accept a string.
    """

    why: str

    def __new__(cls, text: str, error: Exception) -> _Broken:
        broken = super().__new__(cls, text)
        broken.why = str(error).split(" (at ")[0]  # the position refers to an internal line
        return broken


def _is_word(value: object) -> bool:
    return isinstance(value, str) and not isinstance(value, _Broken)


def _change(table: dict[str, object], key: Sequence[str], value: object) -> None:
    """Set a key; a plain string in place of a plugin selects it and drops another plugin's keys."""
    key = key[:1] if key == ENGINE else key  # engines share no keys
    tag = NAMED.get(".".join(key))
    if tag and _is_word(value):
        place: object = table
        for part in key:
            place = place.get(part) if isinstance(place, dict) else None
        kept = place if isinstance(place, dict) and place.get(tag, value) == value else {}
        value = {**kept, tag: value}
    _set(table, key, value)


def _set(table: dict[str, object], key: Sequence[str], value: object) -> None:
    place: object = table
    for depth, part in enumerate(key):
        last = depth == len(key) - 1
        if isinstance(place, list):
            index = _list_index(place, part, ".".join(key))
            if last:
                place[index] = value
                return
            place[index] = dict(place[index]) if isinstance(place[index], dict) else place[index]
            place = place[index]
        elif isinstance(place, dict):
            if last:
                place[part] = value
                return
            inner = place.get(part, {})
            place[part] = list(inner) if isinstance(inner, list) else dict(inner) if isinstance(inner, dict) else inner
            place = place[part]
        else:
            raise ValueError(f"--{'.'.join(key)}: {'.'.join(key[:depth])} is no table")


def _list_index(items: list[object], part: str, key: str) -> int:
    roles = [item.get("role") if isinstance(item, dict) else None for item in items]
    if part in roles:
        return roles.index(part)
    indices = [str(index) for index in range(len(items))]
    if part in indices:
        return indices.index(part)
    names = [role for role in roles if isinstance(role, str)]
    known = did_you_mean(part, names) if names else f"; known: 0 to {len(items) - 1}"
    raise ValueError(f"--{key}: no entry {part!r}{known}")
