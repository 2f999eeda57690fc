"""How a model writes tool calls and is shown results, read off its own chat template.

A template says how past calls and results look. So a probe call is rendered and looked at: what stands before and after
its JSON is how this model calls. Tokenizers that bring a ``response_template`` are parsed by transformers with that.
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
PYTHON_TAG = "<|python_tag|>"  # Llama's, which begins calls that its templates show without it
_SPACES = re.compile(r"\s*+")
MOST_UNREADABLE = 100  # calls in a row, after which a turn is read no further
DEPTH = 64  # of the arguments of a call
REMEDY = "set models.….chat_template to a Jinja file that has one, or take the tools away from its agents"


@dataclass(frozen=True, slots=True)
class Syntax:
    """Calls as JSON after a marker; without one a turn either is a call or says something. What is written in a thought
    is no call, where the model has thoughts.

    >>> Syntax("<call>", "name", "arguments").read('Let me see. <call>{"name": "add", "arguments": {}}</call>')
    [ToolCall(name='add', arguments='{}', ...)]
    """

    opening: str
    name: str  # key of the tool's name
    arguments: str  # key of its arguments
    tag: str = ""  # what may stand before a call where there is no marker

    def read(self, text: str, begun: bool | None = None) -> list[ToolCall]:
        """The calls in what an agent wrote. One that cannot be read comes back as an error that says why.

        Args:
            begun: whether the text goes on from a thought; None: its model has no thoughts.
        """
        return [call for _, call in self.placed(text, begun)]

    def placed(self, text: str, begun: bool | None) -> list[tuple[int, ToolCall]]:
        """The same, and where each of them begins. A thought ends once more where no mark had begun it again: all
        before that was one."""
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
        """Whether a turn without a marker may be one call, as far as it is written."""
        said = text.lstrip()
        return self.tag.startswith(said) or said.removeprefix(self.tag).lstrip()[:1] in ("", "{")

    def _placed_bare(self, text: str, begun: bool | None) -> list[tuple[int, ToolCall]]:
        start = 0 if begun is None else first_thought(text, begun)
        said = text[start:].lstrip().removeprefix(self.tag)
        if said.lstrip()[:1] != "{" or any(f'"{key}"' not in said for key in (self.name, self.arguments)):
            return []
        return [(start, call) for call in self._read_one(said, 0)[0]]

    def _read_one(self, text: str, start: int) -> tuple[list[ToolCall], int]:
        """The calls that begin there, and where they end: what their arguments hold is not read as calls."""
        start = _SPACES.match(text, start).end()  # type: ignore[union-attr]  # it matches nothing, too
        try:
            found, end = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            following = text.find(self.opening, start) if self.opening else -1  # what comes there is another call
            said = text[start : following if following >= 0 else None]
            return [unreadable(said, f"it is no valid JSON: {error}")], start
        return [self._call(one) for one in (found if isinstance(found, list) else [found])], end

    def _call(self, found: object) -> ToolCall:
        if not isinstance(found, dict) or not isinstance(found.get(self.name), str):
            return unreadable("", f'it must be an object with "{self.name}" and "{self.arguments}"')
        return asked(found[self.name], found.get(self.arguments, {}))


def asked(name: str, arguments: object) -> ToolCall:
    """A call as the agent made it; its arguments are kept as JSON."""
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
    if storable(name + text) != name + text or storable(written) != written:  # escaped, it is text
        return unreadable(name + text, "it holds half a character")
    return ToolCall(name, text)


def _read(arguments: object) -> object:
    """What arguments that come as JSON say; those that are none stay text."""
    try:
        return json.loads(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return arguments


def _deeper(value: object, depth: int) -> bool:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth == 0 or any(_deeper(one, depth - 1) for one in inner)


def unreadable(text: str, why: str) -> ToolCall:
    """A call that could not be understood, with what the agent is told about it."""
    return ToolCall("", storable(text), output=storable(f"this call could not be read: {why}"), error=True)


@dataclass(frozen=True, slots=True, eq=False)
class ToolFormat:
    """The tool format of one model."""

    tokenizer: PreTrainedTokenizerBase
    template_options: Mapping[str, object]
    stop_ids: tuple[int, ...]
    syntax: Syntax | None  # None: the tokenizer's response_template says how to parse
    begun: bool | None = None  # whether the template begins turns with a thought; None: it knows of none

    @staticmethod
    def of(tokenizer: PreTrainedTokenizerBase, options: Mapping[str, object], stop_ids: tuple[int, ...]) -> ToolFormat:
        """Read the format off a tokenizer's chat template.

        Raises:
            ValueError: it has none, or cannot show what tools answered.
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
        """The calls in a turn's sampled tokens, which may come after a teammate's."""
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
        """Return the format of a turn that goes on from a text: a thought may be open there, or no longer."""
        return self if self.begun is None else replace(self, begun=thinking_after(text, self.begun))

    def response(self, calls: Sequence[ToolCall], ended: int | None = None) -> TokenIds | NotExact:
        """The ids that come after a turn which made ``calls`` and said nothing else: what the tools answered, and the
        start of a new turn.

        Args:
            ended: the end of turn that the turn has already; without one it is added.

        Raises:
            ValueError: the template cannot show it.
        """
        turn, *answers = exchange("", [replace(call, arguments="{}") for call in calls])  # only what follows counts
        try:
            return appended(self, [ASKED, turn], answers, (PROBE,), ended)
        except TemplateError:  # some templates allow for one call a turn
            alone = {**turn, "tool_calls": turn["tool_calls"][:1]}
        try:
            return appended(self, [ASKED, alone], answers, (PROBE,), ended)
        except TemplateError as error:
            raise ValueError(f"its chat template cannot show what tools answered ({error}); {REMEDY}") from error

    def content(self, text: str) -> str:
        """What a turn that calls tools says beside its calls. Its thought may have been dropped."""
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
        """How many first characters of a turn that is being written are said beside its calls, just so.

        Args:
            dropped: whether its thought is not among them.
        """
        if self.syntax is None:
            return 0
        begun = self.begun and not dropped
        if not self.syntax.opening:  # either a call, or none
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
    """What a template puts before a turn that was said: it may begin a turn with more. "" where that is not seen."""
    try:
        before = render_text(format, [ASKED], begin=False)
        after = render_text(format, [ASKED, SAID, MORE], begin=False)
    except CANNOT_RENDER:
        return ""
    return after[len(before) :].partition(SAID["content"])[0] if after.startswith(before) else ""


def _common(one: str, other: str) -> str:
    """What two texts begin with."""
    size = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:size]


def _syntax(said: str) -> Syntax:
    """The syntax of a turn that makes the probe call.

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
