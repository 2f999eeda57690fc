"""Tool definitions for a served team, stored with its sessions so that replays need no tool servers."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from marft.agents.tool_sources import ToolSource
from marft.common import atomic
from marft.common.types import Tool
from marft.config.plugins import Plugin

TOOLS_FILE = "tools.json"


def compute_digest(source: Plugin) -> str:
    """Return the hash that identifies a tool source.

    The source's recipe table is not stored, because it may contain secrets.
    """
    table = source.model_dump(mode="json", exclude_none=True)
    return hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()


def write_tools(folder: Path, plugins: Mapping[str, Any], sources: Mapping[str, ToolSource]) -> None:
    """Write the tool definitions for each source; existing definitions from other teams stay."""
    if not plugins:
        return
    tables = read_tables(folder)
    tables |= {
        compute_digest(plugin): [asdict(tool) for tool in sources[name].tools] for name, plugin in plugins.items()
    }
    atomic.write_file(folder / TOOLS_FILE, json.dumps(tables, indent=1, ensure_ascii=False) + "\n")


def read_tools(folder: Path) -> dict[str, tuple[Tool, ...]]:
    """Read the tool definitions for all stored sources, by hash.

    Raises:
        ValueError: the file is damaged.
    """
    return {digest: tuple(Tool(**tool) for tool in tools) for digest, tools in read_tables(folder).items()}


def read_tables(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Read the stored tables; empty without a file.

    Raises:
        ValueError: the file is damaged.
    """
    file = folder / TOOLS_FILE
    if not file.exists():
        return {}
    try:
        tables = atomic.read_json(file)
        assert all(set(tool) == {"name", "description", "parameters"} for tools in tables.values() for tool in tools)
    except (ValueError, OSError, AssertionError, AttributeError, TypeError) as error:
        raise ValueError(f"{file} is damaged; remove it, and serve once more with --record") from error
    return dict(tables)
