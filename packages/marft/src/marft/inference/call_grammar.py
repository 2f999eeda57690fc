"""Grammars of answers that a client asks for: calls of its tools, as a model's own chat template writes them, or JSON.

Two calls of a probe are rendered, and what stands before, between and after their names and arguments is the format.
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
    """How a turn that calls tools is written: ``opening``, then calls with ``between`` them, then ``closing``.

    Args:
        call: the text of a call around its name and its arguments: before the first of them, between them, after both.
        name_first: whether the name comes before the arguments.
        between: None where a turn makes one call alone.
    """

    opening: str
    call: tuple[str, str, str]
    name_first: bool
    between: str | None
    closing: str

    @staticmethod
    def of(format: Format) -> CallFormat:
        """Read it off a chat template.

        Raises:
            ValueError: calls are not written as JSON.
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
        except CANNOT_RENDER:  # one call a turn
            twice = ""
        pair = list(_calls_in(twice))
        if len(pair) == 2:
            between = twice[pair[0][1] : pair[1][0]]
        call, name_first = _around(once[start:stop])
        return CallFormat(once[:start], call, name_first, between, once[stop:])

    def rules(self, tokenizer: PreTrainedTokenizerBase, tools: Sequence[Tool], parallel: bool) -> list[str]:
        """Rules of Lark's for a turn that calls one of these tools, or several: the first of them is ``calls``."""
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
    """What an answer to a chat must be.

    Raises:
        ValueError: the model's chat template does not write calls as JSON, or a schema cannot be held.
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
    """The turn that makes so many calls, from where the prompt for it ends to its end."""
    calls = exchange("", [PROBE_CALL] * count)
    prompt = render_text(format, [ASKED], (PROBE,))
    whole = render_text(format, [ASKED, *calls], (PROBE,), begin=False)
    if not whole.startswith(prompt):  # which may begin with an empty thought, that turns are shown without
        prompt = render_text(format, [ASKED], (PROBE,), begin=False) + header(format)
    if not whole.startswith(prompt):
        raise ValueError("it shows a turn that calls otherwise than one is asked for")
    end = str(format.tokenizer.decode(list(format.stop_ids[:1])))
    return whole[len(prompt) :].partition(end)[0]


def _calls_in(said: str) -> Iterator[tuple[int, int]]:
    """Where the JSON of each call begins and ends."""
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
    """What of a call's JSON stands before, between and after its name and its arguments; whether the name is first.

    Raises:
        ValueError: the arguments are no JSON object in it.
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
    """A text in Lark's words; control tokens in it are the tokens."""
    added = {str(token): number for number, token in tokenizer.added_tokens_decoder.items()}
    known = "|".join(map(re.escape, sorted(added, key=len, reverse=True)))
    parts = re.split(f"({known})", text) if known else [text]
    words = [f"<[{added[part]}]>" if part in added else json.dumps(part, ensure_ascii=False) for part in parts if part]
    return " ".join(words) or '""'
