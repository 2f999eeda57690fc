"""Gateway from Python: a run's agents behind HTTP addresses, for code that drives episodes itself."""

from __future__ import annotations

import asyncio
import queue
import threading
import tomllib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from marft.agents.environment_calls import RefusedError
from marft.agents.task_copies import copy_task
from marft.cli.python.arguments import check_path
from marft.cli.python.commands import RecipeChanges, RecipeLike, resolve_run
from marft.cli.python.run import Run
from marft.common.error_origin import describe_error
from marft.common.errors import UserError
from marft.common.types import Episode, Task
from marft.config.load import parse_recipe, to_toml
from marft.config.paths import expand_user
from marft.config.python_objects import ObjectPlaceholder
from marft.config.run import RunSettings
from marft.evaluation.session import BASE, find_checkpoint
from marft_serve.gateway.client import Client
from marft_serve.gateway.program import Program
from marft_serve.gateway.program_runner import parse_outcome

if TYPE_CHECKING:
    from marft.rollout.local_runner import LocalRolloutRunner
    from marft_serve.serving.recorder import Recorder


Clients = Mapping[str, Client]
STREAM = "session"
DEFAULT_TIMEOUT = 3600.0
# import path of the recipe's program; each episode has its own session
SESSION_PATH = "marft_serve.python.gateway:Session"


class Session:
    """Single episode with its agents reachable through ``clients`` until the end.

    Attributes:
        task: the task.
        graded: True if the caller may give a reward, False if the environment grades.
        clients: clients by role: ``OpenAI(**session.clients["actor"].keywords)``.
        observation: current observation; for a task in text form, the text.
        episode: the recorded episode; None until the end.
    """

    def __init__(self, task: Task, graded: bool) -> None:
        self.task, self.graded = task, graded
        self.clients: Clients = {}
        self.observation = ""
        self.episode: Episode | None = None
        self._events: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._turn: tuple[asyncio.AbstractEventLoop, asyncio.Future[Mapping[str, object]]] | None = None
        self._cancel: Callable[[], object] = lambda: None
        self._has_reward = not graded  # whether the episode has a reward

    def step(
        self,
        answer: str | None = None,
        *,
        reward: float | None = None,
        success: bool | None = None,
        agent_rewards: Mapping[str, float] | None = None,
    ) -> str | None:
        """Submit the team's answer; return the next observation, or None at the end.

        Args:
            answer: the answer; None for the team's last message.
            reward: reward for a task in text form; not allowed if the environment grades.
            success: whether the task is solved, for a task in text form; optional.
            agent_rewards: individual rewards by role, for a task in text form; optional.

        Raises:
            UserError: the episode is over, or the answer or reward is invalid.
        """
        if self.episode is not None:
            raise UserError(f"the session is over: {self.episode.error or self.episode.status}")
        fields = {"answer": answer, "reward": reward, "success": success, "agent_rewards": agent_rewards}
        table = {key: value for key, value in fields.items() if value is not None}
        if not self.graded and len(table) > ("answer" in table):
            raise UserError("a task of the environment is graded by the environment: give the answer alone")
        if self.graded:
            table.setdefault("reward", 0.0)
        try:
            parse_outcome(table, self.clients, self.graded)
        except RefusedError as error:
            raise UserError(f"the session {error}") from None
        self._has_reward = self._has_reward or reward is not None
        assert self._turn is not None, "a session that somebody holds has begun"
        loop, turn = self._turn
        with suppress(RuntimeError):  # the episode is over, and reports the reason
            loop.call_soon_threadsafe(_resolve_turn, turn, table)
        self._process_event()
        return None if self.episode is not None else self.observation

    def end(
        self,
        answer: str | None = None,
        *,
        reward: float | None = None,
        success: bool | None = None,
        agent_rewards: Mapping[str, float] | None = None,
    ) -> Episode:
        """Submit the final answer with :meth:`step`; return the episode.

        Without a reward from the caller or the environment, the episode is recorded ungraded.

        Raises:
            UserError: as for :meth:`step`; or the environment expects more answers, and the episode is cancelled.
        """
        if self.step(answer, reward=reward, success=success, agent_rewards=agent_rewards) is not None:
            self.cancel()
            raise UserError("the environment goes on: give every answer with step(), until that returns None")
        assert self.episode is not None
        return self.episode

    def cancel(self) -> None:
        """Cancel the episode and record a failure."""
        while self.episode is None:
            with suppress(RuntimeError):  # the gateway is closed, and has cancelled the episode
                self._cancel()
            self._process_event()

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self.episode is None and kind is None:
            self.end()
        else:
            self.cancel()

    async def _answer(self, task: Task, clients: Clients) -> Mapping[str, object]:
        """Program for the episode, on a separate thread: hand over the clients and wait for the answer."""
        loop = asyncio.get_running_loop()
        turn: asyncio.Future[Mapping[str, object]] = loop.create_future()

        def store_turn() -> None:
            """Store the clients and the observation."""
            self.clients, self.observation, self._turn = clients, task.prompt, (loop, turn)

        self._events.put(store_turn)
        return await turn

    def _set_episode(self, episode: Episode) -> None:
        def store_episode() -> None:
            self.episode = episode

        self._events.put(store_episode)

    def _process_event(self) -> None:
        self._events.get()()


