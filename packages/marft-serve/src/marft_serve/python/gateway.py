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

from marft.agents.tasks import own_copy
from marft.cli.python.asked import check_place
from marft.cli.python.commands import Changes, Recipe, run_of
from marft.cli.python.run import Run
from marft.common.faults import described
from marft.common.types import Episode, Task
from marft.config.folders import at_home
from marft.config.given import Given
from marft.config.load import parse_recipe, to_toml
from marft.config.run import RunSettings
from marft.evaluation.session import BASE, find_checkpoint
from marft_serve.gateway.program import Program
from marft_serve.python.session import Session

if TYPE_CHECKING:
    from marft.rollout.rollouts import LocalRollouts
    from marft_serve.serving.recording import Recorder

STREAM = "session"
HOUR = 3600.0
CALLED = "marft_serve.python.session:Session"  # import path of the recipe's program; each episode has its own session


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
        self, recipe: Recipe | Run, changes: Changes = (), /, *, checkpoint: str = "",
        record: str | Path | None = None, timeout: float = HOUR, given: Iterable[Any] = (), **more: Any,
    ) -> None:  # fmt: skip
        if record is not None:
            check_place(record, "record: the sessions' folder")
        settings, folder = run_of(recipe, changes, given, more)
        self.run = _asked_by_anybody(settings, timeout)
        weights = find_checkpoint(self.run, folder, checkpoint or ("last" if folder else BASE))
        self._open: set[asyncio.Task[Episode]] = set()
        self._numbers = count()
        self._began: Future[tuple[LocalRollouts, asyncio.AbstractEventLoop]] = Future()
        self._ending: asyncio.Event | None = None
        self._recorder: Recorder | None = None
        self._thread = threading.Thread(target=self._serve, args=(weights,), name="marft-gateway", daemon=True)
        self._thread.start()
        self._rollouts, self._loop = self._began.result()
        if record is not None:
            from marft_serve.serving.recording import Recorder

            try:
                self._recorder = Recorder(at_home(record), lambda _: None)
            except ValueError:
                self.close()
                raise

    def tasks(self, split: str = "test") -> list[Task]:
        """Return tasks from the run's environment, for grading by the environment.

        Raises:
            ValueError: the split does not exist, or has no tasks.
        """
        from marft.envs.tasks import tasks_of

        if split not in ("train", "validation", "test"):
            raise ValueError(f"split: {split!r} is none of train, validation, test")
        return [own_copy(task) for task in tasks_of(self.run.environment, split)]  # type: ignore[arg-type]

    def session(self, task: str | Task) -> Session:
        """Start an episode.

        Args:
            task: a task from :meth:`tasks`, graded by the environment; or a text, for which the caller may give the
                reward.

        Raises:
            ValueError: the gateway is closed, or the episode failed to start.
        """
        if self._ending is None or self._ending.is_set():
            raise ValueError("the gateway is closed")
        if not isinstance(task, str | Task):
            raise ValueError(f"a task is one of gateway.tasks(), or words, and this is of type {type(task).__name__}")
        number = next(self._numbers)
        told = Task(f"session-{number:06d}", task) if isinstance(task, str) else task
        session = Session(told, graded=told is not task)
        asyncio.run_coroutine_threadsafe(self._begin(session, number), self._loop).result()
        session._wait()
        if session.episode is not None:
            raise ValueError(f"the session could not begin: {session.episode.error}")
        return session

    def close(self) -> None:
        """Cancel all sessions and stop the gateway."""
        if self._thread.is_alive() and self._ending is not None:
            self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join()
        if self._recorder is not None:
            self._recorder.close()

    def __enter__(self) -> Gateway:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _serve(self, weights: Path | None) -> None:
        from marft.rollout.rollouts import LocalRollouts
        from marft.runs.checkpoints import load_policies
        from marft.runs.stated import told_at

        try:
            with LocalRollouts(self.run) as rollouts:
                if weights is not None:
                    load_policies(weights, rollouts.models, dict.fromkeys(self.run.trained_policies))
                    rollouts.instruct(told_at(weights))
                rollouts.publish(0)
                rollouts.wait_for(self._until_closed(rollouts))
        except Exception as error:
            if self._began.done():
                raise
            self._began.set_exception(error)

    async def _until_closed(self, rollouts: LocalRollouts) -> None:
        self._ending = asyncio.Event()
        self._began.set_result((rollouts, asyncio.get_running_loop()))
        await self._ending.wait()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await rollouts.engine.settle()

    async def _begin(self, session: Session, number: int) -> None:
        playing = asyncio.create_task(self._played(session, number))
        self._open.add(playing)
        session._calling_off = lambda: self._loop.call_soon_threadsafe(playing.cancel)

        def over(_: object) -> None:
            """Record the finished episode."""
            self._open.discard(playing)
            error = None if playing.cancelled() else playing.exception()
            reason = "it was called off" if playing.cancelled() else described(error) if error else ""
            failed = Episode(session.task, STREAM, number, (), "failed", error=reason)
            episode = failed if reason else playing.result()
            if self._recorder is not None:
                self._recorder.add(episode if session._earned else replace(episode, transitions=()))
            session._over(episode)

        playing.add_done_callback(over)

    async def _played(self, session: Session, number: int) -> Episode:
        from marft.agents.game import Attempt
        from marft.agents.play import play
        from marft_serve.serving.asking import Question

        rollouts = self._rollouts
        graded_by = "program" if session.graded else "environment"
        program = _program(self.run).model_copy(update={"call": Given(session._answer), "graded_by": graded_by})
        game = replace(rollouts.game, team=replace(rollouts.game.team, organization=program))
        if session.graded:
            game = replace(game, environment=Question(session.task.prompt))
        episode = await play(game, Attempt(session.task, STREAM, number))
        return episode if session.graded else await rollouts.compose(episode)


def _program(run: RunSettings) -> Program:
    assert isinstance(run.team, Program)
    return run.team


def _asked_by_anybody(run: RunSettings, timeout: float) -> RunSettings:
    """Return the recipe with a program as its organization and without ordered admission of requests.

    Raises:
        ValueError: the agents cannot be used through a gateway.
    """
    table = tomllib.loads(to_toml(run))
    settings = table["team"] if isinstance(run.team, Program) else {}
    kept = {key: value for key, value in settings.items() if key not in ("call", "command", "python", "graded_by")}
    team = {**kept, "organization": "program", "call": CALLED, "timeout_seconds": timeout}
    if table["engine"]["kind"] == "local":
        table["engine"]["admission"] = "continuous"
    return parse_recipe({**table, "team": team}, (), run.name, {}, run.given.values())
