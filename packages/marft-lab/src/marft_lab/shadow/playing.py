"""The second team at work: it is asked what clients asked, and nothing that it does leaves the process."""

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
NEVER = 1e9  # seconds: what the session itself is asked takes none, unless the process stands still meanwhile


@dataclass(frozen=True, slots=True, eq=False)
class Played:
    """What the shadow made of a session.

    Args:
        episode: one whose ``answer`` is "" has none; its ``error`` says why.
        answered, refused: calls of tools that had a recorded answer, and that had none.
        effects: what parts of the team tried to do to the world, all refused.
    """

    episode: Episode
    answered: int
    refused: int
    effects: int


def as_shadow(served: Served, known: Mapping[str, Sequence[Tool]]) -> Served:
    """A team as its shadow: without tools that do anything, and asking nobody.

    Args:
        known: tools that a served team was offered, by the digest of their source.

    Raises:
        ValueError: what it does cannot be held back.
    """
    remote = sorted(name for name in served.run.models if served.run.is_remote(name))
    if remote and not ShadowSettings.of(served.run).endpoints:
        raise ValueError(
            f"models.{remote[0]}: it is behind an endpoint, and asking it costs what it costs; say so: "
            "--shadow.endpoints true"
        )
    return replace(served, run=stubbed(served.run, known))


class Shadow:
    """Loads a team (:func:`as_shadow`) and plays sessions with it, one after the other. Close it.

    Each session's random streams go by its name, and it is played alone: so the same sessions come out the same in any
    order, and after any stop.
    """

    def __init__(self, served: Served) -> None:
        self.settings = ShadowSettings.of(served.run)
        with ExitStack() as started:
            self._rollouts = started.enter_context(loaded(served))
            self._started = started.pop_all()

    def play(self, session: Episode) -> Played:
        """What the team does with what the client asked."""
        return played(self._rollouts.game, self._rollouts.wait_for, self.settings, session)

    def close(self) -> None:
        """Let go of the team."""
        self._started.close()


def played(game: Game, wait_for: WaitFor, settings: ShadowSettings, session: Episode) -> Played:
    """What a team does with what a client asked. Whatever goes wrong in it is its own fault, and an episode without an
    answer.

    Args:
        game: of the team; its environment and its tools are put aside.
        wait_for: runs a coroutine that uses its engine.
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
    """
    Raises:
        TimeoutError: it took too long, by a clock that stands still while the process does.
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
