"""Playable versions of a run, and a recipe that contains every version as a policy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from marft.config.models import PolicySettings
from marft.config.opponent_pools import VERSION_SEPARATOR, opponent_pools
from marft.config.run import RunSettings
from marft.evaluation.session import BASE
from marft.runs.run_folder import RunFolder
from marft_lab.league.pool import find_redundant
from marft_lab.league.rollout_source import FOLDER

# adapter of each trained policy, by version name; None for the untuned policy
Versions = dict[str, dict[str, Path | None]]


def find_versions(run: RunSettings, folder: RunFolder, max_versions: int) -> Versions:
    """Return the untuned base, the checkpoints, and earlier versions from the newest checkpoint's pool.

    At most ``max_versions`` versions are returned, spread over the run, with the first and the newest version.

    Raises:
        ValueError: the run has no checkpoint, or trains policies without adapters.
    """
    full_policies = [name for name in run.trained_policies if run.policies[name].train != "lora"]
    if full_policies:
        raise ValueError(
            f"policies.{full_policies[0]} is tuned whole, and versions that play together are adapters; set lora"
        )
    saved = folder.saved_steps()
    if not saved:
        raise ValueError(f"{folder.path} has no checkpoint yet: train it for some steps (checkpoints.every)")
    by_step: dict[int, dict[str, Path | None]] = {0: dict.fromkeys(run.trained_policies)}
    learners = set(opponent_pools(run).values())
    if learners == set(run.trained_policies):
        for path in (saved[-1] / FOLDER).glob("step_*"):
            by_step[_parse_step(path)] = dict.fromkeys(learners, path)
    for path in saved:
        if _parse_step(path):
            by_step[_parse_step(path)] = {name: path / "policies" / name for name in run.trained_policies}
    steps = sorted(by_step)
    while len(steps) > max_versions:
        del steps[find_redundant(steps)]
    return {f"step_{step:06d}" if step else BASE: by_step[step] for step in steps}


def game_sides(run: RunSettings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the roles on each of the game's two sides.

    Raises:
        ValueError: the game has not exactly two sides, or the sides cannot be swapped.
    """
    environment = run.environment
    sides = [tuple(side) for side in environment.opposing_sides]
    if environment.opponent_roles:
        own_side = tuple(agent.role for agent in run.agents if agent.role not in environment.opponent_roles)
        sides = [own_side, tuple(environment.opponent_roles)]
    if len(sides) != 2:
        raise ValueError(
            f"environment {environment.name!r}: a league is of games between two sides, and this recipe's has "
            f"{len(sides) or 'none'}; a text game with opponent = 'self', 'frozen' or 'pool' has two"
        )
    if environment.opponent_roles and len(sides[0]) != len(sides[1]):
        raise ValueError("environment.seats: versions change sides, so both need as many agents; add those that lack")
    return sides[0], sides[1]


def combine_versions(run: RunSettings, versions: Versions) -> RunSettings:
    """Return the recipe with every version of its trained policies as a separate frozen policy, and without pools."""
    policies: dict[str, PolicySettings] = {
        name: policy.model_copy(update={"train": "frozen", "pool": None, **({"adapter": ""} if policy.pool else {})})
        for name, policy in run.policies.items()
    }
    for version, adapters in versions.items():
        for name, path in adapters.items():
            adapter = run.policies[name].adapter if path is None else str(path)
            policies[f"{name}{VERSION_SEPARATOR}{version}"] = policies[name].model_copy(update={"adapter": adapter})
    return run.model_copy(update={"policies": policies})


def assign_policies(run: RunSettings, sides: Sequence[Sequence[str]], versions: Sequence[str]) -> Mapping[str, str]:
    """Return the policy of each role, given the version on each side.

    A non-learning opponent role gets the policy of the learning side's agent at the same position.
    """
    role_policies = {agent.role: agent.policy for agent in run.agents}
    assignment: dict[str, str] = {}
    for side, version in zip(sides, versions, strict=True):
        for position, role in enumerate(side):
            policy = (
                role_policies[sides[0][position]] if role in run.environment.opponent_roles else role_policies[role]
            )
            assignment[role] = f"{policy}{VERSION_SEPARATOR}{version}" if policy in run.trained_policies else policy
    return assignment


def _parse_step(path: Path) -> int:
    return int(path.name.removeprefix("step_"))
