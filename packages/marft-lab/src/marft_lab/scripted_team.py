"""Scripted teams: a recipe's own game with a function as the source of all actions, without loading models."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from random import Random

import numpy as np

from marft.agents.game import Attempt
from marft.agents.loop_threads import LoopThreadPool
from marft.agents.play import play_all
from marft.agents.prompt_messages import ChatMessage
from marft.agents.sandbox.runner import terminate_all
from marft.agents.task_copies import copy_task
from marft.common.errors import EpisodeFailedError
from marft.common.seeds import derive_seed
from marft.common.types import (
    ActionKey,
    Choice,
    Completion,
    Episode,
    Option,
    Prompt,
    SamplingParams,
    Task,
    Tool,
    VersionRange,
)
from marft.config.interfaces.environment import Environment
from marft.config.run import RunSettings
from marft.envs.game_runtime import GameRuntime, open_terms
from marft.envs.scripted_policy import PolicyInput, ScriptedPolicy, ScriptedReply
from marft.inference.caller_thread import CallerThreadExecutor
from marft.inference.renderer import ChatRenderer
from marft.inference.runtime import build_renderer
from marft.models.tokenizer_format import TokenizerFormat, load_tokenizer_formats
from marft_serve.traces.turn_tokens import encode_turn
from marft_serve.traces.types import TracedTurn, UnreadableError

STREAM = "script"
MAX_CONCURRENT = 64  # maximum concurrent episodes


@dataclass(frozen=True, slots=True)
class ScriptedTurn:
    """Turn of a scripted agent: action key, prompt chat, tools and text."""

    key: ActionKey
    chat: tuple[ChatMessage, ...]
    tools: tuple[Tool, ...]
    line: ScriptedReply


class ScriptedSampler:
    """Sampler with actions from a script.

    Args:
        script: function from a cue to a line.
        renderer: renderer of chats.
        seed: seed of the run.
        on_turn: callback for every turn.
    """

    def __init__(
        self,
        script: ScriptedPolicy,
        renderer: ChatRenderer,
        seed: int,
        on_turn: Callable[[ScriptedTurn], None] = lambda _: None,
    ) -> None:
        self.script, self.renderer, self.seed, self.on_turn = script, renderer, seed, on_turn
        self.tasks: dict[str, Task] = {}

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        """Return the agent's next turn, as written by its model.

        Raises:
            EpisodeFailedError: the model's chat template cannot render the turn.
        """
        del sampling
        line = self._next_line(prompt, key, ())
        turn = TracedTurn("", (key.agent,), (), line.text, calls=line.calls, location="the script")
        try:
            ids = encode_turn(self.renderer, policy, prompt.chat, prompt.tools, turn, "keep")
        except UnreadableError as error:
            raise EpisodeFailedError("failed", f"the script's {key.agent}: {error}") from error
        return Completion(ids, np.zeros(len(ids), np.float32), line.text, "stop", calls=line.calls or None)

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: SamplingParams, key: ActionKey
    ) -> tuple[Choice, VersionRange]:
        """Return the option chosen by the script.

        Raises:
            EpisodeFailedError: the script's text is not an option.
        """
        del sampling
        texts = tuple(self.renderer.decode_option(policy, option.tokens) for option in options)
        text = self._next_line(prompt, key, texts).text
        if text not in texts:
            raise EpisodeFailedError("failed", f"the script's {key.agent} chose {text!r}, which is none of its options")
        return Choice(tuple(options), texts.index(text), np.zeros(len(options), np.float32)), VersionRange()

    def external_wait(self) -> AbstractContextManager[None]:
        """No-op: replies are immediate."""
        return nullcontext()

    def _next_line(self, prompt: Prompt, key: ActionKey, options: tuple[str, ...]) -> ScriptedReply:
        random = Random(derive_seed(self.seed, *map(str, key)))
        reply = self.script(
            PolicyInput(
                copy_task(self.tasks[key.task]), key.agent, key.step, prompt.chat, random, options, prompt.tools
            )
        )
        line = ScriptedReply(reply) if isinstance(reply, str) else reply
        self.on_turn(ScriptedTurn(key, prompt.chat, prompt.tools, line))
        return line


class ScriptedTeam:
    """Team that plays a recipe's episodes by a script; close the team, or use it as a context manager.

    Args:
        run: settings of the run.
        script: function from a cue to a line.
        formats: chat formats of the recipe's models; None reads them from the model folders.
        on_turn: callback for every turn.

    Raises:
        ValueError: a component of the recipe is unavailable.
    """

    def __init__(
        self,
        run: RunSettings,
        script: ScriptedPolicy,
        formats: Mapping[str, TokenizerFormat] | None = None,
        on_turn: Callable[[ScriptedTurn], None] = lambda _: None,
    ) -> None:
        renderer = build_renderer(run, load_tokenizer_formats(run) if formats is None else formats)
        self.sampler = ScriptedSampler(script, renderer, run.seed, on_turn)
        with ExitStack() as resources:
            terms = open_terms(run, resources.callback)
            self._parts = GameRuntime(run, terms, self.sampler, renderer, LoopThreadPool())
            resources.callback(self._parts.close)
            self._game = self._parts.game
            self._executor = CallerThreadExecutor(terminate_all)
            resources.callback(self._executor.shutdown)
            resources.callback(terminate_all)
            self._resources = resources.pop_all()

    def wrap_environment(self, wrapper: Callable[[Environment], Environment]) -> None:
        """Replace the environment by ``wrapper(environment)``, for measurements or observation."""
        self._game = replace(self._game, environment=wrapper(self._game.environment))

    def play(self, tasks: Iterable[Task], samples: int = 1) -> Iterator[Episode]:
        """Play tasks, and yield their episodes in the same order, in batches."""
        return self.play_attempts(Attempt(task, STREAM, sample) for task in tasks for sample in range(samples))

    def play_attempts(self, attempts: Iterable[Attempt]) -> Iterator[Episode]:
        """Play attempts, and yield their episodes in the same order, in batches."""
        pending = iter(attempts)
        while batch := list(islice(pending, MAX_CONCURRENT)):
            self.sampler.tasks = {attempt.task.id: attempt.task for attempt in batch}
            yield from self._executor.wait_for(self._play_batch(batch))

    async def _play_batch(self, attempts: Sequence[Attempt]) -> list[Episode]:
        gate = asyncio.Semaphore(MAX_CONCURRENT)
        return await play_all(self._game, attempts, gate, compose=self._parts.reward_manager)

    def close(self) -> None:
        """Release tools, reward terms and threads."""
        self._resources.close()

    def __enter__(self) -> ScriptedTeam:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
