"""Grammars for client-constrained answers: tool calls in the model's own format, or JSON.

The tool-call format comes from the chat template. The template renders two probe calls. The text before, between and
after their names and arguments is the format. Arguments are a JSON object, or a tag for each parameter.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from transformers import PreTrainedTokenizerBase

from marft.agents.chat import Chat, Constraint
from marft.agents.prompt_messages import tool_call_messages
from marft.common.errors import UserError
from marft.common.texts import format_error, parse_json_text
from marft.common.token_data import Grammar
from marft.common.types import Tool, ToolCall
from marft.inference.call_syntax import TaggedSyntax
from marft.inference.call_values import parameter_schema, schema_types
from marft.inference.chat_messages import PROBE_QUESTION, ChatFormat, render_text
from marft.inference.schema_checks import check_schema, serialize_schema
from marft.inference.tool_format import (
    PROBE_ARGUMENT,
    PROBE_CALL,
    PROBE_NAME,
    PROBE_TOOL,
    PROBE_VALUE,
    ToolFormat,
    turn_header,
)
from marft.models.chat_templates import RENDER_ERRORS

# keywords of a text's schema that no grammar enforces outside JSON
TEXT_LIMITS = {"pattern", "format", "minLength", "maxLength", "const", "anyOf", "oneOf", "allOf", "not"}
NAME_JSON = json.dumps(PROBE_NAME)
PROBE_ARGUMENTS = json.loads(PROBE_CALL.arguments)


@dataclass(frozen=True, slots=True)
class ParameterFormat:
    """Fixed text of one parameter: before its name, between name and value, after the value."""

    before: str
    between: str
    after: str


@dataclass(frozen=True, slots=True)
class CallFormat:
    """Text format for a turn with tool calls: ``opening``, calls separated by ``between``, ``closing``.

    Args:
        call: fixed text of one call in three parts: before the first field, between the two fields, after the second.
            The fields are the tool's name and its arguments.
        name_first: whether the name comes before the arguments.
        between: text between two calls. None if the template allows only one call a turn.
        quotes_name: whether the name is JSON.
        parameters: formats of a parameter with text, and of one with JSON. None if the arguments are one JSON object.
    """

    opening: str
    call: tuple[str, str, str]
    name_first: bool
    between: str | None
    closing: str
    quotes_name: bool = True
    parameters: tuple[ParameterFormat, ParameterFormat] | None = None

    @property
    def end(self) -> str:
        """Text after the last call of a turn."""
        return self.closing if self.quotes_name else self.call[2] + self.closing

    @staticmethod
    def from_format(format: ChatFormat) -> CallFormat:
        """Derive the format from a chat template.

        Raises:
            UserError: the template cannot render tool calls, or a grammar cannot describe how it writes them.
        """
        try:
            once = _render_calls(format, 1)
        except RENDER_ERRORS as error:
            raise UserError(
                f"its chat template cannot show a call of a tool ({format_error(error)}), so none can be forced"
            ) from error
        try:
            twice = _render_calls(format, 2)
        except RENDER_ERRORS:  # the template allows only one call a turn
            twice = ""
        spans = list(_find_calls(once))
        if len(spans) != 1:
            return _split_named_call(format, once, twice)
        (start, stop) = spans[0]
        pair = list(_find_calls(twice))
        between = twice[pair[0][1] : pair[1][0]] if len(pair) == 2 else None
        call, name_first = _split_call(once[start:stop])
        return CallFormat(once[:start], call, name_first, between, once[stop:])

    def build_rules(self, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Tool], parallel: bool) -> list[str]:
        """Return the Lark rules for a turn with one tool call, or several if ``parallel``; the start rule is ``calls``.

        Raises:
            UserError: the parameter schema of a tool is not supported.
        """
        before, middle, after = (_to_terminals(tokenizer, text) for text in self.call)
        rules = []
        for number, tool in enumerate(tools):
            written = json.dumps(tool.name, ensure_ascii=False) if self.quotes_name else tool.name
            name, arguments = _to_terminals(tokenizer, written), f"arguments{number}"
            first, second = (name, arguments) if self.name_first else (arguments, name)
            parameters = {"type": "object", **tool.parameters}
            check_schema(parameters)
            rules.append(f"call{number}: {before} {first} {middle} {second} {after}")
            if self.parameters is None:
                rules.append(f"{arguments}: %json {serialize_schema(parameters)}")
            else:
                rules += _parameter_rules(tokenizer, self.parameters, parameters, arguments)
        opening, closing = _to_terminals(tokenizer, self.opening), _to_terminals(tokenizer, self.closing)
        more = f" ({_to_terminals(tokenizer, self.between)} call)*" if parallel and self.between is not None else ""
        call_choices = " | ".join(f"call{number}" for number in range(len(tools)))
        return [f"calls: {opening} call{more} {closing}", f"call: {call_choices}", *rules]


def _parameter_rules(
    tokenizer: PreTrainedTokenizerBase,
    formats: tuple[ParameterFormat, ParameterFormat],
    schema: Mapping[str, Any],
    rule: str,
) -> list[str]:
    """Return the Lark rules for arguments with a tag for each parameter, in the order of the schema.

    Raises:
        UserError: the schema limits a text in a way that the rules cannot express.
    """
    names, rules = list[str](), list[str]()
    for number, key in enumerate(schema.get("properties") or {}):
        parameter, name = parameter_schema(schema, key), f"{rule}_{number}"
        table = parameter if isinstance(parameter, Mapping) else {}
        is_text = not (types := schema_types(table)) or "string" in types
        format = formats[0 if is_text else 1]
        names.append(name if key in (schema.get("required") or ()) else f"{name}?")
        before = _to_terminals(tokenizer, f"{format.before}{key}{format.between}")
        after = _to_terminals(tokenizer, format.after)
        rules.append(f"{name}: {before} {name}_value" + ("" if is_text and not _is_token(after) else f" {after}"))
        if not is_text:
            inner = {**table, "$defs": schema.get("$defs", {})}
            rules.append(f"{name}_value: %json {serialize_schema(inner)}")
            continue
        unsupported = sorted(TEXT_LIMITS & table.keys())
        if unsupported:
            raise UserError(f"its chat template writes {key!r} as plain text, whose {unsupported[0]} cannot be forced")
        if values := table.get("enum"):
            choices = " | ".join(_to_terminals(tokenizer, str(value)) for value in values)
            rules.append(f"{name}_value: ({choices})" + ("" if _is_token(after) else f" {after}"))
        elif _is_token(after):
            rules.append(f"{name}_value: /(?s:.*)/")
        else:
            rules.append(f"{name}_value[suffix={json.dumps(format.after, ensure_ascii=False)}]: /(?s:.*)/")
    arguments = " ".join(names) or '""'
    return [f"{rule}: {arguments}", *rules]


def _is_token(terminals: str) -> bool:
    """Return whether terminals start with a token, which no text can contain."""
    return terminals.startswith("<[")


def _split_named_call(format: ChatFormat, once: str, twice: str) -> CallFormat:
    """Derive the format of calls whose name is outside JSON.

    Raises:
        UserError: a grammar cannot describe the calls.
    """
    refusal = UserError("its chat template writes calls of tools in a form of its own, so none can be forced")
    before, _, rest = once.partition(PROBE_NAME)
    if once.count(PROBE_NAME) != 1:
        raise refusal
    parameters = None
    match = re.search(r"\{[^{}]*\}", rest)
    if match is not None and parse_json_text(match[0]) == PROBE_ARGUMENTS:
        middle, after = rest[: match.start()], rest[match.end() :]
    elif isinstance(ToolFormat.from_format(format).syntax, TaggedSyntax):
        bare = _render_calls(format, 1, ToolCall(PROBE_NAME)).partition(PROBE_NAME)[2]
        pieces = [_split_tokens(format.tokenizer, text) for text in (rest, bare)]
        middle = "".join(pieces[0][: _count_common(*pieces)])
        after = bare[len(middle) :]
        values = {PROBE_VALUE: rest, "7": _render_number(format)}
        formats = [
            _split_parameter(text[len(middle) : len(text) - len(after)], value) for value, text in values.items()
        ]
        parameters = formats[0], formats[1]
    else:
        raise refusal
    opening, call, between, closing = _split_section(format.tokenizer, (before, middle, after), rest, twice)
    return CallFormat(opening, call, True, between, closing, quotes_name=False, parameters=parameters)


def _split_section(
    tokenizer: PreTrainedTokenizerBase, call: tuple[str, str, str], rest: str, twice: str
) -> tuple[str, tuple[str, str, str], str | None, str]:
    """Split the text around one call from the text around all calls of a turn.

    Args:
        call: text before the name, between name and arguments, and after the arguments.
        rest: text after the name in a turn with one call.
        twice: turn with two equal calls; "" if the template allows only one.

    Returns:
        Text before all calls, text of one call, text between two calls (None if unknown), text after all calls.
    """
    before, middle, after = call
    body, segments = rest[: len(rest) - len(after)], twice.split(PROBE_NAME)
    if len(segments) != 3 or not segments[1].startswith(body) or segments[2] != body + after:
        return "", call, None, ""
    joint = _split_tokens(tokenizer, segments[1][len(body) :])
    afters, befores = _split_tokens(tokenizer, after), _split_tokens(tokenizer, before)
    num_after = _count_common(joint, afters)
    joint = joint[num_after:]
    num_before = _count_common(joint[::-1], befores[::-1])
    start = len(befores) - num_before
    own = "".join(befores[start:]), middle, "".join(afters[:num_after])
    between = "".join(joint[: len(joint) - num_before])
    return "".join(befores[:start]), own, between, "".join(afters[num_after:])


def _count_common(first: Sequence[str], second: Sequence[str]) -> int:
    """Return the length of the common prefix of two sequences."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False)))


