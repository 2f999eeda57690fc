"""Episodes that are played beside good ones, which must come to no harm."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from marft.agents.game import Attempt, Game
from marft.agents.play import play_all
from marft.common.texts import MAX_ERROR_LENGTH
from marft.common.types import Action, Episode, Task
from marft.config.interfaces.reward import RewardTerm, TermReward
from marft.evaluation.episode_metrics import episode_metrics
from marft.rewards.reward_manager import RewardManager
from marft.runs.episode_files import read_episodes, write_episodes
from tests.fakes import game
from tests.hostile import (
    Misdeed,
    World,
)

PLACE = re.compile(r"\(\w+\.py:\d+\)")


GOOD = ["good 0", "good 1", "good 2"]


def play_beside(
    g: Game, tasks: Sequence[str], folder: Path, terms: Sequence[RewardTerm] = (), live: int = 2
) -> dict[str, Episode]:
    """Play the tasks among good ones, compose, count and record them → all episodes, by task."""
    roles = [agent.role for agent in g.team.agents]
    names = [GOOD[0], *tasks, *GOOD[1:]]
    attempts = [Attempt(Task(name, "?"), "s", record_critic_states=True) for name in names]

    async def played() -> list[Episode]:
        return await play_all(g, attempts, live, compose=RewardManager(terms, roles, g.threads, g.timeout))

    episodes = asyncio.run(played())
    episode_metrics(episodes, roles, lambda _: 0)
    write_episodes(folder / "step_000001.parquet", episodes)
    read_episodes(folder / "step_000001.parquet")
    return {episode.task.id: episode for episode in episodes}


def as_they_were(episodes: Mapping[str, Episode]) -> list[Any]:
    """All of the good ones that must not depend on anybody else."""
    return [
        (
            name, episode.status, episode.success, [(t.reward, t.observation.text, dict(t.terms)) for t in episode.transitions],
            [action_bytes(action) for action in episode.actions],
        )
        for name, episode in episodes.items() if name in GOOD
    ]  # fmt: skip


def action_bytes(action: Action) -> Any:
    arrays = (action.prompt, action.tokens, action.log_probs)
    return action.id, action.sees, action.text, *(array.tobytes() for array in arrays)


def world(misdeeds: Mapping[str, tuple[str, Misdeed]], **changes: Any) -> Game:
    return game(World(misdeeds), "a", "b", **changes)  # type: ignore[arg-type]


def lost(episode: Episode, *words: str, place: bool = True) -> None:
    """It says what was lost, in which part, and where."""
    assert episode.status in ("failed", "timed_out")
    assert episode.transitions == () or episode.error.startswith("reward term")
    for word in words:
        assert word in episode.error
    assert len(episode.error) < MAX_ERROR_LENGTH + 200
    assert PLACE.search(episode.error) or not place, episode.error


def unharmed(episodes: Mapping[str, Episode], terms: Sequence[RewardTerm], folder: Path) -> None:
    """The good episodes are, bit for bit, what they are where nobody does anything wrong."""
    calm = play_beside(world({}), [], folder, [Given() for _ in terms])
    assert as_they_were(episodes) == as_they_were(calm)
    assert [episode.status for name, episode in episodes.items() if name in GOOD] == ["terminated"] * 3


class Given(RewardTerm):
    """Gives each episode 1, but to the task ``bad`` whatever it is told to."""

    async def score(self, episode: Episode) -> Any:
        result = MISDEED[0]() if episode.task.id == "bad" else [TermReward(1.0) for _ in episode.transitions]
        return await result if asyncio.iscoroutine(result) else result


MISDEED: list[Misdeed] = [lambda: None]
