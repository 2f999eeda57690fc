"""Grammars for client-constrained answers: tool calls in the model's own format, or JSON.

The tool-call format comes from the chat template. The template renders two probe calls. The text before, between and
after their names and arguments is the format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from transformers import PreTrainedTokenizerBase

from marft.agents.chat import Chat, Constraint
from marft.agents.prompt_messages import tool_call_messages
from marft.common.errors import UserError
from marft.common.texts import format_error
from marft.common.token_data import Grammar
from marft.common.types import Tool
from marft.inference.chat_messages import PROBE_QUESTION, ChatFormat, render_text
from marft.inference.schema_checks import check_schema, serialize_schema
from marft.inference.tool_format import PROBE_CALL, PROBE_NAME, PROBE_TOOL, turn_header
from marft.models.chat_templates import RENDER_ERRORS

NAME_JSON = json.dumps(PROBE_NAME)
PROBE_ARGUMENTS = json.loads(PROBE_CALL.arguments)


@dataclass(frozen=True, slots=True)
class CallFormat:
    """Text format for a turn with tool calls: ``opening``, calls separated by ``between``, ``closing``.

    Args:
        call: fixed text of one call in three parts: before the first field, between the two fields, after the second.
            The fields are the tool's name and its arguments.
        name_first: whether the name comes before the arguments.
        between: text between two calls. None if the template allows only one call a turn.
    """

    opening: str
    call: tuple[str, str, str]
    name_first: bool
    between: str | None
    closing: str

    @staticmethod
    def from_format(format: ChatFormat) -> CallFormat:
        """Derive the format from a chat template.

        Raises:
            UserError: the template cannot render tool calls, or it does not write them as JSON.
        """
        try:
            once = _render_calls(format, 1)
        except RENDER_ERRORS as error:
            raise UserError(
                f"its chat template cannot show a call of a tool ({format_error(error)}), so none can be forced"
            ) from error
        spans = list(_find_calls(once))
        if len(spans) != 1:
            raise UserError("its chat template does not write calls of tools as JSON, so none can be forced")
        (start, stop) = spans[0]
        between = None
        try:
            twice = _render_calls(format, 2)
        except RENDER_ERRORS:  # the template allows only one call a turn
            twice = ""
        pair = list(_find_calls(twice))
        if len(pair) == 2:
            between = twice[pair[0][1] : pair[1][0]]
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
            name, arguments = _to_terminals(tokenizer, json.dumps(tool.name, ensure_ascii=False)), f"arguments{number}"
            first, second = (name, arguments) if self.name_first else (arguments, name)
            parameters = {"type": "object", **tool.parameters}
            check_schema(parameters)
            schema = serialize_schema(parameters)
            rules += [f"call{number}: {before} {first} {middle} {second} {after}", f"{arguments}: %json {schema}"]
        opening, closing = _to_terminals(tokenizer, self.opening), _to_terminals(tokenizer, self.closing)
        more = f" ({_to_terminals(tokenizer, self.between)} call)*" if parallel and self.between is not None else ""
        call_choices = " | ".join(f"call{number}" for number in range(len(tools)))
        return [f"calls: {opening} call{more} {closing}", f"call: {call_choices}", *rules]


def build_grammar(format: ChatFormat, chat: Chat, constraint: Constraint) -> Grammar:
    """Return the grammar for the answer to a client's chat.

    Raises:
        UserError: the model's chat template does not write tool calls as JSON, or a schema is not supported.
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


def _render_calls(format: ChatFormat, count: int) -> str:
    """Render a turn with ``count`` probe calls, from the end of the prompt up to the end-of-turn token."""
    calls = tool_call_messages("", [PROBE_CALL] * count)
    prompt = render_text(format, [PROBE_QUESTION], (PROBE_TOOL,))
    full_text = render_text(format, [PROBE_QUESTION, *calls], (PROBE_TOOL,), add_generation_prompt=False)
    # the prompt may start with an empty reasoning block, which rendered past turns do not have
    if not full_text.startswith(prompt):
        prompt = render_text(format, [PROBE_QUESTION], (PROBE_TOOL,), add_generation_prompt=False) + turn_header(format)
    if not full_text.startswith(prompt):
        raise UserError("it shows a turn that calls otherwise than one is asked for")
    end = str(format.tokenizer.decode(list(format.stop_ids[:1])))
    return full_text[len(prompt) :].partition(end)[0]


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
    added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
    special_tokens = "|".join(map(re.escape, sorted(added, key=len, reverse=True)))
    parts = re.split(f"({special_tokens})", text) if special_tokens else [text]
    terminals = [
        f"<[{added[part]}]>" if part in added else json.dumps(part, ensure_ascii=False) for part in parts if part
    ]
    return " ".join(terminals) or '""'
