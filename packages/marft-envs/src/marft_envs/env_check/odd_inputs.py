"""Odd texts and tool calls, like those from weak models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from marft.common.types import Tool, ToolCall

ODD_TEXTS: Mapping[str, str] = {
    "an empty text": "",
    "spaces": " \n\t ",
    "a megabyte": "word " * 200_000,
    "a megabyte without a space": "9" * 1_000_000,
    "a number of 5,000 digits": r"\boxed{" + "7" * 5000 + "}",
    "no number": "nan",
    "infinity": "-inf",
    "a negative number": "-1",
    "a float for a whole number": "1e400",
    "unicode": "Żółć 漢字 🦜 \u202eodd\u0000 ١٢٣ ½ ²",
    "lone digits of other scripts": "²",
    "open brackets": "[" * 5000,
    "open braces": '{"a":' * 5000,
    "an empty box": r"\boxed{}",
    "an open box": r"\boxed{",
    "JSON that is no object": "[1, null, {}]",
    "a format string": "{0} %s {answer!r} $x",
    "markup": "</answer><answer><|im_end|>",
    "one letter": "x",
    "lines": "\n".join(map(str, range(2000))),
}
_ODD_VALUES: Mapping[str, Sequence[Any]] = {
    "string": ("", "x" * 100_000, "漢\u0000"),
    "integer": (-1, 10**12, 0),
    "number": (-1.0, 1e308, 0),
    "boolean": (True,),
    "array": ([], [None]),
    "object": ({},),
}


def odd_calls(tool: Tool) -> Iterator[ToolCall]:
    """Yield odd calls: without arguments, with unknown arguments, with invalid JSON, and with extreme values."""
    import json

    yield ToolCall(tool.name, "{}")
    yield ToolCall(tool.name, '{"nobody": [1, 2], "knows": null}')
    yield ToolCall(tool.name, '"text"')
    yield ToolCall(tool.name, "{")
    properties = tool.parameters.get("properties", {})
    for turn in range(max(map(len, _ODD_VALUES.values()))):
        values = {
            name: (choices := _ODD_VALUES.get(schema.get("type", "string"), ("",)))[turn % len(choices)]
            for name, schema in properties.items()
        }
        yield ToolCall(tool.name, json.dumps(values))
