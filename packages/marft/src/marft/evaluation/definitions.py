"""Tool definitions: the descriptions and parameters that agents saw, saved with each evaluation for comparison.

A tool server can change a definition under the same name. Two evaluations with different definitions are not
evaluations of the same team.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from marft.agents.team import Team
from marft.common import atomic

FILE = "tools.json"  # file of a run with the tool definitions at its start
SHOWN = 80  # characters of a definition, in messages
NAMED = 5  # maximum number of changes in an error message
Definitions = Mapping[str, Mapping[str, Mapping[str, Any]]]  # by role, then by tool: description and parameters


def definitions_of(team: Team) -> Definitions:
    """Return the tool definitions of each agent with tools, as JSON values."""
    told = {
        agent.role: {
            tool.name: {"description": tool.description, "parameters": tool.parameters} for tool in agent.profile.tools
        }
        for agent in team.agents
        if agent.profile.tools
    }
    found: Definitions = json.loads(json.dumps(told, default=str))
    return found


def fingerprint(definitions: Definitions) -> str:
    """Return a digest of tool definitions that does not depend on their order."""
    return hashlib.sha256(json.dumps(definitions, sort_keys=True).encode()).hexdigest()


def changes_of(before: Definitions, after: Definitions) -> list[str]:
    """Return one sentence for each changed field.

    >>> changes_of({"a": {"add": {"description": "Add."}}}, {"a": {"add": {"description": "Add. Then mail it."}}})
    ["agents.a: tool add: description: 'Add.' → 'Add. Then mail it.'"]
    """
    return [
        f"agents.{role}: tool {tool}{change}"
        for role in sorted({*before, *after})
        for tool in sorted({*before.get(role, {}), *after.get(role, {})})
        for change in _of_tool(before.get(role, {}).get(tool), after.get(role, {}).get(tool))
    ]


def _of_tool(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> Iterator[str]:
    if before is None or after is None:
        yield " is new" if before is None else " is gone"
        return
    one, two = dict(_leaves(before)), dict(_leaves(after))
    for place in sorted({*one, *two}):
        if one.get(place) != two.get(place):
            yield f": {place}: {_shown(one, place)} → {_shown(two, place)}"


def _leaves(value: object, place: str = "") -> Iterator[tuple[str, object]]:
    """Yield each text, number and list of a definition with its dotted path, descending into tables."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{place}.{key}".removeprefix("."))
    else:
        yield place, value


def _shown(leaves: Mapping[str, object], place: str) -> str:
    text = repr(leaves[place]) if place in leaves else "nothing"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def in_short(changed: list[str]) -> str:
    """Join the first ``NAMED`` changes into one text."""
    more = f"; and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
    return "; ".join(changed[:NAMED]) + more


def check_tools(before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str]) -> None:
    """Check that two saved evaluations used the same tool definitions, if both recorded them.

    Raises:
        ValueError: the definitions differ.
    """
    one, two = before.get("tools"), after.get("tools")
    changed = changes_of(one, two) if one is not None and two is not None else []
    if changed:
        raise ValueError(
            f"{names[0]} and {names[1]} were evaluated with other definitions of tools: {in_short(changed)}. Evaluate "
            "both with the same ones, or compare them as they are:  --other-tools (in Python, other_tools=True)"
        )


def note_of(folder: Path, definitions: Definitions) -> str:
    """Return a note about tool definitions changed since the start of the run.

    The note is "" if they are the same, or if the run has no file of definitions.

    Raises:
        ValueError: the run's file is damaged.
    """
    path = folder / FILE
    try:
        known = atomic.read_json(path)
        changed = changes_of(known, definitions)
    except FileNotFoundError:
        return ""
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}); remove it, and tools are held against nothing") from error
    if not changed:
        return ""
    return f"tools are not what they were when the run began ({path}): {in_short(changed)}"


def write_definitions(folder: Path, definitions: Definitions) -> None:
    """Write the tool definitions of a run, unless its file already exists or no agent has tools."""
    path = folder / FILE
    if definitions and not path.exists():
        atomic.write_file(path, json.dumps(definitions, indent=1, ensure_ascii=False) + "\n")
