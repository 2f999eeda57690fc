"""Text form of an MCP tool result, for every content type."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mcp_types import CallToolResult, ContentBlock


def format_result(result: CallToolResult) -> str:
    """Return a result as text: its content in order, then structured content that no text repeats.

    Images, audio and binary resources are described by name, address, type and size.
    """
    parts = [_format_block(block) for block in result.content]
    if result.structured_content is not None and not _is_repeated(result.structured_content, result.content):
        parts.append(json.dumps(result.structured_content, ensure_ascii=False))
    return "\n".join(parts)


def _format_block(block: ContentBlock) -> str:
    if block.type == "text":
        return block.text
    if block.type == "resource_link":
        size = None if block.size is None else f"{block.size:,} bytes"
        details = [part for part in (block.mime_type, size) if part]
        named = block.title or block.name
        return f"[resource {named!r} at {_join_parts([block.uri, *details])}]{_format_description(block.description)}"
    if block.type == "resource":
        resource = block.resource
        text = getattr(resource, "text", None)
        if isinstance(text, str):
            return f"[resource {_join_parts([resource.uri, resource.mime_type])}]\n{text}"
        blob = str(getattr(resource, "blob", ""))
        parts = _join_parts([resource.uri, resource.mime_type, _format_size(blob)])
        return f"[resource {parts}; it is binary and not shown]"
    return f"[{block.type} {_join_parts([block.mime_type, _format_size(block.data)])}; it is not shown]"


def _join_parts(parts: Sequence[str | None]) -> str:
    return ", ".join(str(part) for part in parts if part)


def _format_description(description: str | None) -> str:
    return f" {description}" if description else ""


def _format_size(data: str) -> str:
    """Return the size of base64-encoded data.

    >>> _format_size("aGVsbG8=")
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
    structured_forms = [structured, structured["result"]] if wrapped and isinstance(structured, dict) else [structured]
    text_forms = [[_parse_value(text) for text in texts], texts, *map(_parse_value, texts), *texts, "\n".join(texts)]
    return any(
        structured_form == text_form and type(structured_form) is type(text_form)
        for structured_form in structured_forms
        for text_form in text_forms
    )


def _parse_value(text: str) -> object:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text
