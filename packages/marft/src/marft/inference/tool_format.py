"""Tool-call format for a model, detected from its own chat template.

A template defines the text of past calls and results. Probe calls are rendered. The syntax that parses them exactly is
the model's call format. If a tokenizer has a ``response_template``, transformers parses the turns with that template
instead.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from jinja2 import TemplateError

from marft.agents.prompt_messages import NO_TOKENS, InexactContinuation, tool_call_messages
from marft.common.errors import UserError
from marft.common.reasoning import THINK_START, ends_in_reasoning
from marft.common.texts import common_prefix, format_error
from marft.common.types import TokenIds, Tool, ToolCall
from marft.inference.call_syntax import (
    PYTHON_TAG,
    CallSyntax,
    LocatedCall,
    Reasoning,
    derive_json_syntax,
    detect_syntax,
)
from marft.inference.call_values import build_error_call, build_tool_call
from marft.inference.chat_messages import (
    PROBE_ANSWER,
    PROBE_FOLLOW_UP,
    PROBE_QUESTION,
    ChatFormat,
    encode_appended,
    reasoning_tags,
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
# arguments that show how a template writes each type
TYPED_ARGUMENTS = {"text": "\n1 <b>", "number": 2, "flag": True, "list": [1, "a"], "table": {"key": None}}
PROBE_TYPES = {"text": "string", "number": "integer", "flag": "boolean", "list": "array", "table": "object"}
TYPED_TOOL = replace(
    PROBE_TOOL, parameters={"type": "object", "properties": {key: {"type": kind} for key, kind in PROBE_TYPES.items()}}
)
TYPED_CALL = ToolCall(PROBE_NAME, json.dumps(TYPED_ARGUMENTS))
HINT = "set models.….chat_template to a Jinja file that has one, or take the tools away from its agents"


@dataclass(frozen=True, slots=True, eq=False)
class ToolFormat:
    """Tool-call format for a model."""

    chat: ChatFormat
    syntax: CallSyntax | None  # None: the tokenizer's response_template defines the parser
    reasoning: Reasoning | None = None  # None: no reasoning support

    @staticmethod
    def from_format(format: ChatFormat) -> ToolFormat:
        """Detect the format from a model's chat template.

        Raises:
            UserError: the template has no tool format, or it cannot render tool results.
        """
        try:
            plain = render_text(format, [PROBE_QUESTION])
            with_tools = render_text(format, [PROBE_QUESTION], (PROBE_TOOL,))
            with_call = _render_call(format, PROBE_CALL, PROBE_TOOL)
        except RENDER_ERRORS as error:
            raise UserError(f"its chat template cannot render tools and their answers ({error}); {HINT}") from error
        if plain == with_tools:
            raise UserError(f"its chat template has no tool format: it leaves tools out; {HINT}")
        has_parser = getattr(format.tokenizer, "response_template", None) is not None
        syntax = None if has_parser else _find_syntax(format, with_call)
        reasoning = None
        if supports_reasoning(format):
            reasoning = Reasoning(*reasoning_tags(format), inside=starts_with_reasoning(format))
        tool_format = ToolFormat(format, syntax, reasoning)
        tool_format.encode_response([replace(PROBE_CALL, output="1")])
        return tool_format

    def parse_calls(self, tokens: TokenIds, tools: Sequence[Tool], prefix: TokenIds = NO_TOKENS) -> list[ToolCall]:
        """Parse the calls in the sampled tokens of a turn.

        Args:
            prefix: tokens at the start of the turn that a teammate wrote.
        """
        tokenizer, ids = self.chat.tokenizer, [int(token) for token in tokens]
        text = str(tokenizer.decode(ids[:-1] if ids and ids[-1] in self.chat.stop_ids else ids))
        reasoning = self.reasoning
        if len(prefix):
            reasoning = self.with_prefix(str(tokenizer.decode(prefix.tolist()))).reasoning
        if self.syntax:
            return self.syntax.parse_calls(text, reasoning, tools)
        text = text[reasoning.measure(text) if reasoning else 0 :]
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
        if self.reasoning is None:
            return self
        delimiters = self.reasoning.begins, self.reasoning.ends
        inside = ends_in_reasoning(text, self.reasoning.inside, delimiters)
        return replace(self, reasoning=replace(self.reasoning, inside=inside))

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
        """Return the text of a turn before its first tool call. The reasoning may already be removed."""
        reasoning = self.reasoning
        if self.syntax:
            calls = self._locate_calls(text)
            no_calls = None if self.syntax.has_markers else 0
            return text[: calls[0].start if calls else no_calls].strip()
        if reasoning is not None:
            reasoning = replace(reasoning, inside=reasoning.inside and reasoning.ends in text)
        start = reasoning.measure(text) if reasoning else 0
        try:
            content = str(parse_turn(self._response_template, text[start:], ()).get("content") or "")
        except RENDER_ERRORS:
            return text
        keeps_reasoning = THINK_START not in json.dumps(self._response_template, default=str)
        return text[:start] + content if keeps_reasoning else content

    def _locate_calls(self, text: str) -> list[LocatedCall]:
        """Return the calls of a turn, whose reasoning may already be removed."""
        assert self.syntax is not None
        if self.reasoning is None or not self.reasoning.inside:
            return self.syntax.locate_calls(text, self.reasoning)
        calls = self.syntax.locate_calls(text, replace(self.reasoning, inside=False))
        end = text.find(self.reasoning.ends)
        if end < 0 or any(located.start < end < located.end for located in calls):  # an argument holds the delimiter
            return calls
        return self.syntax.locate_calls(text, self.reasoning) or calls

    def final_length(self, text: str, without_reasoning: bool = False) -> int:
        """Return how many leading characters of an unfinished turn are final text outside calls.

        Args:
            without_reasoning: whether the text comes without the reasoning.
        """
        if self.syntax is None:
            return 0
        reasoning = self.reasoning
        if reasoning is not None and without_reasoning:
            reasoning = replace(reasoning, inside=False)
        return self.syntax.final_length(text, reasoning)


def _render_call(format: ChatFormat, call: ToolCall, tool: Tool, count: int = 1) -> str:
    """Render a conversation that ends with ``count`` equal calls."""
    turn = tool_call_messages("", [call] * count)[0]
    return render_text(format, [PROBE_QUESTION, turn], (tool,), add_generation_prompt=False)


def _find_syntax(format: ChatFormat, with_call: str) -> CallSyntax:
    """Return the syntax of a template's calls.

    Raises:
        UserError: no syntax parses the rendered probe calls.
    """
    for count in (2, 1):  # some templates allow only one call a turn
        try:
            rendered = _rendered_turn(format, _render_call(format, TYPED_CALL, TYPED_TOOL, count), TYPED_TOOL)
        except RENDER_ERRORS:
            continue
        if syntax := detect_syntax(rendered, [TYPED_CALL] * count, (TYPED_TOOL,)):
            return syntax
    derived = derive_json_syntax(_rendered_turn(format, with_call, PROBE_TOOL), PROBE_CALL)
    if derived is None:
        raise UserError(f"its chat template writes calls in no known syntax, and it has no response_template; {HINT}")
    has_tag = not derived.opening and PYTHON_TAG in format.tokenizer.get_vocab()
    return replace(derived, optional_tag=PYTHON_TAG) if has_tag else derived


def _rendered_turn(format: ChatFormat, with_call: str, tool: Tool) -> str:
    """Return the last turn of a rendered conversation, without its end-of-turn token."""
    header = turn_header(format)
    prompt = render_text(format, [PROBE_QUESTION], (tool,), add_generation_prompt=False) + header
    if header and with_call.startswith(prompt):
        turn = with_call[len(prompt) :]
    elif header.strip() and header in with_call:
        turn = with_call.rpartition(header)[2]
    else:
        turn = with_call[len(common_prefix(with_call, render_text(format, [PROBE_QUESTION], (tool,)))) :]
    ends = [str(format.tokenizer.decode([stop])) for stop in format.stop_ids]
    turn = turn.rpartition(reasoning_tags(format)[1])[2]  # some templates write empty reasoning before a call
    return turn[: min((turn.find(end) for end in ends if end in turn), default=None)]


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
