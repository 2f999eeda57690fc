"""Player of a shadow: the second team answers recorded requests without side effects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from marft.agents.game import Attempt, Game
from marft.agents.play import play
from marft.common.types import Episode, Task, Tool
from marft_lab.shadow.effects import held_back
from marft_lab.shadow.settings import ShadowSettings
from marft_lab.shadow.stubs import replayed, stubbed
from marft_serve.serving.asking import Question
from marft_serve.serving.loading import loaded
from marft_serve.serving.settings import Served

STREAM = "shadow"
WaitFor = Callable[[Coroutine[object, object, Episode]], Episode]
TICK_SECONDS = 0.5
NEVER = 1e9  # seconds; the session's own environment takes no time, unless the process is suspended


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """Result of a session played by the shadow.

    Args:
        episode: episode; ``answer`` is "" without an answer, with the reason in ``error``.
        answered: tool calls with a recorded result.
        refused: tool calls without a recorded result.
        effects: rejected side effects.
    """

    episode: Episode
    answered: int
    refused: int
    effects: int


def as_shadow(served: Served, known: Mapping[str, Sequence[Tool]]) -> Served:
    """Return a team as a shadow, with stub tools.

    Args:
        served: team.
        known: tools of served teams, by the digest of their source.

    Raises:
        ValueError: the team's effects cannot be blocked, or a model behind an endpoint is not allowed.
    """
    remote = sorted(name for name in served.run.models if served.run.is_remote(name))
    if remote and not ShadowSettings.of(served.run).endpoints:
        raise ValueError(
            f"models.{remote[0]}: it is behind an endpoint, and asking it costs what it costs; say so: "
            "--shadow.endpoints true"
        )
    return replace(served, run=stubbed(served.run, known))


class Shadow:
    """Session player that loads a team (:func:`as_shadow`); call :meth:`close` at the end.

    The random streams of a session depend on its name, and sessions are played separately. So results do not depend on
    the order of the sessions or on interrupts.
    """

    def __init__(self, served: Served) -> None:
        self.settings = ShadowSettings.of(served.run)
        with ExitStack() as started:
            self._rollouts = started.enter_context(loaded(served))
            self._started = started.pop_all()

    def play(self, session: Episode) -> Played:
        """Play a session with the team."""
        return played(self._rollouts.game, self._rollouts.wait_for, self.settings, session)

    def close(self) -> None:
        """Close the team's rollouts."""
        self._started.close()


def played(game: Game, wait_for: WaitFor, settings: ShadowSettings, session: Episode) -> Played:
    """Play a client's request with a team; every failure of the team gives an episode without an answer.

    Args:
        game: game of the team; its environment and tools are replaced.
        wait_for: function that runs a coroutine with the team's engine.
        settings: settings of the shadow.
        session: recorded session.
    """
    task = Task(session.task.id, session.task.prompt)
    question, tools = Question(task.prompt), replayed(game.tools, session)
    game = replace(game, environment=question, tools=tools, timeout=NEVER)
    with held_back(network=settings.endpoints) as effects:
        try:
            episode = wait_for(_within(settings.seconds, play(game, Attempt(task, STREAM))))
        except TimeoutError:
            error = f"it took over {settings.seconds:g} s"
            episode = Episode(task, STREAM, 0, (), "timed_out", error=error)
    answer = question.answer.id if question.answer is not None and episode.scored else ""
    return Played(
        episode=replace(episode, answer=answer, transitions=()),
        answered=sum(source.answered for source in tools.values()),
        refused=sum(source.refused for source in tools.values()),
        effects=effects.total(),
    )


async def _within(seconds: float, playing: Coroutine[object, object, Episode]) -> Episode:
    """Await an episode with a timeout; the clock stops while the process is suspended.

    Raises:
        TimeoutError: the episode exceeded the timeout.
    """
    task, left = asyncio.ensure_future(playing), seconds
    try:
        while not task.done():
            if left <= 0:
                raise TimeoutError
            await asyncio.wait({task}, timeout=min(TICK_SECONDS, left))
            left -= TICK_SECONDS
        return task.result()
    finally:
        task.cancel()
