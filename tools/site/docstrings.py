"""Docstrings as Markdown reads them: doctests as code, no roles and double colons of reStructuredText."""

from __future__ import annotations

import re
from typing import Any

import griffe

ROLE = re.compile(r":(?:class|func|meth|mod):`~?(?:[\w.]*\.)?(\w+)`")
COLONS = re.compile(r"(?m)^[ \t]*::[ \t]*\n(\n)?")
DOCTEST = re.compile(r"(?m)^>>> .*(?:\n(?!\s*$).*)*")


def plain(text: str) -> str:
    """
    >>> plain("See :class:`marft.config.run.RunSettings`.")
    'See `RunSettings`.'
    """
    text = COLONS.sub("", ROLE.sub(r"`\1`", text))
    return DOCTEST.sub(lambda found: f"```pycon\n{found[0]}\n```", text)


class Plain(griffe.Extension):  # type: ignore[misc, unused-ignore]  # unknown where the docs are not built
    """Applied to every docstring that the site shows."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """Rewrite it, once it is found."""
        if obj.docstring:
            obj.docstring.value = plain(obj.docstring.value)
