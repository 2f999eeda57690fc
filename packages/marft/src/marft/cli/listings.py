"""Lists of names for recipes: bundled recipes, environments and algorithms."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Iterable
from textwrap import fill, wrap

import tomli_w
from rich.columns import Columns
from rich.console import Console
from rich.table import Table
from rich.text import Text

from marft.cli.console import wide_console
from marft.common.errors import UserError
from marft.common.texts import single_line
from marft.config.algorithm import AlgorithmSettings
from marft.config.algorithms import DESCRIPTIONS, OWN_CHOICE, find_source
from marft.config.bundled import bundled_description, bundled_names, bundled_recipe
from marft.config.plugins import Plugin, find_plugin, plugin_names
from marft.config.settings import did_you_mean

WIDE_COLUMNS = 150  # minimum terminal width for one column per component of an algorithm
MAX_LIST_WIDTH = 100  # maximum width of lists of names and of comments, in columns
SENTENCE = re.compile(r".+?\.(?= |$)|.+")  # first sentence


def list_recipes(name: str) -> None:
    """``marft recipes``.

    Args:
        name: recipe to print; "" lists all.
    """
    if name:
        # unchanged: the output may be redirected to a file
        sys.stdout.write(bundled_recipe(name).read_text(encoding="utf-8"))
    else:
        wide_console().print(_name_table((recipe, bundled_description(recipe)) for recipe in bundled_names()))


def list_environments(name: str) -> None:
    """``marft environments``.

    Args:
        name: environment to describe; "" lists all.
    """
    console = wide_console()
    if not name:
        names = plugin_names("environments")
        console.print(_name_table((plugin, _summarize_environment(plugin)) for plugin in names))
        return
    cls = find_plugin("environments", name)
    width = min(console.width, MAX_LIST_WIDTH)
    for paragraph in _class_doc(cls).split("\n\n"):
        console.print(fill(paragraph, width, initial_indent="# ", subsequent_indent="# "), "", soft_wrap=True, sep="\n")
    console.print(_default_table(cls, name, width), soft_wrap=True)
    for key, values in cls.known_values().items():
        console.print(f"\n# {key} is one of {len(values)}:")
        console.print(Columns(values, padding=(0, 2), equal=True, column_first=True), width=width)


def list_algorithms(name: str) -> None:
    """``marft algorithms``.

    Args:
        name: preset to print; "" lists all.
    """
    console = wide_console()
    if not name:
        console.print(_algorithm_table(console))
        return
    settings = load_preset(name)
    console.print(f"# {DESCRIPTIONS[name]}", soft_wrap=True)
    console.print(_annotate_sources(settings), soft_wrap=True)


def load_preset(name: str) -> AlgorithmSettings:
    """Return a preset's settings.

    Raises:
        UserError: no preset has this name.
    """
    if name not in DESCRIPTIONS:
        raise UserError(f"no algorithm is called {name!r}{did_you_mean(name, DESCRIPTIONS)}")
    return AlgorithmSettings.model_validate({"name": name})


def _name_table(rows: Iterable[tuple[str, str]]) -> Table:
    """Return a table with a name and a wrapped description per row."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(no_wrap=True)
    table.add_column()
    for name, text in rows:
        table.add_row(Text(single_line(name)), Text(text))
    return table


def _summarize_environment(name: str) -> str:
    """Return an environment's first sentence and its keys, or the error from a broken package."""
    try:
        cls = find_plugin("environments", name)
    except ValueError as error:
        return f"cannot be used: {error}"
    first = SENTENCE.match(" ".join(_class_doc(cls).partition("\n\n")[0].split()))
    return f"{first[0] if first else ''}\nkeys: {', '.join(cls.model_fields)}"


def _class_doc(cls: type[Plugin]) -> str:
    return inspect.cleandoc(cls.__doc__ or cls.__name__).replace("``", "")


def _default_table(cls: type[Plugin], name: str, width: int) -> str:
    """Return a recipe table for an environment, with default values and placeholders for required keys.

    A comment above each key says what it means, in lines of at most ``width`` columns.
    """
    lines = ["[environment]", f'name = "{name}"']
    for key, field in cls.model_fields.items():
        lines += wrap(field.description or "", width, initial_indent="# ", subsequent_indent="# ")
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        lines.append(f"# {key} = …  (needed)" if field.is_required() else _toml_line(key, default))
    return "\n".join(lines)


def _toml_line(key: str, default: object) -> str:
    try:
        return tomli_w.dumps({key: default}).strip() if not isinstance(default, dict) else f"{key} = {{}}"
    except TypeError:  # None, or a value that TOML does not support
        return f"# {key} = …"


def _algorithm_table(console: Console) -> Table:
    """Return a table of all presets with their components; a narrow terminal shows them below the description."""
    components = {name: _preset_components(load_preset(name)) for name in DESCRIPTIONS}
    if console.width < WIDE_COLUMNS:
        return _name_table((name, f"{text}\n{', '.join(components[name])}") for name, text in DESCRIPTIONS.items())
    table = Table(box=None, pad_edge=False)
    for column in ("algorithm", "level", "credit", "objective", "schedule", "critic", ""):
        table.add_column(column)
    for name, text in DESCRIPTIONS.items():
        table.add_row(name, *components[name], text)
    return table


def _preset_components(settings: AlgorithmSettings) -> tuple[str, ...]:
    """Return level, credit, objective, schedule and critic."""
    parts = (settings.credit.name, settings.objective.name, settings.schedule.name)
    return (settings.level, *parts, settings.critic.kind)


def _annotate_sources(settings: AlgorithmSettings) -> str:
    """Return a preset as complete recipe table, with the source beside each value taken from a publication."""
    lines, table = [], ""
    for line in tomli_w.dumps({"algorithm": settings.model_dump(mode="json", exclude_none=True)}).splitlines():
        if line.startswith("[algorithm"):
            table = line.strip("[]").removeprefix("algorithm").removeprefix(".")
        key = f"{table}.{line.split(' = ')[0]}".removeprefix(".")
        source = find_source(settings.name, key)
        lines.append(line if source == OWN_CHOICE else f"{line}  # {source}")
    return "\n".join(lines)
