"""Player of a shadow: the second team answers recorded requests without side effects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from marft.agents.game import Attempt, Game
from marft.agents.play import play
from marft.common.types import Episode, Task, Tool
from marft_lab.shadow.effects import block_effects
from marft_lab.shadow.settings import ShadowSettings
from marft_lab.shadow.stubs import build_replays, with_stub_tools
from marft_serve.serving.loader import load_team
from marft_serve.serving.settings import ServedTeam
from marft_serve.serving.team_handler import RequestEnvironment

STREAM = "shadow"
WaitFor = Callable[[Coroutine[object, object, Episode]], Episode]
TICK_SECONDS = 0.5
NO_TIMEOUT = 1e9  # seconds; the session's own environment takes no time, unless the process is suspended


@dataclass(frozen=True, slots=True, eq=False)
class ShadowResult:
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


def to_shadow_team(served: ServedTeam, known_tools: Mapping[str, Sequence[Tool]]) -> ServedTeam:
    """Return a team as a shadow, with stub tools.

    Args:
        served: team.
        known_tools: tools of served teams, by the digest of their source.

    Raises:
        ValueError: the team's effects cannot be blocked, or a model behind an endpoint is not allowed.
    """
    remote = sorted(name for name in served.run.models if served.run.is_remote(name))
    if remote and not ShadowSettings.from_run(served.run).allow_endpoints:
        raise ValueError(
            f"models.{remote[0]}: it is behind an endpoint, and asking it costs what it costs; say so: "
            "--shadow.allow_endpoints true"
        )
    return replace(served, run=with_stub_tools(served.run, known_tools))


class ShadowPlayer:
    """Session player that loads a team (:func:`to_shadow_team`); call :meth:`close` at the end.

    The random streams of a session depend on its name, and sessions are played separately. So results do not depend on
    the order of the sessions or on interrupts.
    """

    def __init__(self, served: ServedTeam) -> None:
        self.settings = ShadowSettings.from_run(served.run)
        with ExitStack() as resources:
            self._rollouts = resources.enter_context(load_team(served))
            self._resources = resources.pop_all()

    def play(self, session: Episode) -> ShadowResult:
        """Play a session with the team."""
        return play_session(self._rollouts.game, self._rollouts.wait_for, self.settings, session)

    def close(self) -> None:
        """Close the team's rollouts."""
        self._resources.close()


def play_session(game: Game, wait_for: WaitFor, settings: ShadowSettings, session: Episode) -> ShadowResult:
    """Play a client's request with a team; every failure of the team gives an episode without an answer.

    Args:
        game: game of the team; its environment and tools are replaced.
        wait_for: function that runs a coroutine with the team's engine.
        settings: settings of the shadow.
        session: recorded session.
    """
    task = Task(session.task.id, session.task.prompt)
    question, tools = RequestEnvironment(task.prompt), build_replays(game.tools, session)
    game = replace(game, environment=question, tools=tools, timeout=NO_TIMEOUT)
    with block_effects(network=settings.allow_endpoints) as effects:
        try:
            episode = wait_for(_play_with_timeout(settings.timeout_seconds, play(game, Attempt(task, STREAM))))
        except TimeoutError:
            error = f"it took over {settings.timeout_seconds:g} s"
            episode = Episode(task, STREAM, 0, (), "timed_out", error=error)
    answer = question.answer.id if question.answer is not None and episode.is_scored else ""
    return ShadowResult(
        episode=replace(episode, answer=answer, transitions=()),
        answered=sum(source.answered for source in tools.values()),
        refused=sum(source.refused for source in tools.values()),
        effects=effects.total(),
    )


async def _play_with_timeout(seconds: float, coroutine: Coroutine[object, object, Episode]) -> Episode:
    """Await an episode with a timeout; the clock stops while the process is suspended.

    Raises:
        TimeoutError: the episode exceeded the timeout.
    """
    task, remaining = asyncio.ensure_future(coroutine), seconds
    try:
        while not task.done():
            if remaining <= 0:
                raise TimeoutError
            await asyncio.wait({task}, timeout=min(TICK_SECONDS, remaining))
            remaining -= TICK_SECONDS
        return task.result()
    finally:
        task.cancel()
