"""What tools return, Python's and MCP's, as the text that agents read."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal
from enum import Enum, StrEnum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import BaseModel

from marft.agents.tools.functions import FunctionSource
from marft.agents.tools.mcp import result_text
from marft.common.types import Task

mcp_types = pytest.importorskip("mcp_types")


@dataclass
class Point:
    x: int
    y: object = None


class Weather(BaseModel):
    city: str
    degrees: list[float] = [1.5]


class Color(Enum):
    RED = "red"


class Word(StrEnum):
    YES = "yes"


class Opaque:
    pass


def counted() -> Iterator[int]:
    yield from range(3)


def endless() -> Iterator[int]:
    while True:
        yield 1


async def later() -> AsyncIterator[Point]:
    yield Point(1)


async def awaited() -> dict[str, np.int64]:
    return {"n": np.int64(3)}


RESULTS: dict[str, tuple[Callable[[], object], str]] = {
    "text": (lambda: 'say "hi"', 'say "hi"'),
    "nothing": (lambda: None, "null"),
    "truth": (lambda: True, "true"),
    "whole": (lambda: 3, "3"),
    "real": (lambda: 0.5, "0.5"),
    "dataclass": (lambda: Point(1, Point(2)), '{"x": 1, "y": {"x": 2, "y": null}}'),
    "model": (lambda: [Weather(city="Ulm")], '[{"city": "Ulm", "degrees": [1.5]}]'),
    "numpy integer": (lambda: np.int64(4), "4"),
    "numpy real": (lambda: np.float32(0.5), "0.5"),
    "numpy truth": (lambda: {"ok": np.bool_(True)}, '{"ok": true}'),
    "array": (lambda: np.array([[1, 2]]), "[[1, 2]]"),
    "array inside": (lambda: Point(1, np.arange(2)), '{"x": 1, "y": [0, 1]}'),
    "enum": (lambda: Color.RED, '"red"'),
    "enum as key": (lambda: {Color.RED: 1}, '{"red": 1}'),
    "enum of texts": (lambda: Word.YES, "yes"),
    "set": (lambda: {1}, "[1]"),
    "frozen set": (lambda: frozenset("a"), '["a"]'),
    "bytes": (lambda: "für".encode(), '"für"'),
    "time": (lambda: datetime(2026, 1, 2, tzinfo=UTC), '"2026-01-02T00:00:00Z"'),
    "decimal": (lambda: Decimal("1.10"), '"1.10"'),
    "path": (lambda: Path("/x"), '"/x"'),
    "range": (lambda: range(3), "[0, 1, 2]"),
    "generator": (counted, "[0, 1, 2]"),
    "async generator": (later, '[{"x": 1, "y": null}]'),
    "coroutine": (awaited, '{"n": 3}'),
}


def returned(function: Callable[[], object]) -> str:
    async def call() -> str:
        source = FunctionSource(function)
        return await source.open(Task("t", ""), 0).call(function.__name__, {})

    return asyncio.run(call())


def bare(function: Callable[[], object]) -> Callable[[], object]:
    """A tool without a return annotation."""

    def tool():  # type: ignore[no-untyped-def]
        return function()

    return tool


@pytest.mark.parametrize("name", RESULTS)
def test_a_result_is_text_as_it_is_or_json(name: str) -> None:
    function, text = RESULTS[name]
    assert returned(bare(function)) == text


def test_what_is_missing_from_a_table_of_pandas_is_null() -> None:
    pandas = pytest.importorskip("pandas")
    table = pandas.DataFrame({"a": [1, 2], "t": pandas.to_datetime(["2026-01-02", None])})
    assert returned(bare(lambda: table)) == '{"a": [1, 2], "t": ["2026-01-02T00:00:00", null]}'
    assert returned(bare(lambda: [table["t"]])) == '[["2026-01-02T00:00:00", null]]'
    assert returned(bare(lambda: pandas.Series([1.5, None]))) == "[1.5, null]"
    assert returned(bare(lambda: pandas.Categorical(["x", None]))) == '["x", null]'


@pytest.mark.parametrize(
    "result",
    [Opaque, lambda: [Opaque()], lambda: print, lambda: int, lambda: b"\xff", endless],
    ids=["object", "list", "function", "class", "bytes", "endless"],
)
def test_a_result_that_is_no_json_is_refused_in_words(result: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"no JSON \(|more than 100,000 items"):
        returned(bare(result))


NEVER: list[Any] = [
    Opaque,
    list[Opaque],
    dict[str, Opaque],
    socket.socket,
    Callable[[], int],
    type,
    AsyncIterator[Opaque],
]


@pytest.mark.parametrize("annotation", NEVER, ids=str)
def test_a_tool_that_never_returns_json_is_refused_when_it_is_read(annotation: Any) -> None:
    def tool() -> None: ...

    tool.__annotations__["return"] = annotation
    with pytest.raises(ValueError, match=r"tool 'tool': it returns .*cannot be written as JSON; return text"):
        FunctionSource(tool)


FINE: list[Any] = [
    Any, None, object, np.ndarray, list[np.float64], Point, Weather, Color, set[int], bytes, Opaque | str,
    Iterator[int], AsyncIterator[Point], range, Decimal,
]  # fmt: skip


@pytest.mark.parametrize("annotation", FINE, ids=str)
def test_a_tool_that_may_return_json_is_taken(annotation: Any) -> None:
    def tool() -> None: ...

    tool.__annotations__["return"] = annotation
    assert FunctionSource(tool).tools[0].name == "tool"


def result_of(*content: dict[str, Any], **more: Any) -> str:
    return result_text(mcp_types.CallToolResult.model_validate({"content": list(content), **more}))


TEXT = {"type": "text", "text": "hello"}
CONTENTS: dict[str, tuple[dict[str, Any], str]] = {
    "text": (TEXT, "hello"),
    "image": ({"type": "image", "data": "aGVsbG8=", "mimeType": "image/png"}, "[image image/png, 5 bytes; it is not shown]"),
    "audio": ({"type": "audio", "data": "aGVsbG8=", "mimeType": "audio/wav"}, "[audio audio/wav, 5 bytes; it is not shown]"),
    "link": (
        {"type": "resource_link", "name": "report", "uri": "file:///r.pdf", "mimeType": "application/pdf", "size": 1234,
         "description": "The year."},
        "[resource 'report' at file:///r.pdf, application/pdf, 1,234 bytes] The year.",
    ),
    "bare link": ({"type": "resource_link", "name": "r", "uri": "file:///r"}, "[resource 'r' at file:///r]"),
    "text resource": (
        {"type": "resource", "resource": {"uri": "file:///a.txt", "mimeType": "text/plain", "text": "line\nline"}},
        "[resource file:///a.txt, text/plain]\nline\nline",
    ),
    "binary resource": (
        {"type": "resource", "resource": {"uri": "file:///a.bin", "blob": "aGVsbG8="}},
        "[resource file:///a.bin, 5 bytes; it is binary and not shown]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTENTS)
def test_an_agent_reads_every_type_of_content_of_an_mcp_server(name: str) -> None:
    content, text = CONTENTS[name]
    assert result_of(content) == text
    assert result_of(TEXT, content) == f"hello\n{text}"


@pytest.mark.parametrize(
    ("texts", "structured", "text"),
    [
        ([], {"degrees": 21.5}, '{"degrees": 21.5}'),
        (["It is warm."], {"degrees": 21.5}, 'It is warm.\n{"degrees": 21.5}'),
        (['{\n "degrees": 21.5}'], {"degrees": 21.5}, '{\n "degrees": 21.5}'),
        (["3"], {"result": 3}, "3"),
        (["3"], {"result": 4}, '3\n{"result": 4}'),
        (["1", "2"], {"result": [1, 2]}, "1\n2"),
        (["a", "b"], {"result": ["a", "b"]}, "a\nb"),
        (["true"], {"result": 1}, 'true\n{"result": 1}'),
    ],
)
def test_structured_content_is_read_where_no_text_repeats_it(
    texts: list[str], structured: dict[str, Any], text: str
) -> None:
    assert result_of(*({"type": "text", "text": part} for part in texts), structuredContent=structured) == text


def test_an_error_of_a_server_says_all_of_its_content() -> None:
    with pytest.raises(RuntimeError, match=r"hello\n.resource file:///a.txt, text/plain"):
        result_of(TEXT, CONTENTS["text resource"][0], isError=True)
