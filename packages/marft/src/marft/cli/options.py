"""Overrides after a recipe on the command line, and detection of misspelled options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import typer

from marft.cli.errors import DEBUG_FLAG
from marft.common.registry import registered_entry_points
from marft.config.run import RunSettings
from marft.config.settings import closest_match


def parse_overrides(context: typer.Context, first: Path, keys: Iterable[str] = ()) -> Sequence[str]:
    """Return the override arguments.

    Args:
        context: context of the command.
        first: argument parsed as recipe or run.
        keys: keys that the command takes as options, in addition to a recipe's.

    Raises:
        ValueError: an option is misspelled, or precedes the recipe.
    """
    options = [
        DEBUG_FLAG,
        *(name for parameter in context.command.params for name in parameter.opts if name[:2] == "--"),
    ]
    for word in [str(first), *context.args]:
        name = word.partition("=")[0]
        suggestion = _suggest_option(name, options, keys) if name.startswith("--") else ""
        if suggestion:
            raise ValueError(f"no option is called {name!r}; did you mean {suggestion!r}?")
    if str(first).startswith("--"):
        raise ValueError(f"the recipe or run comes first, and {first} behind it: marft {context.info_name} demo …")
    return context.args


def parse_targets(context: typer.Context, arguments: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return targets and overrides for a command with several targets, in any order.

    Raises:
        ValueError: an option is misspelled, or the overrides precede every target.
    """
    words = [str(word) for word in arguments]
    for word in words:
        options = [DEBUG_FLAG, *(n for parameter in context.command.params for n in parameter.opts if n[:2] == "--")]
        suggestion = _suggest_option(word.partition("=")[0], options) if word.startswith("--") else ""
        if suggestion:
            raise ValueError(f"no option is called {word.partition('=')[0]!r}; did you mean {suggestion!r}?")
    if words[0].startswith("--"):
        raise ValueError(f"the recipe or run comes first, and {words[0]} behind it: marft {context.info_name} demo …")
    paths, changes, remaining = list[Path](), list[str](), iter(words)
    for word in remaining:
        if word.startswith("--"):
            value = next(remaining, None) if "=" not in word else None
            changes += [word] if value is None else [word, value]
        else:
            paths.append(Path(word))
    return paths, changes


def _suggest_option(word: str, options: Sequence[str], keys: Iterable[str] = ()) -> str:
    """Return the closest option, unless ``word`` is a setting or a setting is closer."""
    settings = [f"--{key}" for key in (*RunSettings.model_fields, *registered_entry_points("sections"), *keys)]
    if "." in word or word in settings:
        return ""
    close = closest_match(word, [*options, *settings])
    return close if close in options else ""
