"""What agents were told of their tools: kept with what they played, and held against what others were told.

A server of tools can say something else tomorrow under the same name: two evaluations with other definitions are not of
the same team.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from marft.agents.team import Team
from marft.common import atomic

FILE = "tools.json"  # of a run: what its agents were told when it began
SHOWN = 80  # characters of a definition, in messages
NAMED = 5  # changes that an error names
Definitions = Mapping[str, Mapping[str, Mapping[str, Any]]]  # by role, then by tool: description and parameters


def definitions_of(team: Team) -> Definitions:
    """What each agent that has tools is told of them, as JSON has it."""
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
    """A digest that is the same for the same definitions, in whatever order they come."""
    return hashlib.sha256(json.dumps(definitions, sort_keys=True).encode()).hexdigest()


def changes_of(before: Definitions, after: Definitions) -> list[str]:
    """What changed, a sentence for each field.

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
    """Every text, number and list of a definition by its place; tables are gone into."""
    if isinstance(value, Mapping) and value:
        for key, inner in value.items():
            yield from _leaves(inner, f"{place}.{key}".removeprefix("."))
    else:
        yield place, value


def _shown(leaves: Mapping[str, object], place: str) -> str:
    text = repr(leaves[place]) if place in leaves else "nothing"
    return text if len(text) <= SHOWN else f"{text[: SHOWN - 1]}…"


def in_short(changed: list[str]) -> str:
    """The first of many changes."""
    more = f"; and {len(changed) - NAMED} more" if len(changed) > NAMED else ""
    return "; ".join(changed[:NAMED]) + more


def check_tools(before: Mapping[str, Any], after: Mapping[str, Any], names: tuple[str, str]) -> None:
    """See that agents were told the same of their tools in two evaluations, as they were saved, where both say it.

    Raises:
        ValueError: they were not.
    """
    one, two = before.get("tools"), after.get("tools")
    changed = changes_of(one, two) if one is not None and two is not None else []
    if changed:
        raise ValueError(
            f"{names[0]} and {names[1]} were evaluated with other definitions of tools: {in_short(changed)}. Evaluate "
            "both with the same ones, or compare them as they are:  --other-tools (in Python, other_tools=True)"
        )


def note_of(folder: Path, definitions: Definitions) -> str:
    """What a reader must know of tools that are not what a run began with; "" where they are, or nobody knows.

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
    """Write what a run's agents are told, where they have tools and that is not known yet."""
    path = folder / FILE
    if definitions and not path.exists():
        atomic.write_file(path, json.dumps(definitions, indent=1, ensure_ascii=False) + "\n")