def _resolve_turn(turn: asyncio.Future[Mapping[str, object]], table: Mapping[str, object]) -> None:
    if not turn.done():  # timed out or cancelled
        turn.set_result(table)


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
        UserError: the checkpoint does not exist, the recipe is invalid, or the gateway's packages are not installed.
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
        given: Iterable[object] = (),
        **more: object,
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
                self._recorder = Recorder(expand_user(record))
            except ValueError:
                self.close()
                raise

    def tasks(self, split: str = "test") -> list[Task]:
        """Return tasks from the run's environment, for grading by the environment.

        Raises:
            UserError: the split does not exist, or has no tasks.
        """
        from marft.envs.tasks import read_tasks

        if split not in ("train", "validation", "test"):
            raise UserError(f"split: {split!r} is none of train, validation, test")
        return [copy_task(task) for task in read_tasks(self.run.environment, split)]  # type: ignore[arg-type]

    def session(self, task: str | Task) -> Session:
        """Start an episode.

        Args:
            task: a task from :meth:`tasks`, graded by the environment; or a text, for which the caller may give the
                reward.

        Raises:
            UserError: the gateway is closed, or the episode failed to start.
        """
        if self._closing is None or self._closing.is_set():
            raise UserError("the gateway is closed")
        if not isinstance(task, str | Task):
            raise UserError(f"a task is one of gateway.tasks(), or words, and this is of type {type(task).__name__}")
        number = next(self._numbers)
        session_task = Task(f"session-{number:06d}", task) if isinstance(task, str) else task
        session = Session(session_task, graded=session_task is not task)
        asyncio.run_coroutine_threadsafe(self._start_session(session, number), self._loop).result()
        session._process_event()
        if session.episode is not None:
            raise UserError(f"the session could not begin: {session.episode.error}")
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

        try:
            with LocalRolloutRunner(self.run) as rollouts:
                rollouts.load_checkpoint(weights)
                rollouts.publish(0)
                rollouts.wait_for(self._run_until_closed(rollouts))
        except Exception as error:  # the waiting thread raises it
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
        assert isinstance(self.run.team, Program)
        program = self.run.team.model_copy(update={"call": ObjectPlaceholder(session._answer), "graded_by": graded_by})
        game = replace(rollouts.game, team=replace(rollouts.game.team, organization=program))
        if session.graded:
            game = replace(game, environment=RequestEnvironment(session.task.prompt))
        episode = await play(game, Attempt(session.task, STREAM, number))
        return episode if session.graded else await rollouts.compose(episode)


def _build_gateway_run(run: RunSettings, timeout: float) -> RunSettings:
    """Return the recipe with a program as its organization and without ordered admission of requests.

    Raises:
        UserError: the agents cannot be used through a gateway.
    """
    table = tomllib.loads(to_toml(run))
    settings = table["team"] if isinstance(run.team, Program) else {}
    remaining = {key: value for key, value in settings.items() if key not in ("call", "command", "python", "graded_by")}
    team = {**remaining, "organization": "program", "call": SESSION_PATH, "timeout_seconds": timeout}
    if table["engine"]["kind"] == "local":
        table["engine"]["admission"] = "continuous"
    return parse_recipe({**table, "team": team}, (), run.name, {}, run.python_objects.values())
