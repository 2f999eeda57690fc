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
from marft.agents.rendering import exchange
from marft.common.marks import Grammar
from marft.common.texts import raised
from marft.common.types import Tool
from marft.inference.messages import ASKED, Format, render_text
from marft.inference.schema_checks import check_schema
from marft.inference.schemas import schema_text
from marft.inference.tool_format import NAME, PROBE, PROBE_CALL, header
from marft.models.templates import CANNOT_RENDER

NAMED = json.dumps(NAME)
GIVEN = json.loads(PROBE_CALL.arguments)


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
    def of(format: Format) -> CallFormat:
        """Derive the format from a chat template.

        Raises:
            ValueError: the template cannot render tool calls, or it does not write them as JSON.
        """
        try:
            once = _said(format, 1)
        except CANNOT_RENDER as error:
            raise ValueError(
                f"its chat template cannot show a call of a tool ({raised(error)}), so none can be forced"
            ) from error
        spans = list(_calls_in(once))
        if len(spans) != 1:
            raise ValueError("its chat template does not write calls of tools as JSON, so none can be forced")
        (start, stop) = spans[0]
        between = None
        try:
            twice = _said(format, 2)
        except CANNOT_RENDER:  # the template allows only one call a turn
            twice = ""
        pair = list(_calls_in(twice))
        if len(pair) == 2:
            between = twice[pair[0][1] : pair[1][0]]
        call, name_first = _around(once[start:stop])
        return CallFormat(once[:start], call, name_first, between, once[stop:])

    def rules(self, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Tool], parallel: bool) -> list[str]:
        """Return the Lark rules for a turn with one tool call, or several if ``parallel``; the start rule is ``calls``.

        Raises:
            ValueError: the parameter schema of a tool is not supported.
        """
        before, middle, after = (_literal(tokenizer, text) for text in self.call)
        rules = []
        for number, tool in enumerate(tools):
            name, arguments = _literal(tokenizer, json.dumps(tool.name, ensure_ascii=False)), f"arguments{number}"
            first, second = (name, arguments) if self.name_first else (arguments, name)
            parameters = {"type": "object", **tool.parameters}
            check_schema(parameters)
            schema = schema_text(parameters)
            rules += [f"call{number}: {before} {first} {middle} {second} {after}", f"{arguments}: %json {schema}"]
        opening, closing = _literal(tokenizer, self.opening), _literal(tokenizer, self.closing)
        more = f" ({_literal(tokenizer, self.between)} call)*" if parallel and self.between is not None else ""
        either = " | ".join(f"call{number}" for number in range(len(tools)))
        return [f"calls: {opening} call{more} {closing}", f"call: {either}", *rules]


def grammar_of(format: Format, chat: Chat, constraint: Constraint) -> Grammar:
    """Return the grammar for the answer to a client's chat.

    Raises:
        ValueError: the model's chat template does not write tool calls as JSON, or a schema is not supported.
    """
    if constraint.kind == "call":
        tools = [tool for tool in chat.tools if constraint.tool in ("", tool.name)]
        rules = CallFormat.of(format).rules(format.tokenizer, tools, constraint.parallel)
        return Grammar("lark", "\n".join(["start: calls", *rules]))
    schema = {"type": "object"} if constraint.schema is None else constraint.schema
    check_schema(schema)
    if not (chat.tools and chat.calls):
        return Grammar("json", json.dumps(schema))
    rules = CallFormat.of(format).rules(format.tokenizer, chat.tools, constraint.parallel)
    return Grammar("lark", "\n".join(["start: calls | said", f"said: %json {schema_text(schema)}", *rules]))


def _said(format: Format, count: int) -> str:
    """Render a turn with ``count`` probe calls, from the end of the prompt up to the end-of-turn token."""
    calls = exchange("", [PROBE_CALL] * count)
    prompt = render_text(format, [ASKED], (PROBE,))
    whole = render_text(format, [ASKED, *calls], (PROBE,), begin=False)
    # the prompt may start with an empty reasoning block, which rendered past turns do not have
    if not whole.startswith(prompt):
        prompt = render_text(format, [ASKED], (PROBE,), begin=False) + header(format)
    if not whole.startswith(prompt):
        raise ValueError("it shows a turn that calls otherwise than one is asked for")
    end = str(format.tokenizer.decode(list(format.stop_ids[:1])))
    return whole[len(prompt) :].partition(end)[0]


def _calls_in(said: str) -> Iterator[tuple[int, int]]:
    """Yield the start and end offset of the JSON of each call."""
    decoder, at = json.JSONDecoder(), 0
    while (at := said.find("{", at)) >= 0:
        try:
            found, end = decoder.raw_decode(said, at)
        except ValueError:
            at += 1
            continue
        if NAMED in said[at:end] and isinstance(found, dict):
            yield at, end
        at = end


def _around(call: str) -> tuple[tuple[str, str, str], bool]:
    """Split one call's JSON around its name and arguments, and return whether the name comes first.

    Raises:
        ValueError: the call does not contain the arguments as a JSON object.
    """
    given = re.search(r"\{[^{}]*\}", call)
    if call.count(NAMED) != 1 or given is None or json.loads(given[0]) != GIVEN:
        raise ValueError(
            "its chat template does not write the arguments of calls as JSON objects, so none can be forced"
        )
    name = call.index(NAMED), call.index(NAMED) + len(NAMED)
    first, second = sorted((name, given.span()))
    return (call[: first[0]], call[first[1] : second[0]], call[second[1] :]), name < given.span()


def _literal(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Convert text to Lark terminals; control tokens become token ids."""
    added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
    known = "|".join(map(re.escape, sorted(added, key=len, reverse=True)))
    parts = re.split(f"({known})", text) if known else [text]
    words = [f"<[{added[part]}]>" if part in added else json.dumps(part, ensure_ascii=False) for part in parts if part]
    return " ".join(words) or '""'
