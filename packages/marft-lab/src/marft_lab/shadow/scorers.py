"""Scorers of answered sessions: reward terms and environment, agreement with the served answer, or user feedback."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from marft.agents.answers import extract_answer
from marft.agents.environment_calls import RefusedError, close_session, reset_session, start_session, step_session
from marft.agents.loop_threads import CallTimeoutError, LoopThread, LoopThreadPool, UserCodeError
from marft.agents.sandbox.runner import terminate_all
from marft.common.atomic import read_text
from marft.common.errors import EpisodeFailedError, UserError
from marft.common.seeds import derive_seed
from marft.common.types import Episode, JointAction, Observation, Step, StepInfo, Task, Transition
from marft.config.run import RunSettings
from marft.envs.game_runtime import open_terms
from marft.envs.graders import GRADERS
from marft.inference.caller_thread import CallerThreadExecutor
from marft.rewards.reward_manager import RewardManager
from marft.rewards.terms import Outcome, Progress, Trajectory, TrajectoryScore
from marft_lab.shadow.settings import ShadowSettings
from marft_serve.traces.replayer import TaskIndex
from marft_serve.traces.types import TracedEpisode, TracedTurn

ENVIRONMENT_TERMS = (Outcome, Progress, Trajectory, TrajectoryScore)  # reward terms based on the environment
UNKNOWN_QUESTION = "the environment of the recipe that grades does not know the question"


class UnscoredError(Exception):
    """Error of a session without a score; the message gives the reason."""


class Scorer(Protocol):
    """Scorer of an answer to a session: the served answer, or the shadow's answer."""

    def __call__(self, session: Episode, answered: Episode) -> float:
        """Return the score of the episode ``answered`` as the answer to ``session``.

        Raises:
            UnscoredError: no score is available.
        """
        ...

    def close(self) -> None:
        """Release resources."""
        ...


class AgreementScorer:
    """Scorer by agreement: the served answer scores 1, and the shadow's answer its agreement with the served answer.

    Args:
        settings: settings of the shadow.
        feedback: user feedback on served answers from 0 to 1, by session; None without feedback. The same answer gets
            the same score. A different answer scores 0, so that no promotion depends on guesses. OUR READING: feedback
            on one answer is no information about a different answer.
    """

    def __init__(self, settings: ShadowSettings, feedback: Mapping[str, float] | None = None) -> None:
        self._grading = GRADERS[settings.agreement].model_validate({})
        self._feedback, self._settings = feedback, settings

    def __call__(self, session: Episode, answered: Episode) -> float:
        """Return an answer's score.

        Raises:
            UnscoredError: no feedback for the session, or the answers cannot be compared.
        """
        score = 1.0 if self._feedback is None else self._feedback.get(session.task.id)
        if score is None:
            raise UnscoredError("no feedback of it is known")
        width = self._settings.max_score - self._settings.min_score
        return self._settings.min_score + width * score * self._compute_agreement(
            _answer_text(session), _answer_text(answered)
        )

    def _compute_agreement(self, served: str, text: str) -> float:
        """Return the agreement with the served answer, in [0, 1]; 1 for equal texts."""
        target = extract_answer(served)
        try:
            self._grading.check_answer(target, {})
            return 1.0 if text == served else self._grading.grade(target, {}, text).reward
        except ValueError as error:
            raise UnscoredError(f"the served answer {error}") from error

    def close(self) -> None:
        """No-op: the scorer holds no resources."""


