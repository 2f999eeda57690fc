"""Tool definitions: the descriptions and parameters that agents saw, saved with each evaluation for comparison.

A tool server can change a definition under the same name. Two evaluations with different definitions are not
evaluations of the same team.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from marft.agents.team import Team
from marft.common import atomic
from marft.common.errors import UserError
from marft.runs.changes import flatten_table

FILE_NAME = "tools.json"  # file of a run with the tool definitions at its start
MAX_TEXT_LENGTH = 80  # characters of a definition, in messages
MAX_NAMED_CHANGES = 5  # maximum number of changes in an error message
ToolDefinitions = Mapping[str, Mapping[str, Mapping[str, object]]]  # by role, then by tool: description and parameters


def collect_definitions(team: Team) -> ToolDefinitions:
    """Return the tool definitions of each agent with tools, as JSON values."""
    tools_by_role = {
        agent.role: {
            tool.name: {"description": tool.description, "parameters": tool.parameters} for tool in agent.profile.tools
        }
        for agent in team.agents
        if agent.profile.tools
    }
    definitions: ToolDefinitions = json.loads(json.dumps(tools_by_role, default=str))
    return definitions


def diff_definitions(before: ToolDefinitions | None, after: ToolDefinitions | None) -> list[str]:
    """Return one sentence for each changed field; none if either side was not recorded.

    >>> diff_definitions({"a": {"add": {"description": "Add."}}}, {"a": {"add": {"description": "Add. Then mail it."}}})
    ["agents.a: tool add: description: 'Add.' → 'Add. Then mail it.'"]
    """
    if before is None or after is None:
        return []
    return [
        f"agents.{role}: tool {tool}{change}"
        for role in sorted({*before, *after})
        for tool in sorted({*before.get(role, {}), *after.get(role, {})})
        for change in _diff_tool(before.get(role, {}).get(tool), after.get(role, {}).get(tool))
    ]


def _diff_tool(before: Mapping[str, object] | None, after: Mapping[str, object] | None) -> Iterator[str]:
    if before is None or after is None:
        yield " is new" if before is None else " is gone"
        return
    before_leaves, after_leaves = dict(flatten_table(before)), dict(flatten_table(after))
    for path in sorted({*before_leaves, *after_leaves}):
        if before_leaves.get(path) != after_leaves.get(path):
            yield f": {path}: {_format_leaf(before_leaves, path)} → {_format_leaf(after_leaves, path)}"


def _format_leaf(leaves: Mapping[str, object], path: str) -> str:
    text = repr(leaves[path]) if path in leaves else "nothing"
    return text if len(text) <= MAX_TEXT_LENGTH else f"{text[: MAX_TEXT_LENGTH - 1]}…"


def summarize_changes(changes: list[str]) -> str:
    """Join the first ``MAX_NAMED_CHANGES`` changes into one text."""
    more = f"; and {len(changes) - MAX_NAMED_CHANGES} more" if len(changes) > MAX_NAMED_CHANGES else ""
    return "; ".join(changes[:MAX_NAMED_CHANGES]) + more


def check_tools(before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str]) -> None:
    """Check that two saved evaluations used the same tool definitions, if both recorded them.

    Raises:
        UserError: the definitions differ.
    """
    if changes := diff_definitions(before.get("tools"), after.get("tools")):
        raise UserError(
            f"{names[0]} and {names[1]} were evaluated with other definitions of tools: {summarize_changes(changes)}. "
            "Evaluate both with the same ones, or compare them as they are:  --other-tools (in Python, "
            "other_tools=True)"
        )


def describe_changes(folder: Path, definitions: ToolDefinitions) -> str:
    """Return a note about tool definitions changed since the start of the run.

    The note is "" if they are the same, or if the run has no file of definitions.

    Raises:
        UserError: the run's file is damaged.
    """
    path = folder / FILE_NAME
    try:
        changes = diff_definitions({**atomic.read_json(path)}, definitions)
    except FileNotFoundError:
        return ""
    except (ValueError, AttributeError, TypeError) as error:
        raise UserError(f"{path} is damaged ({error}); remove it, and tools are held against nothing") from error
    if not changes:
        return ""
    return f"tools are not what they were when the run began ({path}): {summarize_changes(changes)}"


def write_definitions(folder: Path, definitions: ToolDefinitions) -> None:
    """Write the tool definitions of a run, unless its file already exists or no agent has tools."""
    path = folder / FILE_NAME
    if definitions and not path.exists():
        atomic.write_file(path, json.dumps(definitions, indent=1, ensure_ascii=False) + "\n")
