"""Tool-call syntaxes of model families: how a model writes calls, and how they are parsed.

A chat template defines how a past call is written. :func:`detect_syntax` takes the first syntax that parses rendered
probe calls exactly. The model's name plays no role.

A call that cannot be parsed becomes an error call. Its output tells the agent the reason.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from marft.agents.streaming import text_before
from marft.common.reasoning import THINK_END, THINK_START, StopString, measure_first_reasoning
from marft.common.texts import parse_json_text
from marft.common.types import Tool, ToolCall
from marft.inference.call_values import (
    build_error_call,
    build_tool_call,
    decode_json,
    decode_value,
    parameter_schema,
    skip_whitespace,
)
from marft.inference.python_calls import parse_python_calls

PYTHON_TAG = "<|python_tag|>"  # Llama's start of a call, which its templates do not render
MAX_PARSE_ERRORS = 100  # unreadable calls after which parsing of a turn stops
_SEPARATORS = re.compile(r"[\s;,]*+")


@dataclass(frozen=True, slots=True)
class Reasoning:
    """Reasoning format of a turn.

    Args:
        begins: start delimiter.
        ends: end delimiter.
        inside: whether the turn starts inside reasoning.
    """

    begins: str = THINK_START
    ends: str = THINK_END
    inside: bool = False

    def measure(self, text: str) -> int:
        """Return the length of reasoning at the start of a turn, up to its first end delimiter."""
        return measure_first_reasoning(text, self.inside, (self.begins, self.ends))


class LocatedCall(NamedTuple):
    """Call with its span in the text of a turn."""

    start: int
    end: int
    call: ToolCall


@dataclass(frozen=True, slots=True)
class CallSyntax(ABC):
    """Syntax for tool calls in a turn.

    Args:
        opening: marker before each call.
        section: marker before a group of calls; "" without groups.
        closing: text after a call; "" if nothing marks its end.
    """

    opening: str = ""
    section: str = ""
    closing: str = ""

    @property
    def has_markers(self) -> bool:
        """True if calls have markers. If not, a turn is either calls or text."""
        return True

    def parse_calls(self, text: str, reasoning: Reasoning | None = None, tools: Sequence[Tool] = ()) -> list[ToolCall]:
        """Parse the calls in an agent's text.

        Args:
            reasoning: the model's reasoning format. Calls inside reasoning do not count. None: the model has none.
            tools: the agent's tools. Their schemas give the types of arguments that are written without a type.
        """
        return [located.call for located in self.locate_calls(text, reasoning, tools)]

    def locate_calls(self, text: str, reasoning: Reasoning | None, tools: Sequence[Tool] = ()) -> list[LocatedCall]:
        """Parse the calls and return each with its span.

        An end delimiter without a matching start delimiter is text.
        """
        markers = [marker for marker in (self.section, self.opening) if marker]
        pattern = _any_of([*markers, *([reasoning.begins] if reasoning else [])])
        calls, offset, section = list[LocatedCall](), 0, -1
        inside = reasoning is not None and reasoning.inside
        while True:
            if reasoning is not None and inside:
                end = text.find(reasoning.ends, offset)
                offset = len(text) if end < 0 else end + len(reasoning.ends)
            match = pattern.search(text, offset)
            marker = match[0] if match else ""
            if section >= 0 and marker != self.opening:
                stop = match.start() if match else len(text)
                calls.append(LocatedCall(section, stop, build_error_call(text[section:stop], "it names no tool")))
            if match is None:
                return calls
            offset, inside = match.end(), reasoning is not None and marker == reasoning.begins
            if marker == self.opening:
                new, offset = self.parse_at(text, offset, tools)
                start = section if section >= 0 else match.start()
                calls += [LocatedCall(start, offset, call) for call in new]
            section = match.start() if self.section and marker == self.section else -1
            if sum(located.call.error for located in calls) >= MAX_PARSE_ERRORS:
                reason = f"{MAX_PARSE_ERRORS} calls before it could not be read either"
                return [*calls, LocatedCall(offset, len(text), build_error_call("", reason))]

    @abstractmethod
    def parse_at(self, text: str, start: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        """Parse the calls after an opening marker, and return them with their end offset."""

    def final_length(self, text: str, reasoning: Reasoning | None) -> int:
        """Return how many leading characters of an unfinished turn are final text outside calls."""
        marks = [
            marker if reasoning is None else StopString(marker, reasoning.inside, reasoning.begins, reasoning.ends)
            for marker in (self.section, self.opening)
            if marker
        ]
        return 0 if text[:1].isspace() else len(text_before(text, marks).rstrip())

    def _error_at(self, text: str, start: int, reason: str) -> tuple[list[ToolCall], int]:
        """Return an error call for a call that cannot be read, and the offset after it.

        Without a closing marker, the call ends at the next opening marker. A call quoted inside it is not made.
        """
        closing = text.find(self.closing, start) if self.closing else -1
        following = text.find(self.opening, start) if self.opening else -1
        end = closing if closing >= 0 else following if following >= 0 else len(text)
        return [build_error_call(text[start:end], reason)], end


@dataclass(frozen=True, slots=True)
class BareSyntax(CallSyntax):
    """Syntax without a marker: a turn is either calls or text.

    Args:
        optional_tag: text that may precede a call.
    """

    optional_tag: str = ""

    @property
    def has_markers(self) -> bool:
        """True if calls have markers."""
        return bool(self.opening)

    def locate_calls(self, text: str, reasoning: Reasoning | None, tools: Sequence[Tool] = ()) -> list[LocatedCall]:
        """Parse the calls; see :meth:`CallSyntax.locate_calls`."""
        if self.has_markers:
            # super() without arguments fails in a dataclass with slots
            return CallSyntax.locate_calls(self, text, reasoning, tools)
        start = reasoning.measure(text) if reasoning else 0
        content = text[start:].lstrip().removeprefix(self.optional_tag)
        calls = self.parse_at(content, 0, tools)[0] if self.is_call(content) else []
        return [LocatedCall(start, len(text), call) for call in calls]

    @abstractmethod
    def is_call(self, content: str) -> bool:
        """Return whether a turn without a marker is a call."""

    @abstractmethod
    def first_characters(self) -> str:
        """Return the characters that a call can start with."""

    def final_length(self, text: str, reasoning: Reasoning | None) -> int:
        """Return how many leading characters of an unfinished turn are final text outside calls."""
        if self.has_markers:
            return CallSyntax.final_length(self, text, reasoning)
        start = reasoning.measure(text) if reasoning else 0
        may_start_reasoning = (
            reasoning is not None and not reasoning.inside and reasoning.begins.startswith(text.lstrip())
        )
        stripped = text[start:].lstrip()
        first = stripped.removeprefix(self.optional_tag).lstrip()[:1]
        may_be_call = self.optional_tag.startswith(stripped) or first in self.first_characters()
        if not may_start_reasoning and not may_be_call:
            return len(text)
        return 0 if text[:1].isspace() else len(text[:start].rstrip())


@dataclass(frozen=True, slots=True)
class JsonSyntax(BareSyntax):
    """Calls as JSON objects with a name and arguments, or a list of them, after a marker or bare.

    Hermes, Qwen 2.5 and 3, Granite, Nemotron Nano 2, Llama 3, Mistral up to Nemo, Phi-4-mini.

    >>> syntax = JsonSyntax("<call>", name_key="name", arguments_key="arguments")
    >>> syntax.parse_calls('Let me see. <call>{"name": "add", "arguments": {}}</call>')
    [ToolCall(name='add', arguments='{}', ...)]
    """

    name_key: str = "name"
    arguments_key: str = "arguments"

    def is_call(self, content: str) -> bool:
        """Return whether a turn without a marker is a call."""
        return content.lstrip()[:1] in ("{", "[") and all(
            f'"{key}"' in content for key in (self.name_key, self.arguments_key)
        )

    def first_characters(self) -> str:
        """Return the characters that a call can start with."""
        return "{["

    def parse_at(self, text: str, start: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:  # noqa: ARG002
        """Parse an object or a list of objects; JSON inside arguments does not count."""
        calls = list[ToolCall]()
        while True:
            parsed, end, problem = decode_json(text, start)
            if problem:
                failed, end = self._error_at(text, start, f"it is no valid JSON: {problem}")
                return calls + failed, end
            calls += [self._build_call(item) for item in (parsed if isinstance(parsed, list) else [parsed])]
            start = _SEPARATORS.match(text, end).end()  # type: ignore[union-attr]  # the pattern matches ""
            if text[start : start + 1] != "{":
                return calls, end

    def _build_call(self, parsed: object) -> ToolCall:
        known = {self.name_key, "id", "type"}
        if isinstance(parsed, dict) and isinstance(parsed.get("function"), dict):
            parsed = parsed["function"]
        if not isinstance(parsed, dict) or not isinstance(parsed.get(self.name_key), str):
            return build_error_call("", f'it must be an object with "{self.name_key}" and "{self.arguments_key}"')
        if self.arguments_key not in parsed and parsed.keys() - known:
            return build_error_call(json.dumps(parsed), f'it has no "{self.arguments_key}"')
        return build_tool_call(parsed[self.name_key], parsed.get(self.arguments_key, {}))


@dataclass(frozen=True, slots=True)
class NamedJsonSyntax(CallSyntax):
    """Calls as a tool's name, followed by its arguments as JSON.

    Args:
        header: pattern for the text between the opening marker and the JSON, with the group ``name``.
        form: description of the header, for error messages.
    """

    header: str = ""
    form: str = ""

    def parse_at(self, text: str, start: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:  # noqa: ARG002
        """Parse the name and the arguments."""
        match = re.compile(self.header).match(text, start)
        if match is None:
            return self._error_at(text, start, f"it must have the form {self.form}")
        _, end, problem = decode_json(text, match.end())
        if problem:
            return self._error_at(text, start, f"its arguments are no valid JSON: {problem}")
        if text.startswith("{", skip_whitespace(text, end)):
            return self._error_at(text, start, "its arguments are one JSON object")
        return [build_tool_call(match["name"], text[match.end() : end].strip())], end


@dataclass(frozen=True, slots=True)
class TaggedSyntax(CallSyntax):
    """Calls with a tag for each parameter, and values as plain text.

    The tool's schema gives a value's type. A string is written without quotes.

    Args:
        header: pattern for the text between the opening marker and the first parameter, with the group ``name``.
        parameter: pattern for a parameter's start, with the group ``key``. An optional group ``is_string`` is "true" or
            "false" and gives the value's type.
        value_end: text after a value.
        wrap: text on both sides of a value that does not belong to it.
    """

    header: str = ""
    parameter: str = ""
    value_end: str = ""
    wrap: str = ""

    def parse_at(self, text: str, start: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        """Parse the name and the parameters."""
        match = re.compile(self.header).match(text, start)
        if match is None:
            return self._error_at(text, start, "it names no tool")
        name, offset = match["name"].strip(), match.end()
        parameters = next((tool.parameters for tool in tools if tool.name == name), {})
        arguments: dict[str, object] = {}
        while True:
            offset = skip_whitespace(text, offset)
            if text.startswith(self.closing, offset):
                return [build_tool_call(name, arguments)], offset + len(self.closing)
            parameter = re.compile(self.parameter).match(text, offset)
            if parameter is None:
                reason = f"{self.closing} or a parameter must follow, not {text[offset : offset + 20]!r}"
                return self._error_at(text, start, reason)
            key = parameter["key"]
            end = self._find_value_end(text, parameter.end())
            if end < 0:
                reason = f"its parameter {key!r} does not end with {self.value_end} and then {self.closing}"
                return self._error_at(text, start, reason)
            if key in arguments:
                return self._error_at(text, start, f"it has the parameter {key!r} twice")
            value = text[parameter.end() : end].removeprefix(self.wrap).removesuffix(self.wrap)
            is_string = parameter.groupdict().get("is_string")
            schema = {} if is_string else parameter_schema(parameters, key)
            arguments[key] = value if is_string == "true" else decode_value(value, schema)
            offset = end + len(self.value_end)

    def _find_value_end(self, text: str, start: int) -> int:
        """Return the offset of the end of a value, -1 without one. Only a parameter or the call's end may follow it.

        Whole calls inside the value belong to it. A call that starts inside and does not end is text.
        """
        marks = _find_value_marks(self, text)
        following = bisect_left(marks.starts, start)
        ends = marks.ends[marks.levels[following]] if following < len(marks.starts) else []
        if (index := bisect_left(ends, start)) < len(ends):
            return ends[index]
        end = text.find(self.value_end, start)
        while end >= 0:
            after = skip_whitespace(text, end + len(self.value_end))
            if text.startswith(self.closing, after) or re.compile(self.parameter).match(text, after):
                return end
            end = text.find(self.value_end, end + 1)
        return -1


class _ValueMarks(NamedTuple):
    """Starts of calls with parameters, and ends of values, in a text.

    Args:
        starts: offsets of both.
        levels: number of calls around each of them.
        ends: offsets of the ends of values, by level.
    """

    starts: list[int]
    levels: list[int]
    ends: dict[int, list[int]]


@lru_cache(maxsize=8)  # every value of a turn asks for the same marks
def _find_value_marks(syntax: TaggedSyntax, text: str) -> _ValueMarks:
    header, parameter = (re.sub(r"\?P<\w+>", "", pattern) for pattern in (syntax.header, syntax.parameter))
    opening, value_end, closing = map(re.escape, (syntax.opening, syntax.value_end, syntax.closing))
    pattern = rf"(?P<call>{opening}{header}\s*+(?={parameter}))|{value_end}(?=\s*+(?:(?P<last>{closing})|{parameter}))"
    marks, level = _ValueMarks([], [], defaultdict(list)), 0
    for mark in re.compile(pattern).finditer(text):
        marks.starts.append(mark.start())
        marks.levels.append(level)
        if mark["call"] is None:
            marks.ends[level].append(mark.start())
        level += 1 if mark["call"] else -1 if mark["last"] else 0
    return marks


@dataclass(frozen=True, slots=True)
class GemmaSyntax(CallSyntax):
    """Gemma 4's calls: ``call:name{key:value,…}``, with bare keys, and strings between ``<|"|>``."""

    def parse_at(self, text: str, start: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:  # noqa: ARG002
        """Parse the name and the arguments."""
        match = re.compile(r"\s*call:(?P<name>[^\s{}]+)(?=\{)").match(text, start)
        if match is None:
            return self._error_at(text, start, "it must have the form call:name{key:value}")
        marks = re.compile(rf"{GEMMA_STRING}|{re.escape(self.closing)}", re.DOTALL).finditer(text, match.end())
        end = next((mark.start() for mark in marks if mark["string"] is None), len(text))
        written = text[match.end() : end].strip()
        parsed, _, problem = decode_json(_GEMMA_TOKENS.sub(_gemma_token_to_json, written), 0)
        if problem:
            return self._error_at(text, start, f"its arguments cannot be read: {problem}")
        return [build_tool_call(match["name"], parsed)], end


GEMMA_STRING = r'<\|"\|>(?P<string>.*?)<\|"\|>'
_GEMMA_TOKENS = re.compile(
    rf'{GEMMA_STRING}|(?<![^\s{{}}\[\],:"])(?P<key>[^\s{{}}\[\],:"]++)(?=\s*+:)|(?P<none>(?<=[:,\[])None(?=[,\]}}]))',
    re.DOTALL,
)


def _gemma_token_to_json(match: re.Match[str]) -> str:
    if match["none"]:  # earlier templates write Python's constant
        return "null"
    return json.dumps(match["string"] if match["string"] is not None else match["key"])


@dataclass(frozen=True, slots=True)
class PythonSyntax(BareSyntax):
    """Calls as a Python list of function calls, after a marker or bare (Llama 4, Llama 3.2, LFM 2, Gemma 3)."""

    def is_call(self, content: str) -> bool:
        """Return whether a turn without a marker is a call."""
        return re.match(r"\s*\[\s*[A-Za-z_][\w.-]*\(", content) is not None

    def first_characters(self) -> str:
        """Return the characters that a call can start with."""
        return "["

    def parse_at(self, text: str, start: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:  # noqa: ARG002
        """Parse the list up to the closing marker, or to the end of the text."""
        end = text.find(self.closing, start) if self.closing else len(text)
        source = text[start : end if end >= 0 else None].strip()
        try:
            calls = parse_python_calls(source)
        except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError) as error:
            return self._error_at(text, start, f"it is no list of Python calls: {error}")
        return calls, end if end >= 0 else len(text)


@dataclass(frozen=True, slots=True)
class HarmonySyntax(CallSyntax):
    """gpt-oss's calls: messages with a recipient, ``to=functions.name``, in any channel.

    A turn is a series of messages. Each has a header with its channel, and a text after ``<|message|>``. Reasoning is a
    channel.
    """

    def locate_calls(
        self,
        text: str,
        reasoning: Reasoning | None,  # noqa: ARG002
        tools: Sequence[Tool] = (),  # noqa: ARG002
    ) -> list[LocatedCall]:
        """Parse the messages with a recipient."""
        calls, end = list[LocatedCall](), 0
        for message in _iter_harmony_messages(text):
            end = message.end
            recipient = _HARMONY_RECIPIENT.search(message.header)
            if recipient is not None:
                call = self._build_call(recipient["name"], message.body)
                calls.append(LocatedCall(message.start, message.end, call))
        header = _find_header(text, end)
        if (header >= 0 and _HARMONY_RECIPIENT.search(text, header)) or _HARMONY_START.match(text, end):
            error = build_error_call(text[end:], "it has no <|message|> with arguments")
            calls.append(LocatedCall(end, len(text), error))
        return calls

    def parse_at(self, text: str, start: int, tools: Sequence[Tool]) -> tuple[list[ToolCall], int]:
        """Parse the calls in the text after ``start``."""
        return [located.call for located in self.locate_calls(text[start:], None, tools)], len(text)

    def final_length(self, text: str, reasoning: Reasoning | None) -> int:
        """Return how many leading characters of an unfinished turn are final text outside calls."""
        if text[:1].isspace():
            return 0
        calls = self.locate_calls(text, reasoning)
        if calls:
            return calls[0].start
        end = max([0, *(message.end for message in _iter_harmony_messages(text))])
        header = _find_header(text, end)  # may get a recipient
        return header if header >= 0 else len(text)

    @staticmethod
    def _build_call(name: str, body: str) -> ToolCall:
        _, end, problem = decode_json(body, 0)
        if problem:
            return build_error_call(body, f"its arguments are no valid JSON: {problem}")
        return build_tool_call(name, body[:end].strip())


HARMONY_HEADER_MARKERS = ("<|start|>", "<|channel|>")
_HARMONY_BODY_END = re.compile(r"<\|(?:end|call|return)\|>|(?=<\|(?:start|channel)\|>)|\Z")
_HARMONY_START = re.compile(r"\s*to=functions\.")  # of a turn, whose role the prompt wrote
_HARMONY_RECIPIENT = re.compile(r"\bto=(?:functions\.)?(?P<name>[^\s<]+)")


class _HarmonyMessage(NamedTuple):
    header: str
    body: str
    start: int  # offset of the header
    end: int


def _find_header(text: str, start: int) -> int:
    """Return the offset of the first header marker after ``start``, -1 without one."""
    return min((at for marker in HARMONY_HEADER_MARKERS if (at := text.find(marker, start)) >= 0), default=-1)


def _iter_harmony_messages(text: str) -> Iterator[_HarmonyMessage]:
    start = 0
    while (header_end := text.find("<|message|>", start)) >= 0:
        header, body_start = text[start:header_end], header_end + len("<|message|>")
        # arguments may contain markers
        arguments_end = decode_json(text, body_start)[1] if _HARMONY_RECIPIENT.search(header) else body_start
        end = _HARMONY_BODY_END.search(text, arguments_end)
        assert end is not None
        yield _HarmonyMessage(header, text[body_start : end.start()], start, end.end())
        start = end.end()


_XML = {"opening": "<function=", "closing": "</function>", "header": r"(?P<name>[^>\n]+)>"} | {
    "parameter": r"<parameter=(?P<key>[^>\n]+)>", "value_end": "</parameter>",
}  # fmt: skip
_DSML = {
    "opening": '<｜DSML｜invoke name="', "closing": "</｜DSML｜invoke>", "header": r'(?P<name>[^"\n]+)">',
    "parameter": r'<｜DSML｜parameter name="(?P<key>[^"\n]+)" string="(?P<is_string>true|false)">',
    "value_end": "</｜DSML｜parameter>",
}  # fmt: skip
# syntaxes with fixed markers; JSON after a marker is derived from the template
SYNTAXES: tuple[CallSyntax, ...] = (
    TaggedSyntax(section="<tool_call>", wrap="\n", **_XML),  # Qwen3-Coder, Qwen 3.5, Nemotron 3
    TaggedSyntax(section="<tool_call>", **_XML),
    TaggedSyntax(section="<seed:tool_call>", **_XML),  # Seed-OSS
    TaggedSyntax(
        opening="<tool_call>", closing="</tool_call>", header=r"\s*(?P<name>[^\s<{\[]+)\s*(?=<arg_key>|</tool_call>)",
        parameter=r"<arg_key>(?P<key>[^<\n]+)</arg_key>\s*<arg_value>", value_end="</arg_value>",
    ),  # GLM 4.5 and later
    TaggedSyntax(
        section="<minimax:tool_call>", opening='<invoke name="', closing="</invoke>", header=r'(?P<name>[^"\n]+)">',
        parameter=r'<parameter name="(?P<key>[^"\n]+)">', value_end="</parameter>",
    ),  # MiniMax M2
    TaggedSyntax(section="<｜DSML｜function_calls>", **_DSML),  # DeepSeek 3.2
    TaggedSyntax(section="<｜DSML｜tool_calls>", **_DSML),  # DeepSeek 4
    NamedJsonSyntax(
        section="<｜tool▁calls▁begin｜>", opening="<｜tool▁call▁begin｜>", closing="<｜tool▁call▁end｜>",
        header=r"\s*+function<｜tool▁sep｜>(?P<name>[^\n<]++)\n```json\n", form="function<｜tool▁sep｜>name, and JSON",
    ),  # DeepSeek 3, R1
    NamedJsonSyntax(
        section="<｜tool▁calls▁begin｜>", opening="<｜tool▁call▁begin｜>", closing="<｜tool▁call▁end｜>",
        header=r"\s*+(?P<name>[^\s<]++)\s*+<｜tool▁sep｜>", form="name<｜tool▁sep｜>{…}",
    ),  # DeepSeek 3.1
    NamedJsonSyntax(
        section="<|tool_calls_section_begin|>", opening="<|tool_call_begin|>", closing="<|tool_call_end|>",
        header=r"\s*(?:functions\.)?(?P<name>[^\s<:]+)(?::\d+)?\s*<\|tool_call_argument_begin\|>",
        form="functions.name:0<|tool_call_argument_begin|>{…}",
    ),  # Kimi K2
    NamedJsonSyntax(
        opening="[TOOL_CALLS]", header=r"\s*(?P<name>[^\s\[\]{}]+)(?:\[CALL_ID\][^\[\]{}]*)?\[ARGS\]",
        form="name[ARGS]{…}",
    ),  # Mistral Small 3.1 and later, Magistral, Ministral 3, Devstral
    GemmaSyntax(opening="<|tool_call>", closing="<tool_call|>"),  # Gemma 4
    HarmonySyntax(closing="<|call|>"),  # gpt-oss
    PythonSyntax(opening="<|tool_call_start|>", closing="<|tool_call_end|>"),  # LFM 2
    PythonSyntax(optional_tag=PYTHON_TAG),  # Llama 4
)  # fmt: skip


def detect_syntax(rendered: str, calls: Sequence[ToolCall], tools: Sequence[Tool]) -> CallSyntax | None:
    """Return the first syntax that parses exactly ``calls`` in a turn rendered by a chat template; None without one."""
    expected = [(call.name, json.loads(call.arguments)) for call in calls]
    for syntax in SYNTAXES:
        parsed = syntax.parse_calls(rendered, None, tools)
        if (
            syntax.section in rendered
            and not any(call.error for call in parsed)
            and [(call.name, parse_json_text(call.arguments)) for call in parsed] == expected
        ):
            return syntax
    return None


def derive_json_syntax(rendered: str, call: ToolCall) -> JsonSyntax | None:
    """Derive the syntax of a call written as JSON: the text before it is its marker; None if it is not JSON.

    Args:
        rendered: the turn as rendered by a chat template.
        call: the turn's call.
    """
    arguments = json.loads(call.arguments)
    for start, character in enumerate(rendered):
        if character not in "[{":
            continue
        parsed, end, _ = decode_json(rendered, start)
        item = parsed[0] if isinstance(parsed, list) and parsed else parsed
        function = item.get("function", item) if isinstance(item, dict) else None
        if not isinstance(function, dict):
            continue
        names = [key for key, value in function.items() if value == call.name]
        values = [key for key, value in function.items() if parse_json_text(value) == arguments]
        if names and values:
            closing = rendered[end:].strip() if rendered[:start].strip() else ""
            syntax = JsonSyntax(rendered[:start].strip(), closing=closing, name_key=names[0], arguments_key=values[0])
            parsed = syntax.parse_calls(rendered)
            return (
                syntax
                if [(found.name, parse_json_text(found.arguments)) for found in parsed] == [(call.name, arguments)]
                else None
            )
    return None


def _any_of(texts: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))) or "(?!)")
