"""From a TOML file and ``--dotted.overrides`` to :class:`RunSettings`, with errors that name key and remedy."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

import tomli_w
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from marft.common.atomic import regular
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
TEXTS = (["name"], ["output"])  # overrides that are no TOML: a run may be called 2026-11-22
OF_AN_EXPORT = "recipe.toml"
MOST_SHOWN = 200  # characters of a wrong value


def load_recipe(
    path: str | Path,
    overrides: Sequence[str] = (),
    changes: Mapping[str, Any] = {},
    given: Iterable[Any] = (),
) -> RunSettings:
    """Read a recipe and apply overrides such as ``["--algorithm.level", "token"]``. Its folder is where it says, else
    the one that it lies in.

    Args:
        path: a file; or, where nothing goes by that path, the name of a bundled recipe.
        changes: more of them, as tables or by dotted keys.
        given: what the recipe names as given in Python.

    Raises:
        ValueError: the file is missing or no TOML, or a key or value is wrong; the message says which and why.
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
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits and deep lists included
        raise ValueError(f"{path} is not valid TOML: {error}") from error
    table.setdefault("name", path.stem)
    table.setdefault(FOLDER, str(path.parent.resolve()))
    return parse_recipe(table, overrides, str(path), changes, given)


def _file_of(path: Path) -> Path | Traversable:
    if path.is_file():
        return path
    if path.exists() and not path.is_dir():
        try:
            regular(path)
        except OSError as error:
            raise ValueError(f"no recipe at {path}: {error.strerror}") from None
    if not path.exists() and str(path) in bundled_names():
        return bundled(str(path))
    raise ValueError(f"no recipe at {path}{near(path)}")


def near(path: Path) -> str:
    """What may have been meant by a path at which no recipe is: a run, a file beside it, or one that is bundled."""
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

    A preset that an override names comes first: over a complete recipe it replaces what the other preset had filled in,
    and what the recipe had changed, and the other overrides, change it in turn.

    Raises:
        ValueError: with one line for each thing that is wrong.
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
        for key, value in sorted(others, key=lambda pair: pair[0] != ENGINE):  # which engine, before what is its own
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
    """Recipe and changes as a file could hold them, and what was given in Python, by the words for it."""
    changed, known = in_words(changes, given)
    whole, known = in_words(table, known.values())
    return (whole, changed), known


def _check_depth(table: Mapping[str, object], source: str) -> None:
    if too_deep(table):
        raise ValueError(f"{source}: more than {DEEPEST} tables and lists are inside each other")


def explain(error: ValidationError, table: Mapping[str, object]) -> str:
    """One indented line for each problem: where it is, what is wrong, and the value that was given."""
    lines = []
    problems = error.errors(include_url=False)
    for problem in problems:
        if problem["type"] == "too_short" and any(_inside(p["loc"], problem["loc"]) for p in problems):
            continue  # the list is empty only without the entries that are wrong
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
        elif problem["type"] in ("model_type", "dict_type"):  # pydantic names a class of ours, or Python's
            message = f"is a table of keys, as in {{ key = value }}{_given(problem)}"
        elif not isinstance(problem["input"], dict | list) and "input" in problem:
            message = f"{message[0].lower()}{message[1:]}{_given(problem)}"
        message = censored(message)
        lines += [f"  {where + ': ' if where else ''}{line}" for line in message.split("\n")]
    return "\n".join(lines)


def first_problem(error: ValidationError) -> str:
    """``step: Input should be a valid integer``: the first thing that is wrong with a table of our own."""
    first = error.errors(include_url=False, include_input=False)[0]
    return f"{'.'.join(map(str, first['loc']))}: {first['msg']}".removeprefix(": ")


def to_toml(run: RunSettings) -> str:
    """The complete, resolved recipe: reading it again gives the same run."""
    table = run.model_dump(mode="json", exclude_none=True)
    text = tomli_w.dumps(table, multiline_strings=True)
    return text if tomllib.loads(text) == table else tomli_w.dumps(table)  # line breaks of other systems need escapes


def _inside(location: Sequence[str | int], outer: Sequence[str | int]) -> bool:
    return len(location) > len(outer) and tuple(location[: len(outer)]) == tuple(outer)


def _given(problem: ErrorDetails) -> str:
    """Return the wrong value for a message, but not where a key may have been written in the place of its variable."""
    about_secrets = any(SECRET.search(str(part)) or "variable" in str(part) for part in problem["loc"])
    if about_secrets and problem["input"] and isinstance(problem["input"], str | dict | list):
        return ""
    return f" (given: {_shown(problem['input'])})"


def _broken(text: str) -> str:
    return "what was given (it is not shown, for it may hold a secret)" if SECRET.search(text) else _shown(str(text))


def _shown(value: object) -> str:
    try:
        text = censored(repr(value))
    except ValueError:  # Python writes no number of so many digits
        return "a number of thousands of digits"
    return text if len(text) <= MOST_SHOWN else text[:MOST_SHOWN] + "…"


def _readable(location: Sequence[str | int], table: Mapping[str, object]) -> list[str]:
    """``('agents', 1, 'policy')`` → ``['agents', 'actor', 'policy']`` where the agent has a role."""
    if location[-1:] == ("[key]",):  # the name of a table is wrong, which the message shows
        location = location[:-2]
    words = [str(part) for part in location]
    if len(location) > 1 and location[0] == "agents" and isinstance(location[1], int):
        agents = table.get("agents")
        if isinstance(agents, list) and location[1] < len(agents) and isinstance(agents[location[1]], dict):
            words[1] = str(agents[location[1]].get("role", words[1]))
    return [word if word.isprintable() and len(word) <= MOST_SHOWN else _shown(word) for word in words]


def keys_of(overrides: Sequence[str]) -> list[str]:
    """The keys that overrides change: ``["algorithm.level"]``."""
    return [".".join(key) for key, _ in _pairs(overrides)]


def overrides_of_others(overrides: Sequence[str], tables: Sequence[str]) -> list[str]:
    """Overrides but for those of some tables.

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
    """Overrides as tables.

    >>> tables_of(["--lines", "3", "--params.digits=2"])
    {'lines': 3, 'params': {'digits': 2}}

    Raises:
        ValueError: they are none.
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
    """A TOML value; anything that is none is a string, so that ``--algorithm.level token`` needs no quotes."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError) as error:
        return _Broken(text, error) if text.lstrip()[:1] in ("{", "[") else text


class _Broken(str):
    """A text that begins like a table or a list, and is none: where no text can be, that is what is wrong with it."""

    why: str

    def __new__(cls, text: str, error: Exception) -> _Broken:
        broken = super().__new__(cls, text)
        broken.why = str(error).split(" (at ")[0]  # the place is that in a line of ours
        return broken


def _is_word(value: object) -> bool:
    return isinstance(value, str) and not isinstance(value, _Broken)


def _change(table: dict[str, object], key: Sequence[str], value: object) -> None:
    """Set a key; a bare word in the place of a plugin names it, and the keys of one of another name go."""
    key = key[:1] if key == ENGINE else key  # of engines none has what another has
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
