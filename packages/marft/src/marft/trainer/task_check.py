"""Check for agents without memory that read the task in their first prompt only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from marft.common.callbacks import Callback
from marft.common.log import get_logger
from marft.common.types import AgentProfile, Episode
from marft.config.run import RunSettings
from marft.envs.task_prompts import TASK_LOST_REMEDY, roles_that_lose_task

logger = get_logger(__name__)


class TaskCheck(Callback):
    """Callback that logs a warning if agents do not read the task in later steps of the first episodes."""

    def __init__(self, run: RunSettings) -> None:
        forgetful = [] if run.team.writes_prompts else [agent.profile for agent in run.agents if agent.memory == "none"]
        self._profiles = {profile.role: profile for profile in forgetful}

    def on_train_start(self, completed_steps: int, steps: int) -> None:  # noqa: ARG002
        """Skip the check for a resumed run."""
        if completed_steps:
            self._profiles = {}

    def on_rollout(self, step: int, episodes: Sequence[Episode]) -> None:  # noqa: ARG002
        """Check the episodes of the first step."""
        if self._profiles:
            roles = {
                role: None
                for episode in episodes
                for role in roles_that_lose_task(episode.task.prompt, self._turns(episode))
            }
            if roles:
                logger.warning(
                    f"{', '.join(roles)}: later prompts of an episode do not contain the task; {TASK_LOST_REMEDY}"
                )
        self._profiles = {}

    def _turns(self, episode: Episode) -> Iterator[tuple[AgentProfile, str]]:
        """Yield the profile and the observation of each action by an agent without memory."""
        for action in episode.actions:
            if action.agent in self._profiles and action.step < len(episode.transitions):
                observation = episode.transitions[action.step].observation
                yield self._profiles[action.agent], observation.for_role(action.agent)
