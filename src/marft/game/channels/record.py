"""An action-state record in place of prose (PACT): what was done, what came of it, and where things stand."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import field_validator
from pydantic_core import PydanticCustomError

from marft.config.plugins import Plugin
from marft.game.rendering import Message


class Record(Plugin):
    r"""Every message becomes ``field: value`` pairs, before anybody else reads it.

    ``fields`` is the record's schema: for each field a regular expression, whose first group (or whole match) is the
    value; the last match in the text counts. A field that is not found is left out; a text in which nothing is found is
    passed on as it is, or with ``otherwise = "nothing"`` not at all.

    >>> record = Record(fields={"result": r"= (-?\d+)", "state": r"leaving (.+)\."})
    >>> record.carry([Message("reasoner", "I add: 23 + 45 = 68, leaving 68 - 12.")])[0].text
    'result: 68; state: 68 - 12'
    """

    fields: dict[str, str]
    otherwise: Literal["raw", "nothing"] = "raw"

    @field_validator("fields")
    @classmethod
    def _are_expressions(cls, fields: dict[str, str]) -> dict[str, str]:
        if not fields:
            raise PydanticCustomError("fields", "needs at least one field, such as {{ state = 'leaving (.+)' }}")
        for name, pattern in fields.items():
            try:
                re.compile(pattern)
            except re.error as error:
                raise PydanticCustomError(
                    "pattern", "{field}: {pattern} is no regular expression: {error}",
                    {"field": name, "pattern": repr(pattern), "error": str(error)},
                ) from error  # fmt: skip
        return fields

    def carry(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """See :class:`marft.game.rendering.Channel`."""
        return [self._record(message) for message in messages]

    def _record(self, message: Message) -> Message | None:
        found = {}
        for name, pattern in self.fields.items():
            matches = list(re.finditer(pattern, message.text))
            if matches:
                found[name] = (matches[-1].group(1) if matches[-1].re.groups else matches[-1].group()) or ""
        if not found:
            return message if self.otherwise == "raw" else None
        return replace(message, text="; ".join(f"{name}: {value.strip()}" for name, value in found.items()))
