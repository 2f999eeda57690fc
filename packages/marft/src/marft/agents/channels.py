"""Communication channels between agents (entry-point group ``marft.channels``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from string import Formatter
from typing import Literal

from pydantic import Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.common.reasoning import strip_reasoning
from marft.config.interfaces.channel import Channel, Message
from marft.config.patterns import Pattern, find_last_group
from marft.config.settings import Count, did_you_mean

ELLIPSIS = "…"


class Raw(Channel):
    """Channel that passes each visible action's whole text."""

    def transform(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """Return every message unchanged."""
        return messages


class Last(Channel):
    """Channel that passes the last message only. Readers do not see earlier messages, and the record does not list
    those as seen.
    """

    def transform(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """Return None for every message except the last."""
        return [*[None] * (len(messages) - 1), *messages[-1:]]


class Truncated(Channel):
    """Channel that passes at most ``max_words`` words of every message, with an ellipsis in place of omitted text."""

    max_words: Count = Field(default=100, description="maximum words per message")
    keep: Literal["start", "end"] = Field(default="end", description="part of a long message to keep")

    def transform(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """Return every message, truncated if too long."""
        return [replace(message, text=self._truncate(message.text)) for message in messages]

    def _truncate(self, text: str) -> str:
        words = text.split()
        if len(words) <= self.max_words:
            return text
        if self.keep == "start":
            return " ".join([*words[: self.max_words], ELLIPSIS])
        return " ".join([ELLIPSIS, *words[-self.max_words :]])


class Record(Channel):
    r"""Channel that turns every message into a record: ``field: value`` pairs, or a template's text.

    ``fields`` is the record's schema. Each field has a regular expression, whose first group (or whole match) is
    the value. The last match in the text counts. A field without a match is left out. A text without any match is
    passed unchanged, or with ``fallback = "none"`` not at all.

    >>> record = Record(fields={"result": r"= (-?\d+)", "state": r"leaving (.+)\."})
    >>> record.transform([Message("reasoner", "I add: 23 + 45 = 68, leaving 68 - 12.")])[0].text
    'result: 68; state: 68 - 12'

    ``template`` sets the wording of a record, for models trained on sentences. ``{{`` and ``}}`` are literal
    braces. With a template, a text that lacks any field counts as a text without a match.

    >>> record = Record(fields={"state": r"leaving (.+)\."}, template="The problem is {state}.")
    >>> record.transform([Message("reasoner", "I add: 23 + 45 = 68, leaving 68 - 12.")])[0].text
    'The problem is 68 - 12.'
    """

    fields: dict[str, Pattern] = Field(description="regular expression for each field; its first group is the value")
    template: str = Field(default="", description='wording of a record, such as "= {result}."; "": field: value pairs')
    fallback: Literal["raw", "none"] = Field(
        default="raw", description="text passed on without a match: raw message, or nothing"
    )

    @field_validator("fields")
    @classmethod
    def _check_fields(cls, fields: dict[str, str]) -> dict[str, str]:
        if not fields:
            raise PydanticCustomError("fields", "needs at least one field, such as {{ state = 'leaving (.+)' }}")
        for name, pattern in fields.items():
            if not name or not pattern:
                raise PydanticCustomError("fields", "a field needs a name and a regular expression")
        return fields

    @model_validator(mode="after")
    def _check_template(self) -> Record:
        if not self.template:
            return self
        try:
            parts = list(Formatter().parse(self.template))
        except ValueError as error:
            raise PydanticCustomError(
                "template", "template: {error}; a brace of its own is written twice", {"error": str(error)}
            ) from error
        named = [name for _, name, _, _ in parts if name is not None]
        if any(form or conversion for _, _, form, conversion in parts):
            raise PydanticCustomError("template", "template: a field is named alone, such as {{state}}")
        for name in [*named, *self.fields]:
            if name not in self.fields:
                raise PydanticCustomError(
                    "template",
                    "template: no field is called {name}{hint}",
                    {"name": repr(name), "hint": did_you_mean(name, self.fields)},
                )
            if name not in named:
                raise PydanticCustomError("template", "template: leaves out the field {name}", {"name": repr(name)})
        return self

    def transform(self, messages: Sequence[Message]) -> Sequence[Message | None]:
        """Return a record for each message; None for a message without a match if ``fallback`` is ``"none"``.

        Raises:
            EpisodeFailedError: the search for a field's regular expression exceeded its timeout.
        """
        return [self._to_record(message) for message in messages]

    def _to_record(self, message: Message) -> Message | None:
        values, text = {}, strip_reasoning(message.text)
        for name, pattern in self.fields.items():
            value = find_last_group(pattern, text)
            if value is not None:
                values[name] = value.strip()
        if not values or (self.template and len(values) < len(self.fields)):
            return message if self.fallback == "raw" else None
        return replace(message, text=self._format_values(values))

    def _format_values(self, values: Mapping[str, str]) -> str:
        if not self.template:
            return "; ".join(f"{name}: {value}" for name, value in values.items())
        parts = Formatter().parse(self.template)
        return "".join(words + (values[name] if name is not None else "") for words, name, _, _ in parts)
