"""Tool-call format for a model, derived from its own chat template.

A template defines the text of past calls and results. A probe call is rendered, and the text around its JSON is the
model's call format. If a tokenizer has a ``response_template``, transformers parses the turns with that template
instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jinja2 import TemplateError

from marft.agents.prompt_messages import NO_TOKENS, InexactContinuation, tool_call_messages
from marft.agents.streaming import text_before
from marft.common.errors import UserError
from marft.common.reasoning import THINK_END, THINK_START, StopString, ends_in_reasoning, measure_first_reasoning
from marft.common.texts import common_prefix, format_error, parse_json_text, replace_surrogates
from marft.common.types import TokenIds, Tool, ToolCall
from marft.inference.chat_messages import (
    PROBE_ANSWER,
    PROBE_FOLLOW_UP,
    PROBE_QUESTION,
    ChatFormat,
    encode_appended,
    render_text,
    starts_with_reasoning,
    supports_reasoning,
    tool_schema,
)
from marft.models.chat_templates import RENDER_ERRORS, parse_turn

PROBE_NAME, PROBE_ARGUMENT, PROBE_VALUE = "probe_tool", "probe_argument", "probe_value"
PROBE_TOOL = Tool(
    PROBE_NAME,
    "A probe.",
    {"type": "object", "properties": {PROBE_ARGUMENT: {"type": "string"}}, "required": [PROBE_ARGUMENT]},
)
PROBE_CALL = ToolCall(PROBE_NAME, json.dumps({PROBE_ARGUMENT: PROBE_VALUE}))
PYTHON_TAG = "<|python_tag|>"  # Llama's start of a call, which its templates do not render
_WHITESPACE = re.compile(r"\s*+")
MAX_PARSE_ERRORS = 100  # consecutive unreadable calls after which parsing of a turn stops
MAX_DEPTH = 64  # maximum nesting of a call's arguments
HINT = "set models.….chat_template to a Jinja file that has one, or take the tools away from its agents"


@dataclass(frozen=True, slots=True)
class CallSyntax:
    """Syntax for calls as JSON after a marker. Without a marker, a turn is either a call or text.

    If the model supports reasoning, a call inside reasoning does not count.

    >>> syntax = CallSyntax("<call>", "name", "arguments")
    >>> syntax.parse_calls('Let me see. <call>{"name": "add", "arguments": {}}</call>')
    [ToolCall(name='add', arguments='{}', ...)]
    """

    opening: str
    name_key: str  # JSON key for the tool's name
    arguments_key: str  # JSON key for the arguments
    optional_tag: str = ""  # optional text before a call if there is no marker

    def parse_calls(self, text: str, in_reasoning: bool | None = None) -> list[ToolCall]:
        """Parse the calls in an agent's text. An unreadable call becomes an error call with a reason.

        Args:
            in_reasoning: whether the text starts inside reasoning; None: the model has no reasoning.
        """
        return [call for _, call in self.locate_calls(text, in_reasoning)]

    def locate_calls(self, text: str, in_reasoning: bool | None) -> list[tuple[int, ToolCall]]:
        """Parse the calls and return each with its start offset.

        An end tag without a matching start tag turns the whole text before it into reasoning.
        """
        if not self.opening:
            return self._locate_bare_calls(text, in_reasoning)
        markers = [self.opening] if in_reasoning is None else [self.opening, THINK_START, THINK_END]
        pattern = re.compile("|".join(map(re.escape, markers)))
        calls, offset, thinking = list[tuple[int, ToolCall]](), 0, bool(in_reasoning)
        while True:
            if thinking:
                end = text.find(THINK_END, offset)
                offset = len(text) if end < 0 else end + len(THINK_END)
            match = pattern.search(text, offset)
            if match is None:
                return calls
            offset, thinking = match.end(), match[0] == THINK_START
            if match[0] == THINK_END:
                calls.clear()
            elif not thinking:
                new, offset = self._parse_at(text, offset)
                calls += [(match.start(), call) for call in new]
                if sum(call.error for _, call in calls[-MAX_PARSE_ERRORS:]) == MAX_PARSE_ERRORS:
                    reason = f"{MAX_PARSE_ERRORS} calls before it could not be read either"
                    return [*calls, (offset, build_error_call("", reason))]

    def may_be_call(self, text: str) -> bool:
        """Return whether an incomplete turn without a marker can still become a call."""
        stripped = text.lstrip()
        first = stripped.removeprefix(self.optional_tag).lstrip()[:1]
        return self.optional_tag.startswith(stripped) or first in ("", "{")

    def _locate_bare_calls(self, text: str, in_reasoning: bool | None) -> list[tuple[int, ToolCall]]:
        start = 0 if in_reasoning is None else measure_first_reasoning(text, in_reasoning)
        content = text[start:].lstrip().removeprefix(self.optional_tag)
        if content.lstrip()[:1] != "{" or any(f'"{key}"' not in content for key in (self.name_key, self.arguments_key)):
            return []
        return [(start, call) for call in self._parse_at(content, 0)[0]]

    def _parse_at(self, text: str, start: int) -> tuple[list[ToolCall], int]:
        """Parse the calls at ``start`` and return their end offset; JSON inside arguments does not count."""
        start = _WHITESPACE.match(text, start).end()  # type: ignore[union-attr]  # the pattern matches ""
        try:
            parsed, end = json.JSONDecoder().raw_decode(text, start)
        except (ValueError, RecursionError) as error:
            following = text.find(self.opening, start) if self.opening else -1  # the next marker starts another call
            call_text = text[start : following if following >= 0 else None]
            return [build_error_call(call_text, f"it is no valid JSON: {error}")], start
        return [self._build_call(item) for item in (parsed if isinstance(parsed, list) else [parsed])], end

    def _build_call(self, parsed: object) -> ToolCall:
        if not isinstance(parsed, dict) or not isinstance(parsed.get(self.name_key), str):
            return build_error_call("", f'it must be an object with "{self.name_key}" and "{self.arguments_key}"')
        return build_tool_call(parsed[self.name_key], parsed.get(self.arguments_key, {}))


def build_tool_call(name: str, arguments: object) -> ToolCall:
    """Build a tool call from an agent's name and arguments; arguments are stored as JSON."""
    decoded = parse_json_text(arguments)
    if exceeds_depth(decoded, MAX_DEPTH):
        return build_error_call("", f"its arguments are nested more than {MAX_DEPTH} deep")
    try:
        written = json.dumps(decoded, allow_nan=False, ensure_ascii=False)
    except ValueError:
        return build_error_call("", "its arguments hold a number that is not finite, which JSON has not")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    if not name:
        return build_error_call(text, "it names no tool")
    # lone surrogates pass only as JSON escapes
    if replace_surrogates(name + text) != name + text or replace_surrogates(written) != written:
        return build_error_call(name + text, "it holds half a character")
    return ToolCall(name, text)