class RewardScorer:
    """Scorer by the reward terms of a recipe, and by its environment if the environment knows the question.

    Raises:
        UserError: a requirement of the reward terms is missing.
    """

    def __init__(self, run: RunSettings) -> None:
        self._run, self._environment = run, run.environment
        self._needs_environment = not run.rewards or any(isinstance(term, ENVIRONMENT_TERMS) for term in run.rewards)
        self._tasks = TaskIndex(run) if self._needs_environment else None
        with ExitStack() as resources:
            terms = open_terms(run, resources.callback)
            self._threads = LoopThreadPool()
            resources.callback(self._threads.close)
            self._executor = CallerThreadExecutor(terminate_all)
            resources.callback(self._executor.shutdown)
            roles = [agent.role for agent in run.agents]
            self._compose = RewardManager(terms, roles, self._threads, run.rollout.timeout_seconds)
            self._resources = resources.pop_all()

    def __call__(self, session: Episode, answered: Episode) -> float:
        """Return an answer's total reward.

        Raises:
            UnscoredError: the answer cannot be graded.
        """
        return self._executor.wait_for(self._compute_reward(replace(answered, task=session.task)))

    async def _compute_reward(self, episode: Episode) -> float:
        transition = Transition(Observation(episode.task.prompt), 0.0)
        graded = replace(episode, status="terminated", transitions=(transition,))
        if self._tasks is not None:
            graded = await self._add_environment_reward(graded, self._find_task(episode))
        composed = await self._compose(graded)
        if not composed.is_scored:
            raise UnscoredError(composed.error)
        return composed.total_reward

    def _find_task(self, episode: Episode) -> Task:
        assert self._tasks is not None
        turn = TracedTurn("", (), ({"role": "user", "content": episode.task.prompt},), "")
        task, is_known = self._tasks.find_task(TracedEpisode(episode.task.id, (turn,)))
        if not is_known:
            raise UnscoredError(UNKNOWN_QUESTION)
        return task

    async def _add_environment_reward(self, episode: Episode, task: Task) -> Episode:
        """Return the episode with the environment's reward for its single step."""
        thread, seed = self._threads.acquire(), derive_seed(self._run.seed, "shadow", task.id)
        suspect = True
        try:
            step, declared = await self._step_environment(thread, episode, task, seed)
            suspect = False
        except (CallTimeoutError, UserCodeError, RefusedError, EpisodeFailedError) as error:
            raise UnscoredError(f"the environment: {error}") from error
        finally:
            await self._threads.release(thread, failed=suspect)
        transition = Transition(Observation(task.prompt), step.reward, step.agent_rewards, {}, declared)
        return replace(episode, task=task, transitions=(transition,), success=step.success)

    async def _step_environment(
        self, thread: LoopThread, episode: Episode, task: Task, seed: int
    ) -> tuple[Step, StepInfo]:
        limit = self._run.rollout.timeout_seconds

        async def call(function: Callable[..., object], *arguments: object) -> Any:
            return await thread.call_user_code(function, *arguments, timeout=limit, passthrough=RefusedError)

        session = await call(start_session, self._environment, task, seed)
        await call(reset_session, session)
        answer = next(action for action in episode.actions if action.id == episode.answer)
        roles = {action.agent for action in episode.actions}
        joint_action = JointAction(answer, tuple(episode.actions))
        result: tuple[Step, StepInfo] = await call(step_session, session, joint_action, roles, task)
        await call(close_session, session)
        return result

    def close(self) -> None:
        """Release reward terms and threads."""
        self._resources.close()


def read_feedback(path: Path) -> dict[str, float]:
    """Read user feedback: JSON lines like ``{"session": "…", "score": 1}``, with scores from 0 to 1.

    The last line of a session counts.

    Raises:
        UserError: unreadable file or invalid line.
    """
    scores: dict[str, float] = {}
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"--feedback: cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            table = json.loads(line)
            session, score = str(table["session"]), float(table["score"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise UserError(f'{path}:{number} is no feedback such as {{"session": "…", "score": 1}}') from error
        if not (math.isfinite(score) and 0 <= score <= 1):
            raise UserError(f"{path}:{number}: a score of {score:g} is not between 0 and 1")
        scores[session] = score
    return scores


def _answer_text(episode: Episode) -> str:
    return next(action.message for action in episode.actions if action.id == episode.answer)
