"""The versions of a run that can play, and a recipe that loads all of them at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from marft.config.models import PolicySettings
from marft.config.pools import LATER, pools_of
from marft.config.run import RunSettings
from marft.evaluation.session import BASE
from marft.runs.folder import RunFolder
from marft_lab.league.gathering import FOLDER
from marft_lab.league.pool import superfluous

Versions = dict[str, dict[str, Path | None]]  # by name: the adapter of each trained policy; None: the untuned one


def versions_of(run: RunSettings, folder: RunFolder, most: int) -> Versions:
    """The untuned base, every checkpoint, and what is left of earlier ones in the newest one's pool: at most so many,
    spread over the run, the first and the newest among them.

    Raises:
        ValueError: the run has no checkpoint, or policies that are not adapters.
    """
    whole = [name for name in run.trained_policies if run.policies[name].train != "lora"]
    if whole:
        raise ValueError(f"policies.{whole[0]} is tuned whole, and versions that play together are adapters; set lora")
    saved = folder.saved_steps()
    if not saved:
        raise ValueError(f"{folder.path} has no checkpoint yet: train it for some steps (checkpoints.every)")
    found: dict[int, dict[str, Path | None]] = {0: dict.fromkeys(run.trained_policies)}
    learners = set(pools_of(run).values())
    if learners == set(run.trained_policies):
        for path in (saved[-1] / FOLDER).glob("step_*"):
            found[_step(path)] = dict.fromkeys(learners, path)
    for path in saved:
        if _step(path):
            found[_step(path)] = {name: path / "policies" / name for name in run.trained_policies}
    steps = sorted(found)
    while len(steps) > most:
        del steps[superfluous(steps)]
    return {f"step_{step:06d}" if step else BASE: found[step] for step in steps}


def sides_of(run: RunSettings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The roles of the two sides that play each other.

    Raises:
        ValueError: nobody plays against anybody, or there are not two sides that any version can be on.
    """
    environment = run.environment
    sides = [tuple(side) for side in environment.opposed]
    if environment.against:
        mine = tuple(agent.role for agent in run.agents if agent.role not in environment.against)
        sides = [mine, tuple(environment.against)]
    if len(sides) != 2:
        raise ValueError(
            f"environment {environment.name!r}: a league is of games between two sides, and this recipe's has "
            f"{len(sides) or 'none'}; a text game with opponent = 'self', 'frozen' or 'pool' has two"
        )
    if environment.against and len(sides[0]) != len(sides[1]):
        raise ValueError("environment.seats: versions change sides, so both need as many agents; add those that lack")
    return sides[0], sides[1]


def together(run: RunSettings, versions: Versions) -> RunSettings:
    """The recipe with every version of its trained policies as a frozen policy of its own, and without pools."""
    policies: dict[str, PolicySettings] = {
        name: policy.model_copy(update={"train": "frozen", "pool": None, **({"adapter": ""} if policy.pool else {})})
        for name, policy in run.policies.items()
    }
    for version, adapters in versions.items():
        for name, path in adapters.items():
            adapter = run.policies[name].adapter if path is None else str(path)
            policies[f"{name}{LATER}{version}"] = policies[name].model_copy(update={"adapter": adapter})
    return run.model_copy(update={"policies": policies})


def casting(run: RunSettings, sides: Sequence[Sequence[str]], versions: Sequence[str]) -> Mapping[str, str]:
    """Which policy plays each role, where each side is of one version. An opponent's seat that does not learn is taken
    by the policy of the learning side's agent in its place."""
    own = {agent.role: agent.policy for agent in run.agents}
    played: dict[str, str] = {}
    for side, version in zip(sides, versions, strict=True):
        for place, role in enumerate(side):
            policy = own[sides[0][place]] if role in run.environment.against else own[role]
            played[role] = f"{policy}{LATER}{version}" if policy in run.trained_policies else policy
    return played


def _step(path: Path) -> int:
    return int(path.name.removeprefix("step_"))