def exceeds_depth(value: object, depth: int) -> bool:
    """Return True if tables and lists nest so that a value is ``depth`` levels below the outermost."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return depth == 0 or any(exceeds_depth(child, depth - 1) for child in inner)


def build_error_call(text: str, reason: str) -> ToolCall:
    """Build an error call for unreadable text; its output tells the agent the reason."""
    return ToolCall(
        "", replace_surrogates(text), output=replace_surrogates(f"this call could not be read: {reason}"), error=True
    )


@dataclass(frozen=True, slots=True, eq=False)
class ToolFormat:
    """Tool-call format for a model."""

    chat: ChatFormat
    syntax: CallSyntax | None  # None: the tokenizer's response_template defines the parser
    # whether the template starts turns with reasoning; None: no reasoning support
    starts_in_reasoning: bool | None = None

    @staticmethod
    def from_format(format: ChatFormat) -> ToolFormat:
        """Derive the format from a model's chat template.

        Raises:
            UserError: the template has no tool format, or it cannot render tool results.
        """
        try:
            plain = render_text(format, [PROBE_QUESTION])
            with_tools = render_text(format, [PROBE_QUESTION], (PROBE_TOOL,))
            calls = tool_call_messages("", [PROBE_CALL])
            with_call = render_text(format, [PROBE_QUESTION, *calls], (PROBE_TOOL,), add_generation_prompt=False)
        except RENDER_ERRORS as error:
            raise UserError(f"its chat template cannot render tools and their answers ({error}); {HINT}") from error
        if plain == with_tools:
            raise UserError(f"its chat template has no tool format: it leaves tools out; {HINT}")
        syntax = None
        if getattr(format.tokenizer, "response_template", None) is None:
            header_text = turn_header(format)
            prompt = render_text(format, [PROBE_QUESTION], (PROBE_TOOL,), add_generation_prompt=False) + header_text
            if not header_text or not with_call.startswith(prompt):
                prompt = common_prefix(with_call, with_tools)
            syntax = _derive_syntax(with_call[len(prompt) :])
            if not syntax.opening and PYTHON_TAG in format.tokenizer.get_vocab():
                syntax = replace(syntax, optional_tag=PYTHON_TAG)
        tool_format = ToolFormat(format, syntax, starts_with_reasoning(format) if supports_reasoning(format) else None)
        tool_format.encode_response([replace(PROBE_CALL, output="1")])
        return tool_format

    def parse_calls(self, tokens: TokenIds, tools: Sequence[Tool], prefix: TokenIds = NO_TOKENS) -> list[ToolCall]:
        """Parse the calls in the sampled tokens of a turn.

        Args:
            prefix: tokens at the start of the turn that a teammate wrote.
        """
        tokenizer, ids = self.chat.tokenizer, [int(token) for token in tokens]
        text = str(tokenizer.decode(ids[:-1] if ids and ids[-1] in self.chat.stop_ids else ids))
        in_reasoning = self.starts_in_reasoning
        if len(prefix):
            in_reasoning = self.with_prefix(str(tokenizer.decode(prefix.tolist()))).starts_in_reasoning
        if self.syntax:
            return self.syntax.parse_calls(text, in_reasoning)
        text = text if in_reasoning is None else text[measure_first_reasoning(text, in_reasoning) :]
        try:
            message = parse_turn(self._response_template, text, [tool_schema(tool) for tool in tools])
            return [_convert_call(call) for call in message.get("tool_calls") or ()]
        except RENDER_ERRORS as error:
            return [build_error_call(text, format_error(error))]

    @property
    def _response_template(self) -> object:
        return getattr(self.chat.tokenizer, "response_template", None)

    def with_prefix(self, text: str) -> ToolFormat:
        """Return the format for a turn with a text prefix; the prefix may open or close reasoning."""
        if self.starts_in_reasoning is None:
            return self
        return replace(self, starts_in_reasoning=ends_in_reasoning(text, self.starts_in_reasoning))

    def encode_response(self, calls: Sequence[ToolCall], end_id: int | None = None) -> TokenIds | InexactContinuation:
        """Return the ids after a turn with only ``calls``: tool results and the start of a new turn, [T].

        Args:
            end_id: end-of-turn token already present in the turn. If None, the result starts with one.

        Raises:
            UserError: the template cannot render tool results.
        """
        # only the following text counts
        turn, *answers = tool_call_messages("", [replace(call, arguments="{}") for call in calls])
        try:
            return encode_appended(self.chat, [PROBE_QUESTION, turn], answers, (PROBE_TOOL,), end_id)
        except TemplateError:  # some templates allow only one call a turn
            single_call = {**turn, "tool_calls": turn["tool_calls"][:1]}
        try:
            return encode_appended(self.chat, [PROBE_QUESTION, single_call], answers, (PROBE_TOOL,), end_id)
        except TemplateError as error:
            raise UserError(f"its chat template cannot show what tools answered ({error}); {HINT}") from error

    def text_content(self, text: str) -> str:
        """Return the text of a turn without its tool calls. The reasoning may already be removed."""
        in_reasoning = self.starts_in_reasoning and THINK_END in text
        if self.syntax:
            offsets = [offset for offset, _ in self.syntax.locate_calls(text, in_reasoning)]
            return text[: offsets[0] if offsets else len(text) if self.syntax.opening else 0].strip()
        start = 0 if in_reasoning is None else measure_first_reasoning(text, in_reasoning)
        try:
            content = str(parse_turn(self._response_template, text[start:], ()).get("content") or "")
        except RENDER_ERRORS:
            return text
        keeps_reasoning = THINK_START not in json.dumps(self._response_template, default=str)
        return text[:start] + content if keeps_reasoning else content

    def final_length(self, text: str, without_reasoning: bool = False) -> int:
        """Return how many leading characters of an unfinished turn are final text outside calls.

        Args:
            without_reasoning: whether the text comes without the reasoning.
        """
        if self.syntax is None:
            return 0
        in_reasoning = self.starts_in_reasoning and not without_reasoning
        if not self.syntax.opening:  # the turn is either a call or text
            start = 0 if in_reasoning is None else measure_first_reasoning(text, in_reasoning)
            may_start_reasoning = in_reasoning is False and THINK_START.startswith(text.lstrip())
            if not may_start_reasoning and not self.syntax.may_be_call(text[start:]):
                return len(text)
            return 0 if text[:1].isspace() else len(text[:start].rstrip())
        mark = self.syntax.opening if in_reasoning is None else StopString(self.syntax.opening, in_reasoning)
        return 0 if text[:1].isspace() else len(text_before(text, (mark,)).rstrip())


def _convert_call(call: object) -> ToolCall:
    function = call.get("function", call) if isinstance(call, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return build_error_call(repr(call), "it names no tool")
    return build_tool_call(function["name"], function.get("arguments", {}))


def turn_header(format: ChatFormat) -> str:
    """Return the template's text between a prompt and a completed turn; "" if unknown.

    A template may add more text, such as reasoning, before a new turn.
    """
    try:
        before = render_text(format, [PROBE_QUESTION], add_generation_prompt=False)
        after = render_text(format, [PROBE_QUESTION, PROBE_ANSWER, PROBE_FOLLOW_UP], add_generation_prompt=False)
    except RENDER_ERRORS:
        return ""
    return after[len(before) :].partition(PROBE_ANSWER["content"])[0] if after.startswith(before) else ""


def _derive_syntax(rendered: str) -> CallSyntax:
    """Derive the syntax from a rendered turn with the probe call.

    Raises:
        UserError: the call is not written as JSON.
    """
    decoder = json.JSONDecoder()
    for start, character in enumerate(rendered):
        if character not in "[{":
            continue
        try:
            parsed, _ = decoder.raw_decode(rendered, start)
        except ValueError:
            continue
        call = parsed[0] if isinstance(parsed, list) and parsed else parsed
        if not isinstance(call, dict):
            continue
        call = call.get("function", call)
        names = [key for key, value in call.items() if value == PROBE_NAME]
        arguments = [key for key, value in call.items() if PROBE_ARGUMENT in str(value)]
        if names and arguments:
            return CallSyntax(rendered[:start].strip(), names[0], arguments[0])
    raise UserError(f"its chat template does not write calls as JSON, and it has no response_template; {HINT}")
