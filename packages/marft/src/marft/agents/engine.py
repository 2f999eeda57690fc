"""Who samples: tokens in, tokens out. A seat needs a :class:`Sampler`, a run an :class:`Engine`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, Sampling, Versions

if TYPE_CHECKING:
    from torch import Tensor


class Sampler(Protocol):
    """Whoever samples tokens for a policy by name."""

    async def sample(self, policy: str, prompt: Prompt, sampling: Sampling, key: ActionKey) -> Completion:
        """Sample one action. The key names its random stream and its turn among waiting requests."""
        ...

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: Sampling, key: ActionKey
    ) -> tuple[Choice, Versions]:
        """Choose one of ``options`` → the choice, and the versions of the policy that made it."""
        ...

    def external_wait(self) -> AbstractContextManager[None]:
        """Held by whoever waits for something other than the sampler (an environment, a tool), so that one that
        admits requests in order knows that more may come."""
        ...


class Weights(Protocol):
    """A handle to what a policy's training moves. An engine that shares the learner's memory does not look into it; one
    that does not copies what it finds."""

    def parameters(self) -> Mapping[str, Tensor]: ...


class Engine(Sampler, Protocol):
    """A sampler whose policies change, and which ends."""

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """The policies have these weights now. No request may be waiting, but with an engine that is apart: then it
        goes on with the weights that it began with, or says of which versions it is."""
        ...

    async def settle(self) -> None:
        """Wait until nothing is computed any more, also for those who were cancelled meanwhile."""
        ...

    def version(self, policy: str) -> int:
        """The version of a policy that was published last; 0 where none was."""
        ...

    def usage(self) -> Mapping[str, float]:
        """What has been sampled so far, by the name of a metric: ``sampled_tokens``, and what else counts."""
        ...

    async def close(self) -> None:
        """End whatever was started."""
        ...


def problem_of(engine: object) -> str:
    """Why an engine cannot go on, where it says so (``problem``); "" where it can, or does not say."""
    return str(getattr(engine, "problem", ""))
