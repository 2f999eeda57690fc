"""Team changes: agents with trained weights in another team or organization."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic_core import PydanticCustomError

from marft.common.atomic import digest_of_json, read_text
from marft.common.errors import UserError
from marft.config.helpers import without_helpers
from marft.config.load import parse_recipe
from marft.config.models import reader_models
from marft.config.names import check_run_name
from marft.config.paths import expand_user
from marft.config.run import RunSettings
from marft.config.settings import did_you_mean

TEAM_TABLES = ("agents", "team", "channel")
LIKE_KEY = "like"  # key of an agent entry: role of the trained agent to start from; default: the same role
DIGEST_LENGTH = 6  # hexadecimal digits of the digest that identifies an unnamed change


@dataclass(frozen=True, slots=True)
class TeamChange:
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
            UserError: the name or a table is invalid, or nothing is changed.
        """
        try:
            check_run_name(self.name)
        except PydanticCustomError as error:
            raise UserError(f"a team cannot be called {self.name!r}, for evaluations bear it: {error}") from None
        for key, value in self.tables.items():
            if key not in TEAM_TABLES:
                raise UserError(f"{self.name}: {key} is no part of a team{did_you_mean(str(key), TEAM_TABLES)}")
            if key != "agents" and not isinstance(value, Mapping):
                raise UserError(f"{self.name}: {key} is a table, as in a recipe")
        entries = self.tables.get("agents", [{"role": ""}])
        if not isinstance(entries, Sequence) or not entries or not all(_is_agent_entry(entry) for entry in entries):
            raise UserError(f'{self.name}: agents is a list of tables, each with a role: [[agents]] role = "actor"')
        if not self.tables:
            raise UserError(f"{self.name} changes nothing: give it [[agents]], [team] or [channel]")


def read_team_change(path: str | Path) -> TeamChange:
    """Read a team change from a TOML file, named after the file.

    Raises:
        UserError: the file is missing or invalid.
    """
    path = expand_user(path)
    try:
        return TeamChange(path.stem, tomllib.loads(read_text(path)))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"cannot read the team of {path}: {error}") from error


def apply_team_change(run: RunSettings, change: TeamChange) -> RunSettings:
    """Return the run with its agents in the changed team.

    Tables that no agent uses any more are removed, and so are features for training only: helpers, learned instructions
    and imagined episodes. If the organization stays, hand-offs around removed agents are closed.

    Raises:
        UserError: an agent starts from an unknown role, or the resulting recipe is invalid.
    """
    run = without_helpers(run).without_section("dyna")
    table = run.model_dump(mode="json", exclude_none=True)
    trained = {agent["role"]: agent for agent in table["agents"]}
    agents = [
        _merge_agent(seat, trained, change.name) for seat in change.tables.get("agents", [{"role": r} for r in trained])
    ]
    if len(agents) == 1:
        agents[0]["answers"] = True
    roles = [seat["role"] for seat in agents]
    removed = [role for role in trained if role not in roles]
    team = change.tables.get("team", {})
    organization = table["team"]["organization"]
    if team.get("organization", organization) == organization:
        reduced = run.model_copy(update={"team": run.team.without_agents(removed)}) if removed else run
        team = {**reduced.model_dump(mode="json", include={"team"}, exclude_none=True)["team"], **team}
    table |= {"agents": agents, "team": dict(team)}
    if "channel" in change.tables:
        table["channel"] = dict(change.tables["channel"])
    _remove_unused(table, run)
    return parse_recipe(table, source=f"{run.name} as {change.name}", given=run.python_objects.values())


def describe_team_change(trained: RunSettings, evaluated: RunSettings, change: TeamChange | None) -> dict[str, Any]:
    """Return the differences between the trained and the played team, for evaluation records; {} if equal.

    Args:
        change: requested change; None: only settings changed, and the record is named after the organization.

    Raises:
        UserError: the requested change has no effect.
    """
    before, after = _team_structure(trained), _team_structure(evaluated)
    if before == after:
        if change is not None:
            raise UserError(f"{change.name} is the team of {trained.name} as it is; leave it out")
        return {}
    identity = {"asked": change.tables if change else {}, **after}
    digest = digest_of_json(identity)
    old_roles, new_roles = ([agent.role for agent in run.agents] for run in (trained, evaluated))
    unnamed = f"{after['team']['organization'].replace(':', '.')}-{digest[:DIGEST_LENGTH]}"
    return {
        "name": change.name if change else unnamed,
        "digest": digest,
        "organization": [before["team"]["organization"], after["team"]["organization"]],
        "added": [role for role in new_roles if role not in old_roles],
        "removed": [role for role in old_roles if role not in new_roles],
        **({"told": _instruction_sources(old_roles, change)} if change else {}),
        **after,
    }


def _instruction_sources(trained: Sequence[str], change: TeamChange) -> dict[str, str]:
    """Return the role that provides the instructions, for each agent without its own.

    If that role's instructions were learned, the agent receives the learned ones.
    """
    seats = change.tables.get("agents", [{"role": role} for role in trained])
    return {seat["role"]: seat.get(LIKE_KEY, seat["role"]) for seat in seats if "instructions" not in seat}


def _team_structure(run: RunSettings) -> dict[str, Any]:
    """Return the team's structure: agents, organization and channel."""
    parts = run.model_dump(mode="json", include={"team", "channel"}, exclude_none=True)
    agents = [{"role": agent.role, "policy": agent.policy, "answers": agent.answers} for agent in run.agents]
    return {**parts, "agents": agents}


def _is_agent_entry(seat: object) -> bool:
    if not isinstance(seat, Mapping):
        return False
    role = seat.get("role")
    return isinstance(role, str) and isinstance(seat.get(LIKE_KEY, role), str)


def _merge_agent(entry: Mapping[str, Any], trained: Mapping[str, dict[str, Any]], name: str) -> dict[str, Any]:
    """Return an agent's table merged over its trained agent's table."""
    source = entry.get(LIKE_KEY, entry["role"])
    if source not in trained:
        message = f"nobody trained is called {source!r}{did_you_mean(str(source), trained)}"
        raise UserError(
            f'{name}: agents.{entry["role"]}: {message}; say whom it plays as: like = "{next(iter(trained))}"'
        )
    return {**trained[source], **{key: value for key, value in entry.items() if key != LIKE_KEY}}


def _remove_unused(table: dict[str, Any], run: RunSettings) -> None:
    """Remove unused policies, tools and models."""
    policies = {seat["policy"] for seat in table["agents"]}
    tools = {tool for seat in table["agents"] for tool in seat.get("tools", ())}
    table["policies"] = {name: policy for name, policy in table["policies"].items() if name in policies}
    table["tools"] = {name: tool for name, tool in table.get("tools", {}).items() if name in tools}
    models = {policy["model"] for policy in table["policies"].values()} | reader_models(run.models)
    table["models"] = {name: model for name, model in table["models"].items() if name in models}
