"""Scorers of answered sessions: reward terms and environment, agreement with the served answer, or user feedback."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol, cast

from marft.agents.answers import stated_answer
from marft.agents.environment import Environment
from marft.agents.loop_threads import LoopThread, LoopThreadPool, OverdueError, RaisedError
from marft.agents.reading import RefusedError, closed, reset, started, stepped
from marft.agents.sandbox.runner import end_all
from marft.common.atomic import read_text
from marft.common.declared import Declared
from marft.common.errors import EpisodeFailedError
from marft.common.seeds import derive_seed
from marft.common.types import Episode, JointAction, Observation, Step, Task, Transition
from marft.config.run import RunSettings
from marft.envs.game_parts import open_terms
from marft.envs.gradings import GRADINGS
from marft.inference.caller_thread import CallerThreadExecutor
from marft.rewards.composer import RewardComposer
from marft.rewards.terms import Outcome, Progress, Trajectory, TrajectoryScore
from marft_lab.shadow.settings import ShadowSettings
from marft_serve.traces.record import TracedEpisode, TracedTurn
from marft_serve.traces.stage import Tasks

PAID = (Outcome, Progress, Trajectory, TrajectoryScore)  # reward terms based on the environment
UNKNOWN = "the environment of the recipe that grades does not know the question"


class UnscoredError(Exception):
    """Error of a session without a score; the message gives the reason."""


class Scorer(Protocol):
    """Scorer of an answer to a session: the served answer, or the shadow's answer."""

    def __call__(self, session: Episode, said: Episode) -> float:
        """Return the score of the episode ``said`` as the answer to ``session``.

        Raises:
            UnscoredError: no score is available.
        """
        ...

    def close(self) -> None:
        """Release resources."""
        ...


class Agreement:
    """Scorer by agreement: the served answer scores 1, and the shadow's answer its agreement with the served answer.

    Args:
        settings: settings of the shadow.
        feedback: user feedback on served answers from 0 to 1, by session; None without feedback. The same answer gets
            the same score. A different answer scores 0, so that no promotion depends on guesses. OUR READING: feedback
            on one answer is no information about a different answer.
    """

    def __init__(self, settings: ShadowSettings, feedback: Mapping[str, float] | None = None) -> None:
        self._grading, self._feedback, self._settings = (
            GRADINGS[settings.agreement].model_validate({}),
            feedback,
            settings,
        )

    def __call__(self, session: Episode, said: Episode) -> float:
        """Return an answer's score.

        Raises:
            UnscoredError: no feedback for the session, or the answers cannot be compared.
        """
        worth = 1.0 if self._feedback is None else self._feedback.get(session.task.id)
        if worth is None:
            raise UnscoredError("no feedback of it is known")
        width = self._settings.high - self._settings.low
        return self._settings.low + width * worth * self._same(_text(session), _text(said))

    def _same(self, served: str, said: str) -> float:
        """Return the agreement with the served answer, in [0, 1]; 1 for equal texts."""
        right = stated_answer(served)
        try:
            self._grading.check(right, {})
            return 1.0 if said == served else self._grading.grade(right, {}, said).reward
        except ValueError as error:
            raise UnscoredError(f"the served answer {error}") from error

    def close(self) -> None:
        """No-op: the scorer holds no resources."""


class Rewards:
    """Scorer by the reward terms of a recipe, and by its environment if the environment knows the question.

    Raises:
        ValueError: a requirement of the reward terms is missing.
    """

    def __init__(self, run: RunSettings) -> None:
        self._run, self._environment = run, cast("Environment", run.environment)
        self._paid = not run.rewards or any(isinstance(term, PAID) for term in run.rewards)
        self._tasks = Tasks(run) if self._paid else None
        with ExitStack() as started_:
            terms = open_terms(run, started_.callback)
            self._threads = LoopThreadPool()
            started_.callback(self._threads.close)
            self._waiting = CallerThreadExecutor(end_all)
            started_.callback(self._waiting.shutdown)
            roles = [agent.role for agent in run.agents]
            self._compose = RewardComposer(terms, roles, self._threads, run.rollout.timeout_seconds)
            self._started = started_.pop_all()

    def __call__(self, session: Episode, said: Episode) -> float:
        """Return an answer's total reward.

        Raises:
            UnscoredError: the answer cannot be graded.
        """
        return self._waiting.wait_for(self._worth(replace(said, task=session.task)))

    async def _worth(self, episode: Episode) -> float:
        asked = Transition(Observation(episode.task.prompt), 0.0)
        graded = replace(episode, status="terminated", transitions=(asked,))
        if self._tasks is not None:
            graded = await self._paid_for(graded, self._task(episode))
        composed = await self._compose(graded)
        if not composed.scored:
            raise UnscoredError(composed.error)
        return composed.total_reward

    def _task(self, episode: Episode) -> Task:
        assert self._tasks is not None
        turn = TracedTurn("", (), ({"role": "user", "content": episode.task.prompt},), "")
        task, known = self._tasks.of(TracedEpisode(episode.task.id, (turn,)))
        if not known:
            raise UnscoredError(UNKNOWN)
        return task

    async def _paid_for(self, episode: Episode, task: Task) -> Episode:
        """Return the episode with the environment's reward for its single step."""
        thread, seed = self._threads.acquire(), derive_seed(self._run.seed, "shadow", task.id)
        suspect = True
        try:
            step, declared = await self._stepped(thread, episode, task, seed)
            suspect = False
        except (OverdueError, RaisedError, RefusedError, EpisodeFailedError) as error:
            raise UnscoredError(f"the environment: {error}") from error
        finally:
            await self._threads.release(thread, suspect=suspect)
        paid = Transition(Observation(task.prompt), step.reward, step.agent_rewards, {}, declared)
        return replace(episode, task=task, transitions=(paid,), success=step.success)

    async def _stepped(self, thread: LoopThread, episode: Episode, task: Task, seed: int) -> tuple[Step, Declared]:
        limit = self._run.rollout.timeout_seconds

        async def call(function: Callable[..., object], *arguments: object) -> Any:
            return await thread.call_theirs(function, *arguments, timeout=limit, passing=RefusedError)

        session = await call(started, self._environment, task, seed)
        await call(reset, session)
        answer = next(action for action in episode.actions if action.id == episode.answer)
        roles = {action.agent for action in episode.actions}
        said = JointAction(answer, tuple(episode.actions))
        found: tuple[Step, Declared] = await call(stepped, session, said, roles, task)
        await call(closed, session)
        return found

    def close(self) -> None:
        """Release reward terms and threads."""
        self._started.close()


def read_feedback(path: Path) -> dict[str, float]:
    """Read user feedback: JSON lines like ``{"session": "…", "score": 1}``, with scores from 0 to 1.

    The last line of a session counts.

    Raises:
        ValueError: unreadable file or invalid line.
    """
    found: dict[str, float] = {}
    try:
        lines = read_text(path).splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"--feedback: cannot read {path}: {error}") from error
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            table = json.loads(line)
            session, score = str(table["session"]), float(table["score"])
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f'{path}:{number} is no feedback such as {{"session": "…", "score": 1}}') from error
        if not (math.isfinite(score) and 0 <= score <= 1):
            raise ValueError(f"{path}:{number}: a score of {score:g} is not between 0 and 1")
        found[session] = score
    return found


def _text(episode: Episode) -> str:
    return next(action.message for action in episode.actions if action.id == episode.answer)
