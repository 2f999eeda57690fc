"""What an answered session is worth: by reward terms and environment, by the answer that was served, or by users."""

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

PAID = (Outcome, Progress, Trajectory, TrajectoryScore)  # terms that say what the environment does
UNKNOWN = "the environment of the recipe that grades does not know the question"


class UnscoredError(Exception):
    """Nobody can say what a session is worth; the message says why."""


class Scorer(Protocol):
    """Says what an episode is worth as the answer to a session: the session itself, or what a shadow made of it."""

    def __call__(self, session: Episode, said: Episode) -> float:
        """
        Raises:
            UnscoredError: nobody can say it.
        """
        ...

    def close(self) -> None:
        """Let go of what it asks."""
        ...


class Agreement:
    """1 for the served answer, and for the shadow's what it is worth held against that.

    Args:
        feedback: what users said of served answers, from 0 to 1, by session; None where it is not asked. A shadow that
            gives the same answer is worth the same. Of another answer nobody knows anything: it is taken for worth
            nothing, so that no promotion rests on guesses. (Our reading: what is said of one answer is not said of
            another.)
    """

    def __init__(self, settings: ShadowSettings, feedback: Mapping[str, float] | None = None) -> None:
        self._grading, self._feedback, self._settings = (
            GRADINGS[settings.agreement].model_validate({}),
            feedback,
            settings,
        )

    def __call__(self, session: Episode, said: Episode) -> float:
        """
        Raises:
            UnscoredError: no user has said anything of it, or the two cannot be compared.
        """
        worth = 1.0 if self._feedback is None else self._feedback.get(session.task.id)
        if worth is None:
            raise UnscoredError("no feedback of it is known")
        width = self._settings.high - self._settings.low
        return self._settings.low + width * worth * self._same(_text(session), _text(said))

    def _same(self, served: str, said: str) -> float:
        """How much of the served answer is given again: all of it where the texts are the same."""
        right = stated_answer(served)
        try:
            self._grading.check(right, {})
            return 1.0 if said == served else self._grading.grade(right, {}, said).reward
        except ValueError as error:
            raise UnscoredError(f"the served answer {error}") from error

    def close(self) -> None:
        """Nothing is held."""


class Rewards:
    """What the terms of a recipe give, and its environment where it knows the question.

    Raises:
        ValueError: something that the terms need is missing.
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
        """
        Raises:
            UnscoredError: it cannot be graded.
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
        """An episode with what the environment pays for its one step."""
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
        """Let go of terms and threads."""
        self._started.close()


def read_feedback(path: Path) -> dict[str, float]:
    """Lines such as ``{"session": "…", "score": 1}``, scores from 0 to 1. What is said of a session last counts.

    Raises:
        ValueError: the file cannot be read, or a line is none such.
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
