"""Tool-call format for a model, derived from its own chat template.

A template defines the text of past calls and results. A probe call is rendered, and the text around its JSON is the
model's call format. If a tokenizer has a ``response_template``, transformers parses the turns with that template
instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from marft.agents.live import before
from marft.agents.rendering import NOTHING, NotExact, exchange
from marft.common.texts import raised, storable
from marft.common.thoughts import BEGINS, ENDS, Said, first_thought, thinking_after
from marft.common.types import TokenIds, Tool, ToolCall
from marft.inference.messages import ASKED, MORE, SAID, Format, appended, begins_thought, render_text, schema, thinks
from marft.models.templates import CANNOT_RENDER, parsed_turn

NAME, ARGUMENT, VALUE = "probe_tool", "probe_argument", "probe_value"
PROBE = Tool(NAME, "A probe.", {"type": "object", "properties": {ARGUMENT: {"type": "string"}}, "required": [ARGUMENT]})
PROBE_CALL = ToolCall(NAME, json.dumps({ARGUMENT: VALUE}))
PYTHON_TAG = "<|python_tag|>"  # Llama's start of a call, which its templates do not render
_SPACES = re.compile(r"\s*+")
MOST_UNREADABLE = 100  # consecutive unreadable calls after which parsing of a turn stops
DEPTH = 64  # maximum nesting of a call's arguments
REMEDY = "set models.….chat_template to a Jinja file that has one, or take the tools away from its agents"


@dataclass(frozen=True, slots=True)
class Syntax:
    """Syntax for calls as JSON after a marker. Without a marker, a turn is either a call or text.

    If the model supports reasoning, a call inside reasoning does not count.

    >>> Syntax("<call>", "name", "arguments").read('Let me see. <call>{"name": "add", "arguments": {}}</call>')
    [ToolCall(name='add', arguments='{}', ...)]
    """

    opening: str
    name: str  # JSON key for the tool's name
    arguments: str  # JSON key for the arguments
    tag: str = ""  # optional text before a call if there is no marker

    def read(self, text: str, begun: bool | None = None) -> list[ToolCall]:
        """Parse the calls in an agent's text. An unreadable call becomes an error call with a reason.

        Args:
            begun: whether the text starts inside reasoning; None: the model has no reasoning.
        """
        return [call for _, call in self.placed(text, begun)]

    def placed(self, text: str, begun: bool | None) -> list[tuple[int, ToolCall]]:
        """Parse the calls and return each with its start offset.

        An end tag without a matching start tag turns the whole text before it into reasoning.
        """
        if not self.opening:
            return self._placed_bare(text, begun)
        marks = [self.opening] if begun is None else [self.opening, BEGINS, ENDS]
        pattern = re.compile("|".join(map(re.escape, marks)))
        calls, at, thinking = list[tuple[int, ToolCall]](), 0, bool(begun)
        while True:
            if thinking:
                end = text.find(ENDS, at)
                at = len(text) if end < 0 else end + len(ENDS)
            found = pattern.search(text, at)
            if found is None:
                return calls
            at, thinking = found.end(), found[0] == BEGINS
            if found[0] == ENDS:
                calls.clear()
            elif not thinking:
                new, at = self._read_one(text, at)
                calls += [(found.start(), call) for call in new]
                if sum(call.error for _, call in calls[-MOST_UNREADABLE:]) == MOST_UNREADABLE:
                    return [*calls, (at, unreadable("", f"{MOST_UNREADABLE} calls before it could not be read either"))]

    def holds(self, text: str) -> bool:
        """Return whether an incomplete turn without a marker can still become a call."""
        said = text.lstrip()
        return self.tag.startswith(said) or said.removeprefix(self.tag).lstrip()[:1] in ("", "{")

    def _placed_bare(self, text: str, begun: bool | None) -> list[tuple[int, ToolCall]]:
        start = 0 if begun is None else first_thought(text, begun)
        said = text[start:].lstrip().removeprefix(self.tag)
        if said.lstrip()[:1] != "{" or any(f'"{key}"' not in said for key in (self.name, self.arguments)):
            return []
        return [(start, call) for call in self._read_one(said, 0)[0]]

    def _read_one(self, text: str, start: int) -> tuple[list[ToolCall], int]:
        """Parse the calls at ``start`` and return their end offset; JSON inside arguments does not count."""
        start = _SPACES.match(text, start).end()  # type: ignore[union-attr]  # the pattern matches ""
        try:
            found, end = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            following = text.find(self.opening, start) if self.opening else -1  # the next marker starts another call
            said = text[start : following if following >= 0 else None]
            return [unreadable(said, f"it is no valid JSON: {error}")], start
        return [self._call(one) for one in (found if isinstance(found, list) else [found])], end

    def _call(self, found: object) -> ToolCall:
        if not isinstance(found, dict) or not isinstance(found.get(self.name), str):
            return unreadable("", f'it must be an object with "{self.name}" and "{self.arguments}"')
        return asked(found[self.name], found.get(self.arguments, {}))


def asked(name: str, arguments: object) -> ToolCall:
    """Build a tool call from an agent's name and arguments; arguments are stored as JSON."""
    found = _read(arguments)
    if _deeper(found, DEPTH):
        return unreadable("", f"its arguments are nested more than {DEPTH} deep")
    try:
        written = json.dumps(found, allow_nan=False, ensure_ascii=False)
    except ValueError:
        return unreadable("", "its arguments hold a number that is not finite, which JSON has not")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if not name:
        return unreadable(text, "it names no tool")
    # lone surrogates pass only as JSON escapes
    if storable(name + text) != name + text or storable(written) != written:
        return unreadable(name + text, "it holds half a character")
    return ToolCall(name, text)


