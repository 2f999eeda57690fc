"""Rollouts against a pool of the learner's past versions."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from pydantic import BaseModel, ConfigDict, NonNegativeFloat, NonNegativeInt, ValidationError

from marft.agents.game import Attempt
from marft.common import atomic, seeds
from marft.common.errors import UserError
from marft.common.types import Episode, Task
from marft.config.load import first_problem
from marft.config.models import PoolSettings, opponent_pools, pool_slot_names
from marft.rollout.rollout_batch import RolloutBatch, collect_rollouts
from marft.rollout.runner import RolloutRunner
from marft.runs.state import State
from marft_lab.league.pool import OpponentPool, PoolMember

FOLDER, NAME = "league", "league.json"


class _MemberState(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    slot: str
    step: NonNegativeInt
    rating: float
    won: NonNegativeFloat
    played: NonNegativeFloat


class _PoolState(BaseModel):
    """Content of ``league/league.json`` in a checkpoint."""

    model_config = ConfigDict(extra="forbid", strict=True)

    rating: float
    members: list[_MemberState]


class OpponentPoolSource:
    """Rollout source that plays each task against a version from the pool.

    The opponent is a pure function of the run's seed, the pass, the task, and the pool before the step. All attempts at
    a task therefore have the same opponent.

    Args:
        rollouts: rollouts with local policies.
        tasks: training tasks.
        folder: checkpoint to resume from; None at the start.

    Raises:
        UserError: unreadable league file in the checkpoint.
    """

    def __init__(self, rollouts: RolloutRunner, tasks: Sequence[Task], folder: Path | None = None) -> None:
        self._rollouts, self._tasks, self._run = rollouts, tasks, rollouts.run
        self._name, self._learner = next(iter(opponent_pools(rollouts.run).items()))
        settings = self._run.policies[self._name].pool
        assert settings is not None
        self._settings: PoolSettings = settings
        self._slots = pool_slot_names(self._name, settings.size)
        self._roles = [agent.role for agent in self._run.agents if agent.policy == self._name]
        self._usage_before: dict[str, float] = {}
        self.pool = OpponentPool((PoolMember(self._name, 0),))
        if folder is not None:
            self._restore(folder / FOLDER)
        rollouts.publish_versions({member.slot: member.step for member in self.pool.members})

    def collect(self, state: State, on_done: Callable[[Episode], None]) -> RolloutBatch:
        """Collect the episodes of a step, and update the ratings from their results."""
        self._usage_before = dict(self._rollouts.usage())
        pool = self.pool
        batch = collect_rollouts(self._rollouts, self._tasks, state, on_done, self._assign_opponents)
        scores: dict[str, list[float]] = {}
        for episode in batch.episodes:
            policies = {action.policy for action in episode.actions}  # includes the learner, which is not in the pool
            for policy in policies if episode.is_scored else ():
                scores.setdefault(policy, []).append(match_score(episode.total_reward))
        self.pool = pool.with_results(scores)
        return replace(batch, metrics={**batch.metrics, **self._metrics()})

    def latest_batch_usage(self) -> dict[str, float]:
        """Return the usage counters since the last step."""
        return {name: count - self._usage_before.get(name, 0.0) for name, count in self._rollouts.usage().items()}

    def exclude_validation(self, episodes: Sequence[Episode]) -> None:
        """Ignore validation episodes; they count for no rating."""

    def usage_seconds(self, waited: float) -> float:
        """Return the sampling time of the step, in seconds."""
        return waited

    def on_publish(self, state: State) -> None:
        """Add the current learner to the pool, every ``pool.every`` steps."""
        if state.step % self._settings.every == 0:
            self.pool = self.pool.add_member(self._slots, state.step)
            newest = self.pool.members[-1]
            if newest.step == state.step:
                self._rollouts.models.copy_adapter(self._learner, newest.slot)
                self._rollouts.publish_versions({newest.slot: newest.step})

    def on_rollback(self, state: State) -> None:
        """Remove versions of the abandoned training steps from the pool."""
        self.pool = self.pool.truncate(state.step)

    def save(self, folder: Path) -> None:
        """Write the ratings, and the weights of all versions except the untuned version."""
        (folder / FOLDER).mkdir()
        table = {"rating": self.pool.rating, "members": [asdict(member) for member in self.pool.members]}
        (folder / FOLDER / NAME).write_bytes(f"{json.dumps(table, indent=2)}\n".encode())
        for member in self.pool.members[1:]:
            self._rollouts.models.save_policy(member.slot, folder / FOLDER / f"step_{member.step:06d}")

    def close(self) -> None:
        """No-op: the source starts no processes."""

    def _assign_opponents(self, attempts: Sequence[Attempt]) -> list[Attempt]:
        return [
            replace(attempt, policies=dict.fromkeys(self._roles, self._sample_opponent(attempt).slot))
            for attempt in attempts
        ]

    def _sample_opponent(self, attempt: Attempt) -> PoolMember:
        uniform = float(seeds.generator(self._run.seed, "league", attempt.stream, attempt.task.id).random())
        return self.pool.sample_opponent(uniform, self._settings.selection, self._settings.power)

    def _metrics(self) -> dict[str, float]:
        pool = self.pool
        rates = [member.win_rate for member in pool.members]
        return {
            "league/rating": pool.rating,
            "league/members": float(len(rates)),
            "league/win_rate": sum(rates) / len(rates),
            "league/hardest_win_rate": pool.hardest_opponent.win_rate,
            "league/hardest_step": float(pool.hardest_opponent.step),
        }

    def _restore(self, folder: Path) -> None:
        try:
            written = _PoolState.model_validate(atomic.read_json(folder / NAME))
        except (OSError, ValueError) as error:
            reason = first_problem(error) if isinstance(error, ValidationError) else error
            raise UserError(f"{folder / NAME} cannot be read: {reason}; start a new run with --init-from") from None
        members = tuple(PoolMember(**member.model_dump()) for member in written.members)
        unknown = [member.slot for member in members if member.slot not in self._slots]
        if unknown or not members or members[0].slot != self._name:
            raise UserError(
                f"{folder / NAME} is of a pool of another size or name ({unknown[0] if unknown else 'none'}); go on "
                f"with policies.{self._name} as it was"
            )
        for member in members[1:]:
            self._rollouts.models.load_policy(member.slot, folder / f"step_{member.step:06d}")
        self.pool = OpponentPool(members, written.rating)


def match_score(reward: float) -> float:
    """Return the score of a reward: 1 for a win, 0 for a loss, one half for a draw.

    >>> match_score(0.5), match_score(-1.0), match_score(0.0)
    (1.0, 0.0, 0.5)
    """
    return 1.0 if reward > 0 else 0.0 if reward < 0 else 0.5
