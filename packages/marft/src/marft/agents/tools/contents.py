"""Text form of an MCP tool result, for every content type."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock


def read_result(result: CallToolResult) -> str:
    """Return a result as text: its content in order, then structured content that no text repeats.

    Images, audio and binary resources are described by name, address, type and size.
    """
    parts = [_read(block) for block in result.content]
    if result.structured_content is not None and not _is_repeated(result.structured_content, result.content):
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts)


def _read(block: ContentBlock) -> str:
    if block.type == "text":
        return block.text
    if block.type == "resource_link":
        size = None if block.size is None else f"{block.size:,} bytes"
        about = [part for part in (block.mime_type, size) if part]
        named = block.title or block.name
        return f"[resource {named!r} at {_parts([block.uri, *about])}]{_told(block.description)}"
    if block.type == "resource":
        resource = block.resource
        text = getattr(resource, "text", None)
        if isinstance(text, str):
            return f"[resource {_parts([resource.uri, resource.mime_type])}]\n{text}"
        blob = str(getattr(resource, "blob", ""))
        return f"[resource {_parts([resource.uri, resource.mime_type, _size(blob)])}; it is binary and not shown]"
    return f"[{block.type} {_parts([block.mime_type, _size(block.data)])}; it is not shown]"


def _parts(parts: Sequence[str | None]) -> str:
    return ", ".join(str(part) for part in parts if part)


def _told(description: str | None) -> str:
    return f" {description}" if description else ""


def _size(data: str) -> str:
    """Return the size of base64-encoded data.

    >>> _size("aGVsbG8=")
    '5 bytes'
    """
    return f"{len(data) * 3 // 4 - data[-2:].count('='):,} bytes"


def _is_repeated(structured: object, content: Sequence[ContentBlock]) -> bool:
    """Return true if the text repeats the structured content, as the protocol recommends.

    Servers wrap a result that is not an object: ``{"result": 3}`` beside the text ``3``, or beside one text per
    item.
    """
    texts = [block.text for block in content if block.type == "text"]
    wrapped = isinstance(structured, dict) and list(structured) == ["result"]
    meant = [structured, structured["result"]] if wrapped and isinstance(structured, dict) else [structured]
    said = [[_value(text) for text in texts], texts, *map(_value, texts), *texts, "\n".join(texts)]
    return any(one == other and type(one) is type(other) for one in meant for other in said)


def _value(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