def _read(arguments: object) -> object:
    """Decode arguments from JSON; other text stays text."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments


def _deeper(value: object, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth == 0 or any(_deeper(one, depth - 1) for one in inner)


def unreadable(text: str, why: str) -> ToolCall:
    """Build an error call for unreadable text; its output tells the agent the reason."""
    return ToolCall("", storable(text), output=storable(f"this call could not be read: {why}"), error=True)


@dataclass(frozen=True, slots=True, eq=False)
class ToolFormat:
    """Tool-call format for a model."""

    tokenizer: PreTrainedTokenizerBase
    template_options: Mapping[str, object]
    stop_ids: tuple[int, ...]
    syntax: Syntax | None  # None: the tokenizer's response_template defines the parser
    begun: bool | None = None  # whether the template starts turns with reasoning; None: no reasoning support

    @staticmethod
    def of(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, object], stop_ids: tuple[int, ...]) -> ToolFormat:
        """Derive the format from a tokenizer's chat template.

        Raises:
            ValueError: the template has no tool format, or it cannot render tool results.
        """
        format_ = ToolFormat(tokenizer, options, stop_ids, None)
        try:
            plain = render_text(format_, [ASKED])
            told = render_text(format_, [ASKED], (PROBE,))
            called = render_text(format_, [ASKED, *exchange("", [PROBE_CALL])], (PROBE,), begin=False)
        except CANNOT_RENDER as error:
            raise ValueError(f"its chat template cannot render tools and their answers ({error}); {REMEDY}") from error
        if plain == told:
            raise ValueError(f"its chat template has no tool format: it leaves tools out; {REMEDY}")
        if getattr(tokenizer, "response_template", None) is None:
            begun = render_text(format_, [ASKED], (PROBE,), begin=False) + (before := header(format_))
            if not before or not called.startswith(begun):
                begun = _common(called, told)
            syntax = _syntax(called[len(begun) :])
            tagged = not syntax.opening and PYTHON_TAG in tokenizer.get_vocab()
            format_ = replace(format_, syntax=replace(syntax, tag=PYTHON_TAG) if tagged else syntax)
        format_.response([replace(PROBE_CALL, output="1")])
        return replace(format_, begun=begins_thought(format_)) if thinks(format_) else format_

    def read(self, tokens: TokenIds, tools: Sequence[Tool], prefix: TokenIds = NOTHING) -> list[ToolCall]:
        """Parse the calls in the sampled tokens of a turn.

        Args:
            prefix: tokens at the start of the turn that a teammate wrote.
        """
        ids = [int(token) for token in tokens]
        text = str(self.tokenizer.decode(ids[:-1] if ids and ids[-1] in self.stop_ids else ids))
        begun = self.after(str(self.tokenizer.decode(prefix.tolist()))).begun if len(prefix) else self.begun
        if self.syntax:
            return self.syntax.read(text, begun)
        text = text if begun is None else text[first_thought(text, begun) :]
        try:
            message = parsed_turn(getattr(self.tokenizer, "response_template", None), text, _schemas(tools))
            return [_parsed(call) for call in message.get("tool_calls") or ()]
        except CANNOT_RENDER as error:
            return [unreadable(text, raised(error))]

    def after(self, text: str) -> ToolFormat:
        """Return the format for a turn with a text prefix; the prefix may open or close reasoning."""
        return self if self.begun is None else replace(self, begun=thinking_after(text, self.begun))

    def response(self, calls: Sequence[ToolCall], ended: int | None = None) -> TokenIds | NotExact:
        """Return the ids after a turn with only ``calls``: tool results and the start of a new turn, [T].

        Args:
            ended: end-of-turn token already present in the turn. If None, the result starts with one.

        Raises:
            ValueError: the template cannot render tool results.
        """
        # only the following text counts
        turn, *answers = exchange("", [replace(call, arguments="{}") for call in calls])
        try:
            return appended(self, [ASKED, turn], answers, (PROBE,), ended)
        except TemplateError:  # some templates allow only one call a turn
            alone = {**turn, "tool_calls": turn["tool_calls"][:1]}
        try:
            return appended(self, [ASKED, alone], answers, (PROBE,), ended)
        except TemplateError as error:
            raise ValueError(f"its chat template cannot show what tools answered ({error}); {REMEDY}") from error

    def content(self, text: str) -> str:
        """Return the text of a turn without its tool calls. The reasoning may already be removed."""
        begun = self.begun and ENDS in text
        if self.syntax:
            places = [place for place, _ in self.syntax.placed(text, begun)]
            return text[: places[0] if places else len(text) if self.syntax.opening else 0].strip()
        start = 0 if begun is None else first_thought(text, begun)
        try:
            template = getattr(self.tokenizer, "response_template", None)
            said = str(parsed_turn(template, text[start:], ()).get("content") or "")
        except CANNOT_RENDER:
            return text
        kept = BEGINS not in json.dumps(getattr(self.tokenizer, "response_template", None), default=str)
        return text[:start] + said if kept else said

    def certain(self, text: str, dropped: bool = False) -> int:
        """Return how many leading characters of an unfinished turn are final text outside calls.

        Args:
            dropped: whether the text comes without the reasoning.
        """
        if self.syntax is None:
            return 0
        begun = self.begun and not dropped
        if not self.syntax.opening:  # the turn is either a call or text
            start = 0 if begun is None else first_thought(text, begun)
            begins = begun is False and BEGINS.startswith(text.lstrip())
            if not begins and not self.syntax.holds(text[start:]):
                return len(text)
            return 0 if text[:1].isspace() else len(text[:start].rstrip())
        mark = self.syntax.opening if begun is None else Said(self.syntax.opening, begun)
        return 0 if text[:1].isspace() else len(before(text, (mark,)).rstrip())


def _schemas(tools: Sequence[Tool]) -> list[Any]:
    return [schema(tool) for tool in tools]


def _parsed(call: object) -> ToolCall:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return unreadable(repr(call), "it names no tool")
    return asked(function["name"], function.get("arguments", {}))


def header(format: Format) -> str:
    """Return the template's text between a prompt and a completed turn; "" if unknown.

    A template may add more text, such as reasoning, before a new turn.
    """
    try:
        before = render_text(format, [ASKED], begin=False)
        after = render_text(format, [ASKED, SAID, MORE], begin=False)
    except CANNOT_RENDER:
        return ""
    return after[len(before) :].partition(SAID["content"])[0] if after.startswith(before) else ""


def _common(one: str, other: str) -> str:
    """Return the common prefix of two texts."""
    size = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:size]


def _syntax(said: str) -> Syntax:
    """Derive the syntax from a rendered turn with the probe call.

    Raises:
        ValueError: the call is not written as JSON.
    """
    decoder = json.JSONDecoder()
    for start, character in enumerate(said):
        if character not in "[{":
            continue
        try:
            found, _ = decoder.raw_decode(said, start)
        except ValueError:
            continue
        call = found[0] if isinstance(found, list) and found else found
        if not isinstance(call, dict):
            continue
        call = call.get("function", call)
        names = [key for key, value in call.items() if value == NAME]
        arguments = [key for key, value in call.items() if ARGUMENT in str(value)]
        if names and arguments:
            return Syntax(said[:start].strip(), names[0], arguments[0])
    raise ValueError(f"its chat template does not write calls as JSON, and it has no response_template; {REMEDY}")
