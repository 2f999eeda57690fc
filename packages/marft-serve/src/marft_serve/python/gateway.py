"""A gateway from Python: the agents of a run behind addresses, for code that drives episodes itself."""

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
CALLED = "marft_serve.python.session:Session"  # what the recipe names as its program; every episode has one of its own


class Gateway:
    """Agents of a run behind addresses. Close it, or use it as a context manager.

    ::

        with marft_serve.Gateway("runs/demo") as gateway, gateway.session("What is 2 + 3?") as session:
            client = OpenAI(**session.clients["actor"].keywords)
            …
            session.end("5", reward=1.0)

    Args:
        recipe: a run, or its folder; or a recipe as in :func:`marft.load_recipe`.
        checkpoint: ``last``, ``best``, ``step_000050`` or ``base``; of a recipe it is the base alone.
        record: a folder for what the sessions were.
        timeout: seconds of a session.

    Raises:
        ValueError: there is no such checkpoint, something in the recipe cannot be used, or the gateway's packages are
            not installed.
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
        """Tasks of the run's environment, which it grades.

        Raises:
            ValueError: there is no such split, or none of its tasks.
        """
        from marft.envs.tasks import tasks_of

        if split not in ("train", "validation", "test"):
            raise ValueError(f"split: {split!r} is none of train, validation, test")
        return [own_copy(task) for task in tasks_of(self.run.environment, split)]  # type: ignore[arg-type]

    def session(self, task: str | Task) -> Session:
        """Begin an episode.

        Args:
            task: one of the environment's (:meth:`tasks`), which grades the answer; or any words, where whoever drives
                the session says what it was worth, or nobody does.

        Raises:
            ValueError: the gateway is closed, or the episode could not begin.
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
        """Call off what goes on, and end."""
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
    """The recipe with a program in the place of its organization, whose requests are admitted as they come.

    Raises:
        ValueError: its agents cannot be asked so.
    """
    table = tomllib.loads(to_toml(run))
    settings = table["team"] if isinstance(run.team, Program) else {}
    kept = {key: value for key, value in settings.items() if key not in ("call", "command", "python", "graded_by")}
    team = {**kept, "organization": "program", "call": CALLED, "timeout_seconds": timeout}
    if table["engine"]["kind"] == "local":
        table["engine"]["admission"] = "continuous"
    return parse_recipe({**table, "team": team}, (), run.name, {}, run.given.values())
