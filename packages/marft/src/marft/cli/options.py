"""Overrides after a recipe on the command line, and detection of misspelled options."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import typer

from marft.cli.errors import DEBUG_FLAG
from marft.common.errors import UserError
from marft.common.packages import registered_entry_points
from marft.config.run import RunSettings
from marft.config.settings import closest_match


def parse_overrides(context: typer.Context, first: Path, keys: Iterable[str] = ()) -> Sequence[str]:
    """Return the override arguments.

    Args:
        context: context of the command.
        first: argument parsed as recipe or run.
        keys: keys that the command takes as options, in addition to a recipe's.

    Raises:
        UserError: an option is misspelled, or precedes the recipe.
    """
    _check_words(context, [str(first), *context.args], keys)
    return context.args


def parse_targets(context: typer.Context, arguments: Sequence[Path]) -> tuple[list[Path], list[str]]:
    """Return targets and overrides for a command with several targets, in any order.

    Raises:
        UserError: an option is misspelled, or the overrides precede every target.
    """
    words = [str(word) for word in arguments]
    _check_words(context, words)
    paths, changes, remaining = list[Path](), list[str](), iter(words)
    for word in remaining:
        if word.startswith("--"):
            value = next(remaining, None) if "=" not in word else None
            changes += [word] if value is None else [word, value]
        else:
            paths.append(Path(word))
    return paths, changes


def _check_words(context: typer.Context, words: Sequence[str], keys: Iterable[str] = ()) -> None:
    """Check for misspelled options: similar to an option of the command, and not to a setting.

    Raises:
        UserError: an option is misspelled, or is the first word.
    """
    options = [
        DEBUG_FLAG,
        *(name for parameter in context.command.params for name in parameter.opts if name[:2] == "--"),
    ]
    settings = [f"--{key}" for key in (*RunSettings.model_fields, *registered_entry_points("sections"), *keys)]
    for word in words:
        name = word.partition("=")[0]
        if not name.startswith("--") or "." in name or name in settings:
            continue
        suggestion = closest_match(name, [*options, *settings])
        if suggestion in options:
            raise UserError(f"no option is called {name!r}; did you mean {suggestion!r}?")
    if words[0].startswith("--"):
        raise UserError(f"the recipe or run comes first, and {words[0]} behind it: marft {context.info_name} demo …")