def _render_number(format: ChatFormat) -> str:
    """Return the text after the name in a turn with one call, whose argument is the number 7."""
    call = ToolCall(PROBE_NAME, json.dumps({PROBE_ARGUMENT: 7}))
    return _render_calls(format, 1, call).partition(PROBE_NAME)[2]


def _split_parameter(text: str, value: str) -> ParameterFormat:
    """Split the text of one parameter around its name and its value."""
    before, _, rest = text.partition(PROBE_ARGUMENT)
    between, _, after = rest.partition(value)
    return ParameterFormat(before, between, after)


def build_grammar(format: ChatFormat, chat: Chat, constraint: Constraint) -> Grammar:
    """Return the grammar for the answer to a client's chat.

    Raises:
        UserError: a grammar cannot describe the model's tool calls, or a schema is not supported.
    """
    if constraint.kind == "call":
        tools = [tool for tool in chat.tools if constraint.tool in ("", tool.name)]
        rules = CallFormat.from_format(format).build_rules(format.tokenizer, tools, constraint.allow_parallel_calls)
        return Grammar("lark", "\n".join(["start: calls", *rules]))
    schema = {"type": "object"} if constraint.schema is None else constraint.schema
    check_schema(schema)
    if not (chat.tools and chat.parse_calls):
        return Grammar("json", json.dumps(schema))
    rules = CallFormat.from_format(format).build_rules(format.tokenizer, chat.tools, constraint.allow_parallel_calls)
    return Grammar("lark", "\n".join(["start: calls | said", f"said: %json {serialize_schema(schema)}", *rules]))


