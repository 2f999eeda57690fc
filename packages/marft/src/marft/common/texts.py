"""Text of others, made safe to store and to show."""

from __future__ import annotations

import traceback
from collections.abc import Sequence

from marft.common.thoughts import Said

LONGEST = 2_000  # characters of an error that are kept
OBEYED = {  # by terminals and pages: control characters, and those that turn the direction of the text around them
    *range(0x20), *range(0x7F, 0xA0), 0x061C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A),
} - {ord("\n"), ord("\t")}  # fmt: skip
SHOWN = dict.fromkeys(OBEYED, "\ufffd")


def storable(text: str) -> str:
    """The text without half characters, which no file takes.

    >>> storable("half \\ud83d")
    'half ?'
    """
    return text.encode("utf-8", "replace").decode()


def visible(text: str) -> str:
    """The text without what a terminal or a page would obey; line breaks and tabs stay.

    >>> visible("a\\x1b[2Jb\\u202ec\\n")
    'a�[2Jb�c\\n'
    """
    return storable(text).translate(SHOWN)


def one_line(text: str) -> str:
    """The text on one line, without what a terminal would obey.

    >>> one_line("a\\n\\tb\\x1b[2J")
    'a b�[2J'
    """
    return " ".join(visible(text).split())


def until(text: str, stops: Sequence[str | Said]) -> str:
    """The text up to the first stop string, or mark that ends what is said.

    >>> until("one. two! three", ("!", "."))
    'one'
    """
    found = [index for stop in stops if (index := place(text, stop)) >= 0]
    return text[: min(found)] if found else text


def place(text: str, mark: str | Said) -> int:
    """Where a mark stands first in a text; -1 where it does not."""
    return mark.find(text) if isinstance(mark, Said) else text.find(mark)


def cut(text: str, most: int = LONGEST) -> str:
    """The beginning of a text, and how much of it is left out.

    >>> cut("a long story", 6)
    'a long … (6 more characters)'
    """
    return text if len(text) <= most else f"{text[:most]} … ({len(text) - most:,} more characters)"


def raised(error: BaseException) -> str:
    """What was raised, ``ValueError: boom``, also where the error cannot say it itself, or says too much."""
    try:
        said = "".join(traceback.format_exception_only(error)).strip()
    except BaseException:  # noqa: BLE001  somebody else's error, whose own code runs here
        said = f"{type(error).__name__}, which cannot say what it is"
    return storable(cut(said))


def name_of(part: object) -> str:
    """What a part is called in the recipe, or its class."""
    name = getattr(part, "name", "")
    return name if isinstance(name, str) and name else type(part).__name__
