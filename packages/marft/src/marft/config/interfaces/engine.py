"""Inference engines: tokens in, tokens out.

An agent handle needs a :class:`Sampler`, a run an :class:`Engine`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Protocol

from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, SamplingParams, VersionRange
from marft.config.plugins import Plugin

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from marft.config.run import RunSettings


class Sampler(Protocol):
    """Sampler for policies by name."""

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        """Sample one action. The key names its random stream and its position among waiting requests."""
        ...

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: SamplingParams, key: ActionKey
    ) -> tuple[Choice, VersionRange]:
        """Choose one option; return the choice and the policy versions behind it."""
        ...

    def external_wait(self) -> AbstractContextManager[None]:
        """Return a context manager to hold while an episode waits for an environment or a tool.

        A sampler that admits requests in order then knows that more requests may come.
        """
        ...


class Weights(Protocol):
    """Handle to the trained tensors of a policy.

    An engine that shares the learner's memory does not read them. Any other engine copies them.
    """

    def parameters(self) -> Mapping[str, Tensor]:
        """Return the trained tensors by name."""


class LoadedPolicy(Weights, Protocol):
    """Policy of a run with its tokenizer."""

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Tokenizer of the policy's model."""

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Token ids that end a turn."""

    @property
    def context(self) -> int:
        """Maximum tokens of prompt and action together."""


class LoadedModels(Protocol):
    """Models and policies that a run has loaded."""

    @property
    def policies(self) -> Mapping[str, LoadedPolicy]:
        """Policies by name."""

    @property
    def base_paths(self) -> Mapping[str, str]:
        """Path or Hub name of each local model, by its name in the recipe."""

    def save_policy(self, name: str, folder: Path) -> None:
        """Save a policy's adapter, or its whole model, to a folder."""


class Engine(Sampler, Protocol):
    """Sampler with updatable policies and a lifetime."""

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """Set the weights for these policies.

        No request may be waiting, except with an engine in another process. Such an engine finishes requests with
        the weights they began with, or reports the versions it used.
        """
        ...

    async def wait_idle(self) -> None:
        """Wait until every computation ends, including cancelled requests."""
        ...

    def version(self, policy: str) -> int:
        """Return a policy's last published version, or 0 before the first."""
        ...

    def usage(self) -> Mapping[str, float]:
        """Return totals so far by metric name: ``sampled_tokens`` and other counters."""
        ...

    async def close(self) -> None:
        """Stop every process and thread started by the engine."""
        ...


def engine_problem(engine: object) -> str:
    """Return the reason why an engine cannot continue (its ``problem``), or "" without one."""
    return str(getattr(engine, "problem", ""))


class EngineFactory(Plugin, ABC, kind="engines", label="an engine", tag="kind"):
    """Base class for the settings in ``[engine]``, which open an engine."""

    supports_grammars: ClassVar[bool] = False  # the engine samples under a grammar, and returns the masks
    # the engine has its own copy of the weights, whose outputs differ numerically from the learner's
    separate_weights: ClassVar[bool] = False
    streams_tokens: ClassVar[bool] = False  # the engine calls SamplingParams.on_token with each sampled token

    @property
    def device_memory_share(self) -> float:
        """Share of each GPU's memory that the engine reserves for itself; 0: it takes what its rows need."""
        return 0.0

    @abstractmethod
    def open(self, run: RunSettings, models: LoadedModels, policies: Sequence[str], thread: Executor) -> Engine:
        """Open an engine for ``policies``.

        Args:
            run: the whole recipe.
            models: the run's models and policies.
            policies: names of the local policies that the engine samples.
            thread: executor for the engine's local tensor work, on the thread that waits for the engine.
        """