def _render_calls(format: ChatFormat, count: int, call: ToolCall = PROBE_CALL) -> str:
    """Render a turn with ``count`` equal calls, from the end of the prompt up to the end-of-turn token."""
    calls = tool_call_messages("", [call] * count)
    prompt = render_text(format, [PROBE_QUESTION], (PROBE_TOOL,))
    full_text = render_text(format, [PROBE_QUESTION, *calls], (PROBE_TOOL,), add_generation_prompt=False)
    # the prompt may start with an empty reasoning block, which rendered past turns do not have
    if not full_text.startswith(prompt):
        prompt = render_text(format, [PROBE_QUESTION], (PROBE_TOOL,), add_generation_prompt=False) + turn_header(format)
    if not full_text.startswith(prompt):
        raise UserError("it shows a turn that calls otherwise than one is asked for")
    text = full_text[len(prompt) :]
    ends = [str(format.tokenizer.decode([stop])) for stop in format.stop_ids]
    return text[: min((text.find(end) for end in ends if end in text), default=None)]


def _find_calls(text: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end offset of the JSON of each call."""
    decoder, offset = json.JSONDecoder(), 0
    while (offset := text.find("{", offset)) >= 0:
        try:
            parsed, end = decoder.raw_decode(text, offset)
        except ValueError:
            offset += 1
            continue
        if NAME_JSON in text[offset:end] and isinstance(parsed, dict):
            yield offset, end
        offset = end


def _split_call(call: str) -> tuple[tuple[str, str, str], bool]:
    """Split one call's JSON around its name and arguments, and return whether the name comes first.

    Raises:
        UserError: the call does not contain the arguments as a JSON object.
    """
    arguments_match = re.search(r"\{[^{}]*\}", call)
    if call.count(NAME_JSON) != 1 or arguments_match is None or json.loads(arguments_match[0]) != PROBE_ARGUMENTS:
        raise UserError(
            "its chat template does not write the arguments of calls as JSON objects, so none can be forced"
        )
    name = call.index(NAME_JSON), call.index(NAME_JSON) + len(NAME_JSON)
    first, second = sorted((name, arguments_match.span()))
    return (call[: first[0]], call[first[1] : second[0]], call[second[1] :]), name < arguments_match.span()


def _to_terminals(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Convert text to Lark terminals; control tokens become token ids."""
    ids = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
    parts = _split_at_tokens(tokenizer, text)
    return (
        " ".join(f"<[{ids[part]}]>" if part in ids else json.dumps(part, ensure_ascii=False) for part in parts) or '""'
    )


def _split_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """Split a text into control tokens and single characters."""
    tokens = {str(token) for token in tokenizer.added_tokens_decoder.values()}
    return [piece for part in _split_at_tokens(tokenizer, text) for piece in ([part] if part in tokens else part)]


def _split_at_tokens(tokenizer: PreTrainedTokenizerBase, text: str) -> list[str]:
    """Split a text into control tokens and the texts between them."""
    tokens = sorted(map(str, tokenizer.added_tokens_decoder.values()), key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, tokens))})", text) if tokens else [text]
    return [part for part in parts if part]
