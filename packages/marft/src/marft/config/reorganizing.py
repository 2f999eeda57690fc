"""Team changes: agents with trained weights in another team or organization."""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from marft.common.atomic import read_text
from marft.config.consulting import without_helpers
from marft.config.folders import at_home
from marft.config.load import parse_recipe
from marft.config.models import readers
from marft.config.names import check_run_name
from marft.config.run import RunSettings
from marft.config.settings import did_you_mean

TABLES = ("agents", "team", "channel")
LIKE = "like"  # key of an agent entry: role of the trained agent to start from; default: the same role
SHORT = 6  # hexadecimal digits of the digest that identifies an unnamed change


@dataclass(frozen=True, slots=True)
class Reorganization:
    """Change to a team.

    Args:
        name: name in evaluations.
        tables: changed tables. ``agents`` lists the agents of the new team, each with its changed keys. An agent starts
            from the trained agent of its role, or of the role under ``like``. Without ``agents`` all trained agents
            stay. ``team`` and ``channel`` are as in a recipe. A ``team`` without an ``organization`` changes keys of
            the trained one.
    """

    name: str
    tables: Mapping[str, Any]

    def __post_init__(self) -> None:
        """Validate the name and the tables.

        Raises:
            ValueError: the name or a table is invalid, or nothing is changed.
        """
        try:
            check_run_name(self.name)
        except PydanticCustomError as error:
            raise ValueError(f"a team cannot be called {self.name!r}, for evaluations bear it: {error}") from None
        for key, value in self.tables.items():
            if key not in TABLES:
                raise ValueError(f"{self.name}: {key} is no part of a team{did_you_mean(str(key), TABLES)}")
            if key != "agents" and not isinstance(value, Mapping):
                raise ValueError(f"{self.name}: {key} is a table, as in a recipe")
        seats = self.tables.get("agents", [{"role": ""}])
        if not isinstance(seats, Sequence) or not seats or not all(_is_seat(seat) for seat in seats):
            raise ValueError(f'{self.name}: agents is a list of tables, each with a role: [[agents]] role = "actor"')
        if not self.tables:
            raise ValueError(f"{self.name} changes nothing: give it [[agents]], [team] or [channel]")


def read_reorganization(path: str | Path) -> Reorganization:
    """Read a team change from a TOML file, named after the file.

    Raises:
        ValueError: the file is missing or invalid.
    """
    path = at_home(path)
    try:
        return Reorganization(path.stem, tomllib.loads(read_text(path)))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"cannot read the team of {path}: {error}") from error


def reorganized(run: RunSettings, into: Reorganization) -> RunSettings:
    """Return the run with its agents in the changed team.

    Tables that no agent uses any more are removed, and so are features for training only: helpers, learned instructions
    and imagined episodes. If the organization stays, hand-offs around removed agents are closed.

    Raises:
        ValueError: an agent starts from an unknown role, or the resulting recipe is invalid.
    """
    run = without_helpers(run).model_copy(update={"dyna": None})
    table = run.model_dump(mode="json", exclude_none=True)
    trained = {agent["role"]: agent for agent in table["agents"]}
    seats = [_seated(seat, trained, into.name) for seat in into.tables.get("agents", [{"role": r} for r in trained])]
    if len(seats) == 1:
        seats[0]["answers"] = True
    roles = [seat["role"] for seat in seats]
    gone = [role for role in trained if role not in roles]
    team = into.tables.get("team", {})
    own = table["team"]["organization"]
    if team.get("organization", own) == own:
        closed = run.model_copy(update={"team": run.team.without(gone)}) if gone else run
        team = {**closed.model_dump(mode="json", include={"team"}, exclude_none=True)["team"], **team}
    table |= {"agents": seats, "team": dict(team)}
    if "channel" in into.tables:
        table["channel"] = dict(into.tables["channel"])
    _leave_out_idle(table, run)
    return parse_recipe(table, source=f"{run.name} as {into.name}", given=run.given.values())


def changes_of_team(trained: RunSettings, played: RunSettings, into: Reorganization | None) -> dict[str, Any]:
    """Return the differences between the trained and the played team, for evaluation records; {} if equal.

    Args:
        into: requested change; None: only settings changed, and the record is named after the organization.

    Raises:
        ValueError: the requested change has no effect.
    """
    before, after = _shape(trained), _shape(played)
    if before == after:
        if into is not None:
            raise ValueError(f"{into.name} is the team of {trained.name} as it is; leave it out")
        return {}
    asked = {"asked": into.tables if into else {}, **after}
    digest = hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()
    was, now = ([agent.role for agent in run.agents] for run in (trained, played))
    return {
        "name": into.name if into else f"{after['team']['organization'].replace(':', '.')}-{digest[:SHORT]}",
        "digest": digest, "organization": [before["team"]["organization"], after["team"]["organization"]],
        "added": [role for role in now if role not in was], "removed": [role for role in was if role not in now],
        **({"told": _told(was, into)} if into else {}), **after,
    }  # fmt: skip


def _told(trained: Sequence[str], into: Reorganization) -> dict[str, str]:
    """Return the role that provides the instructions, for each agent without its own.

    If that role's instructions were learned, the agent receives the learned ones.
    """
    seats = into.tables.get("agents", [{"role": role} for role in trained])
    return {seat["role"]: seat.get(LIKE, seat["role"]) for seat in seats if "instructions" not in seat}


def _shape(run: RunSettings) -> dict[str, Any]:
    """Return the team's structure: agents, organization and channel."""
    parts = run.model_dump(mode="json", include={"team", "channel"}, exclude_none=True)
    agents = [{"role": agent.role, "policy": agent.policy, "answers": agent.answers} for agent in run.agents]
    return {**parts, "agents": agents}


def _is_seat(seat: object) -> bool:
    if not isinstance(seat, Mapping):
        return False
    role = seat.get("role")
    return isinstance(role, str) and isinstance(seat.get(LIKE, role), str)


def _seated(seat: Mapping[str, Any], trained: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """Return an agent's table merged over its trained agent's table."""
    source = seat.get(LIKE, seat["role"])
    if source not in trained:
        said = f"nobody trained is called {source!r}{did_you_mean(str(source), trained)}"
        raise ValueError(f'{name}: agents.{seat["role"]}: {said}; say whom it plays as: like = "{next(iter(trained))}"')
    return {**trained[source], **{key: value for key, value in seat.items() if key != LIKE}}


def _leave_out_idle(table: dict[str, Any], run: RunSettings) -> None:
    """Remove unused policies, tools and models."""
    policies = {seat["policy"] for seat in table["agents"]}
    tools = {tool for seat in table["agents"] for tool in seat.get("tools", ())}
    table["policies"] = {name: policy for name, policy in table["policies"].items() if name in policies}
    table["tools"] = {name: tool for name, tool in table.get("tools", {}).items() if name in tools}
    models = {policy["model"] for policy in table["policies"].values()} | readers(run.models)
    table["models"] = {name: model for name, model in table["models"].items() if name in models}
