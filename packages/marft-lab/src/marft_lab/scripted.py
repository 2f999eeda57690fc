"""Scripted teams: a recipe's own game with a function as the source of all actions, without loading models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from random import Random

import numpy as np

from marft.agents.environment import Environment
from marft.agents.game import Attempt
from marft.agents.loop_threads import LoopThreadPool
from marft.agents.rendering import ChatMessage
from marft.agents.rollout import play_all
from marft.agents.sandbox.runner import end_all
from marft.agents.tasks import own_copy
from marft.common.errors import EpisodeFailedError
from marft.common.seeds import derive_seed
from marft.common.types import ActionKey, Choice, Completion, Episode, Option, Prompt, Sampling, Task, Tool, Versions
from marft.config.run import RunSettings
from marft.envs.game_parts import GameParts, open_terms
from marft.envs.scripts import Cue, Line, Script
from marft.inference.caller_thread import CallerThreadExecutor
from marft.inference.renderer import ChatRenderer
from marft.inference.samplers import renderer_of
from marft.models.formats import Format, load_formats
from marft_serve.traces.record import TracedTurn, UnreadableError
from marft_serve.traces.turns import turn_ids

STREAM = "script"
AT_ONCE = 64  # maximum concurrent episodes


@dataclass(frozen=True, slots=True)
class Spoken:
    """Turn of a scripted agent: action key, prompt chat, tools and text."""

    key: ActionKey
    chat: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...]
    line: Line


class ScriptedSampler:
    """Sampler with actions from a script.

    Args:
        script: function from a cue to a line.
        renderer: renderer of chats.
        seed: seed of the run.
        heard: callback for every turn.
    """

    def __init__(
        self, script: Script, renderer: ChatRenderer, seed: int, heard: Callable[[Spoken], None] = lambda _: None
    ) -> None:
        self.script, self.renderer, self.seed, self.heard = script, renderer, seed, heard
        self.tasks: dict[str, Task] = {}

    async def sample(self, policy: str, prompt: Prompt, sampling: Sampling, key: ActionKey) -> Completion:
        """Return the agent's next turn, as written by its model.

        Raises:
            EpisodeFailedError: the model's chat template cannot render the turn.
        """
        del sampling
        line = self._line(prompt, key, ())
        turn = TracedTurn("", (key.agent,), (), line.text, calls=line.calls, place="the script")
        try:
            ids = turn_ids(self.renderer, policy, prompt.chat, prompt.tools, turn, "keep")
        except UnreadableError as error:
            raise EpisodeFailedError("failed", f"the script's {key.agent}: {error}") from error
        return Completion(ids, np.zeros(len(ids), np.float32), line.text, "stop", calls=line.calls or None)

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: Sampling, key: ActionKey
    ) -> tuple[Choice, Versions]:
        """Return the option chosen by the script.

        Raises:
            EpisodeFailedError: the script's text is not an option.
        """
        del sampling
        texts = tuple(self.renderer.option_text(policy, option.tokens) for option in options)
        said = self._line(prompt, key, texts).text
        if said not in texts:
            raise EpisodeFailedError("failed", f"the script's {key.agent} chose {said!r}, which is none of its options")
        return Choice(tuple(options), texts.index(said), np.zeros(len(options), np.float32)), Versions()

    def external_wait(self) -> AbstractContextManager[None]:
        """No-op: replies are immediate."""
        return nullcontext()

    def _line(self, prompt: Prompt, key: ActionKey, options: tuple[str, ...]) -> Line:
        random = Random(derive_seed(self.seed, *map(str, key)))
        said = self.script(
            Cue(own_copy(self.tasks[key.task]), key.agent, key.step, prompt.chat, random, options, prompt.tools)
        )
        line = Line(said) if isinstance(said, str) else said
        self.heard(Spoken(key, prompt.chat, prompt.tools, line))
        return line


class ScriptedTeam:
    """Team that plays a recipe's episodes by a script; close the team, or use it as a context manager.

    Args:
        run: settings of the run.
        script: function from a cue to a line.
        formats: chat formats of the recipe's models; None reads them from the model folders.
        heard: callback for every turn.

    Raises:
        ValueError: a component of the recipe is unavailable.
    """

    def __init__(
        self, run: RunSettings, script: Script, formats: Mapping[str, Format] | None = None,
        heard: Callable[[Spoken], None] = lambda _: None,
    ) -> None:  # fmt: skip
        renderer = renderer_of(run, load_formats(run) if formats is None else formats)
        self.sampler = ScriptedSampler(script, renderer, run.seed, heard)
        with ExitStack() as started:
            terms = open_terms(run, started.callback)
            self._parts = GameParts(run, terms, self.sampler, renderer, LoopThreadPool())
            started.callback(self._parts.close)
            self._game = self._parts.game
            self._waiting = CallerThreadExecutor(end_all)
            started.callback(self._waiting.shutdown)
            started.callback(end_all)
            self._started = started.pop_all()

    def watch(self, around: Callable[[Environment], Environment]) -> None:
        """Replace the environment by ``around(environment)``, for measurements or observation."""
        self._game = replace(self._game, environment=around(self._game.environment))

    def play(self, tasks: Iterable[Task], samples: int = 1) -> Iterator[Episode]:
        """Play tasks, and yield their episodes in the same order, in batches."""
        return self.attempt(Attempt(task, STREAM, sample) for task in tasks for sample in range(samples))

    def attempt(self, attempts: Iterable[Attempt]) -> Iterator[Episode]:
        """Play attempts, and yield their episodes in the same order, in batches."""
        waiting = iter(attempts)
        while some := list(islice(waiting, AT_ONCE)):
            self.sampler.tasks = {attempt.task.id: attempt.task for attempt in some}
            yield from self._waiting.wait_for(self._play(some))

    async def _play(self, attempts: Sequence[Attempt]) -> list[Episode]:
        gate = asyncio.Semaphore(AT_ONCE)
        return await play_all(self._game, attempts, gate, compose=self._parts.compose)

    def close(self) -> None:
        """Release tools, reward terms and threads."""
        self._started.close()

    def __enter__(self) -> ScriptedTeam:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
