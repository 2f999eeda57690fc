"""Gateway from Python: a run's agents behind HTTP addresses, for code that drives episodes itself."""

from __future__ import annotations

import asyncio
import threading
import tomllib
from collections.abc import Iterable
from concurrent.futures import Future
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.agents.task_copies import copy_task
from marft.cli.python.arguments import check_path
from marft.cli.python.commands import RecipeChanges, RecipeLike, resolve_run
from marft.cli.python.run import Run
from marft.common.error_origin import describe_error
from marft.common.types import Episode, Task
from marft.config.load import parse_recipe, to_toml
from marft.config.paths import expand_user
from marft.config.python_objects import ObjectPlaceholder
from marft.config.run import RunSettings
from marft.evaluation.session import BASE, find_checkpoint
from marft_serve.gateway.program import Program
from marft_serve.python.session import Session

if TYPE_CHECKING:
    from marft.rollout.local_runner import LocalRolloutRunner
    from marft_serve.serving.recorder import Recorder

STREAM = "session"
DEFAULT_TIMEOUT = 3600.0
# import path of the recipe's program; each episode has its own session
SESSION_PATH = "marft_serve.python.session:Session"


class Gateway:
    """Agents from a run behind HTTP addresses. Call :meth:`close`, or use it as a context manager.

    ::

        with marft_serve.Gateway("runs/demo") as gateway, gateway.session("What is 2 + 3?") as session:
            client = OpenAI(**session.clients["actor"].keywords)
            …
            session.end("5", reward=1.0)

    Args:
        recipe: a run, its folder, or a recipe as for :func:`marft.load_recipe`.
        changes: changes of the recipe, as for :func:`marft.load_recipe`.
        checkpoint: ``last``, ``best``, ``step_000050`` or ``base``; a recipe has only ``base``.
        record: folder for recorded sessions; None to record nothing.
        timeout: timeout of a session, in seconds.

    Raises:
        ValueError: the checkpoint does not exist, the recipe is invalid, or the gateway's packages are not installed.
    """

    def __init__(
        self,
        recipe: RecipeLike | Run,
        changes: RecipeChanges = (),
        /,
        *,
        checkpoint: str = "",
        record: str | Path | None = None,
        timeout: float = DEFAULT_TIMEOUT,
        given: Iterable[Any] = (),
        **more: Any,
    ) -> None:
        if record is not None:
            check_path(record, "record: the sessions' folder")
        settings, folder = resolve_run(recipe, changes, given, more)
        self.run = _build_gateway_run(settings, timeout)
        weights = find_checkpoint(self.run, folder, checkpoint or ("last" if folder else BASE))
        self._open_tasks: set[asyncio.Task[Episode]] = set()
        self._numbers = count()
        self._started: Future[tuple[LocalRolloutRunner, asyncio.AbstractEventLoop]] = Future()
        self._closing: asyncio.Event | None = None
        self._recorder: Recorder | None = None
        self._thread = threading.Thread(target=self._serve, args=(weights,), name="marft-gateway", daemon=True)
        self._thread.start()
        self._rollouts, self._loop = self._started.result()
        if record is not None:
            from marft_serve.serving.recorder import Recorder

            try:
                self._recorder = Recorder(expand_user(record), lambda _: None)
            except ValueError:
                self.close()
                raise

    def tasks(self, split: str = "test") -> list[Task]:
        """Return tasks from the run's environment, for grading by the environment.

        Raises:
            ValueError: the split does not exist, or has no tasks.
        """
        from marft.envs.tasks import read_tasks

        if split not in ("train", "validation", "test"):
            raise ValueError(f"split: {split!r} is none of train, validation, test")
        return [copy_task(task) for task in read_tasks(self.run.environment, split)]  # type: ignore[arg-type]

    def session(self, task: str | Task) -> Session:
        """Start an episode.

        Args:
            task: a task from :meth:`tasks`, graded by the environment; or a text, for which the caller may give the
                reward.

        Raises:
            ValueError: the gateway is closed, or the episode failed to start.
        """
        if self._closing is None or self._closing.is_set():
            raise ValueError("the gateway is closed")
        if not isinstance(task, str | Task):
            raise ValueError(f"a task is one of gateway.tasks(), or words, and this is of type {type(task).__name__}")
        number = next(self._numbers)
        session_task = Task(f"session-{number:06d}", task) if isinstance(task, str) else task
        session = Session(session_task, graded=session_task is not task)
        asyncio.run_coroutine_threadsafe(self._start_session(session, number), self._loop).result()
        session._process_event()
        if session.episode is not None:
            raise ValueError(f"the session could not begin: {session.episode.error}")
        return session

    def close(self) -> None:
        """Cancel all sessions and stop the gateway."""
        if self._thread.is_alive() and self._closing is not None:
            self._loop.call_soon_threadsafe(self._closing.set)
        self._thread.join()
        if self._recorder is not None:
            self._recorder.close()

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, weights: Path | None) -> None:
        from marft.rollout.local_runner import LocalRolloutRunner
        from marft.runs.checkpoints import load_policies
        from marft.runs.state_schema import read_learned_prompts

        try:
            with LocalRolloutRunner(self.run) as rollouts:
                if weights is not None:
                    load_policies(weights, rollouts.models, dict.fromkeys(self.run.trained_policies))
                    rollouts.instruct(read_learned_prompts(weights))
                rollouts.publish(0)
                rollouts.wait_for(self._run_until_closed(rollouts))
        except Exception as error:
            if self._started.done():
                raise
            self._started.set_exception(error)

    async def _run_until_closed(self, rollouts: LocalRolloutRunner) -> None:
        self._closing = asyncio.Event()
        self._started.set_result((rollouts, asyncio.get_running_loop()))
        await self._closing.wait()
        for task in self._open_tasks:
            task.cancel()
        await asyncio.gather(*self._open_tasks, return_exceptions=True)
        await rollouts.engine.wait_idle()

    async def _start_session(self, session: Session, number: int) -> None:
        episode_task = asyncio.create_task(self._play_episode(session, number))
        self._open_tasks.add(episode_task)
        session._cancel = lambda: self._loop.call_soon_threadsafe(episode_task.cancel)

        def on_done(_: object) -> None:
            """Record the finished episode."""
            self._open_tasks.discard(episode_task)
            error = None if episode_task.cancelled() else episode_task.exception()
            reason = "it was called off" if episode_task.cancelled() else describe_error(error) if error else ""
            failed = Episode(session.task, STREAM, number, (), "failed", error=reason)
            episode = failed if reason else episode_task.result()
            if self._recorder is not None:
                self._recorder.add_episode(episode if session._has_reward else replace(episode, transitions=()))
            session._set_episode(episode)

        episode_task.add_done_callback(on_done)

    async def _play_episode(self, session: Session, number: int) -> Episode:
        from marft.agents.game import Attempt
        from marft.agents.play import play
        from marft_serve.serving.team_handler import RequestEnvironment

        rollouts = self._rollouts
        graded_by = "program" if session.graded else "environment"
        program = _get_program(self.run).model_copy(
            update={"call": ObjectPlaceholder(session._answer), "graded_by": graded_by}
        )
        game = replace(rollouts.game, team=replace(rollouts.game.team, organization=program))
        if session.graded:
            game = replace(game, environment=RequestEnvironment(session.task.prompt))
        episode = await play(game, Attempt(session.task, STREAM, number))
        return episode if session.graded else await rollouts.compose(episode)


def _get_program(run: RunSettings) -> Program:
    assert isinstance(run.team, Program)
    return run.team


def _build_gateway_run(run: RunSettings, timeout: float) -> RunSettings:
    """Return the recipe with a program as its organization and without ordered admission of requests.

    Raises:
        ValueError: the agents cannot be used through a gateway.
    """
    table = tomllib.loads(to_toml(run))
    settings = table["team"] if isinstance(run.team, Program) else {}
    remaining = {key: value for key, value in settings.items() if key not in ("call", "command", "python", "graded_by")}
    team = {**remaining, "organization": "program", "call": SESSION_PATH, "timeout_seconds": timeout}
    if table["engine"]["kind"] == "local":
        table["engine"]["admission"] = "continuous"
    return parse_recipe({**table, "team": team}, (), run.name, {}, run.python_objects.values())
