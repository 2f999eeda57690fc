"""Wrapper for third-party engines: validates results and names the engine in every error."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeVar, get_args

import numpy as np

from marft.agents.engine import Engine, Weights
from marft.common.errors import EpisodeFailedError, RunError
from marft.common.faults import described
from marft.common.marks import allows
from marft.common.types import ActionKey, Choice, Completion, Finish, Option, Prompt, Sampling, Versions

T = TypeVar("T")


class ForeignEngine:
    """Wrapper around an engine from a plugin. It validates every result before training uses the result.

    Args:
        name: engine name in the recipe.
        tokens: vocabulary size of each policy's model.
        tells: whether the engine supports token listeners. If not, the wrapper removes the listener, because the engine
            may send the request to another process.
    """

    def __init__(self, name: str, engine: Engine, tokens: Mapping[str, int], tells: bool = False) -> None:
        self.name, self.engine, self.tokens, self.tells = name, engine, tokens, tells

    async def sample(self, policy: str, prompt: Prompt, sampling: Sampling, key: ActionKey) -> Completion:
        """Sample one action.

        Raises:
            EpisodeFailedError: raised by the engine.
            RunError: the engine raised another error, or returned an invalid completion.
        """
        sampling = sampling if self.tells or not sampling.listener else replace(sampling, listener=None)
        sampling = replace(sampling, stop=tuple(stop for stop in sampling.stop if isinstance(stop, str)))
        found = await self._asked("sample", self.engine.sample(policy, prompt, sampling, key))
        problem = problem_of(found, sampling.max_new_tokens, self.tokens[policy])
        if not problem and sampling.grammar and not _says_masks(found):
            problem = "no masks of what a grammar allowed for, or of other places"
        if problem:
            raise RunError(f"engine {self.name!r}: sample() returned {problem}")
        return found

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: Sampling, key: ActionKey
    ) -> tuple[Choice, Versions]:
        """Choose one option.

        Raises:
            EpisodeFailedError: raised by the engine.
            RunError: the engine raised another error.
        """
        return await self._asked("choose", self.engine.choose(policy, prompt, options, sampling, key))

    def external_wait(self) -> AbstractContextManager[None]:
        """Return the engine's own context manager for external waits."""
        return self.engine.external_wait()

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """Publish new policy weights to the engine.

        Raises:
            RunError: the engine raised an error.
        """
        await self._asked("publish", self.engine.publish(policies, version))

    async def settle(self) -> None:
        """Wait until the engine finishes its running requests.

        Raises:
            RunError: the engine raised an error.
        """
        await self._asked("settle", self.engine.settle())

    def version(self, policy: str) -> int:
        """Return the engine's version for a policy."""
        return self.engine.version(policy)

    def usage(self) -> Mapping[str, float]:
        """Return the engine's usage counters.

        Raises:
            RunError: the counters are not numbers, or ``sampled_tokens`` is missing.
        """
        used = self.engine.usage()
        counts = dict(used) if isinstance(used, Mapping) else {}
        if "sampled_tokens" not in counts or not all(isinstance(count, int | float) for count in counts.values()):
            raise RunError(f"engine {self.name!r}: usage() returned {used!r:.80}, no numbers with 'sampled_tokens'")
        return counts

    async def close(self) -> None:
        """Close the engine.

        Raises:
            RunError: the engine raised an error.
        """
        await self._asked("close", self.engine.close())

    async def _asked(self, method: str, answer: Awaitable[T]) -> T:
        try:
            return await answer
        except (EpisodeFailedError, RunError):
            raise
        except Exception as error:
            raise RunError(f"engine {self.name!r}: {method}() raised {described(error)}") from error


def _says_masks(completion: Completion) -> bool:
    """Return whether every token is forced or allowed by its mask."""
    masks, count = completion.masks, len(completion.tokens)
    at = masks.at.tolist() if masks else []
    if sorted([*at, *completion.forced]) != list(range(count)):
        return False
    pairs = zip(at, masks.which.tolist() if masks else (), strict=True)
    return masks is None or all(allows(masks.table[number], int(completion.tokens[place])) for place, number in pairs)


def problem_of(completion: object, most: int, known: int) -> str:
    """Return why training cannot use a completion; "" for a valid completion.

    Args:
        most: maximum number of new tokens in the request.
        known: vocabulary size of the model.
    """
    if not isinstance(completion, Completion):
        return f"a {type(completion).__name__}, not a marft.common.types.Completion"
    for name, values, kind in (
        ("tokens", completion.tokens, np.integer),
        ("log_probs", completion.log_probs, np.floating),
    ):
        if not isinstance(values, np.ndarray) or values.ndim != 1 or not np.issubdtype(values.dtype, kind):
            return f"{name} that are no array of one dimension with {'ids' if kind is np.integer else 'numbers'} in it"
    tokens, log_probs = completion.tokens, completion.log_probs
    if not 1 <= len(tokens) <= most:
        return f"{len(tokens)} tokens where 1 to {most} were asked for"
    if len(log_probs) != len(tokens):
        return f"{len(log_probs)} log-probs for {len(tokens)} tokens"
    if tokens.min() < 0 or tokens.max() >= known:
        return f"ids from {tokens.min()} to {tokens.max()}, and the model knows those below {known}"
    if not isinstance(completion.text, str) or completion.finish not in get_args(Finish):
        return f"no text, or an end that is none of {', '.join(get_args(Finish))}"
    return "" if isinstance(completion.versions, Versions) else "no versions of the policy"
