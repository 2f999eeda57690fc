"""Wrapper for third-party engines: validates results and names the engine in every error."""

from __future__ import annotations

from collections.abc import Awaitable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import TypeVar, get_args

import numpy as np

from marft.common.error_origin import describe_error
from marft.common.errors import EpisodeFailedError, RunError
from marft.common.token_data import NO_EXPERT, RoutedExperts, allows_token
from marft.common.types import ActionKey, Choice, Completion, FinishReason, Option, Prompt, SamplingParams, VersionRange
from marft.config.interfaces.engine import Engine, Weights

T = TypeVar("T")


class PluginEngine:
    """Wrapper around an engine from a plugin. It validates every result before training uses the result.

    Args:
        name: engine name in the recipe.
        vocabulary_sizes: vocabulary size of each policy's model.
        streams_tokens: whether the engine supports token listeners. If not, the wrapper removes the listener, because
            the engine may send the request to another process.
    """

    def __init__(
        self, name: str, engine: Engine, vocabulary_sizes: Mapping[str, int], streams_tokens: bool = False
    ) -> None:
        self.name, self.engine = name, engine
        self.vocabulary_sizes, self.streams_tokens = vocabulary_sizes, streams_tokens

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        """Sample one action.

        Raises:
            EpisodeFailedError: raised by the engine.
            RunError: the engine raised another error, or returned an invalid completion.
        """
        sampling = sampling if self.streams_tokens or not sampling.on_token else replace(sampling, on_token=None)
        sampling = replace(sampling, stop=tuple(stop for stop in sampling.stop if isinstance(stop, str)))
        completion = await self._call_engine("sample", self.engine.sample(policy, prompt, sampling, key))
        problem = find_problem(completion, sampling.max_new_tokens, self.vocabulary_sizes[policy])
        if not problem and sampling.grammar and not _has_valid_masks(completion):
            problem = "no masks of what a grammar allowed for, or of other places"
        if problem:
            raise RunError(f"engine {self.name!r}: sample() returned {problem}")
        return completion

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: SamplingParams, key: ActionKey
    ) -> tuple[Choice, VersionRange]:
        """Choose one option.

        Raises:
            EpisodeFailedError: raised by the engine.
            RunError: the engine raised another error.
        """
        return await self._call_engine("choose", self.engine.choose(policy, prompt, options, sampling, key))

    def external_wait(self) -> AbstractContextManager[None]:
        """Return the engine's own context manager for external waits."""
        return self.engine.external_wait()

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """Publish new policy weights to the engine.

        Raises:
            RunError: the engine raised an error.
        """
        await self._call_engine("publish", self.engine.publish(policies, version))

    async def wait_idle(self) -> None:
        """Wait until the engine finishes its running requests.

        Raises:
            RunError: the engine raised an error.
        """
        await self._call_engine("wait_idle", self.engine.wait_idle())

    def version(self, policy: str) -> int:
        """Return the engine's version for a policy."""
        return self.engine.version(policy)

    def usage(self) -> Mapping[str, float]:
        """Return the engine's usage counters.

        Raises:
            RunError: the counters are not numbers, or ``sampled_tokens`` is missing.
        """
        reported = self.engine.usage()
        counts = dict(reported) if isinstance(reported, Mapping) else {}
        if "sampled_tokens" not in counts or not all(isinstance(count, int | float) for count in counts.values()):
            raise RunError(f"engine {self.name!r}: usage() returned {reported!r:.80}, no numbers with 'sampled_tokens'")
        return counts

    async def close(self) -> None:
        """Close the engine.

        Raises:
            RunError: the engine raised an error.
        """
        await self._call_engine("close", self.engine.close())

    async def _call_engine(self, method: str, result: Awaitable[T]) -> T:
        try:
            return await result
        except (EpisodeFailedError, RunError):
            raise
        except Exception as error:  # a third-party engine runs here
            raise RunError(f"engine {self.name!r}: {method}() raised {describe_error(error)}") from error


def _has_valid_masks(completion: Completion) -> bool:
    """Return whether every token is forced or allowed by its mask."""
    masks, count = completion.masks, len(completion.tokens)
    positions = masks.at.tolist() if masks else []
    if sorted([*positions, *completion.forced]) != list(range(count)):
        return False
    pairs = zip(positions, masks.which.tolist() if masks else (), strict=True)
    return masks is None or all(
        allows_token(masks.table[number], int(completion.tokens[position])) for position, number in pairs
    )


def find_problem(completion: object, max_tokens: int, vocabulary: int) -> str:
    """Return why training cannot use a completion; "" for a valid completion.

    Args:
        max_tokens: maximum number of new tokens in the request.
        vocabulary: vocabulary size of the model.
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
    if not 1 <= len(tokens) <= max_tokens:
        return f"{len(tokens)} tokens where 1 to {max_tokens} were asked for"
    if len(log_probs) != len(tokens):
        return f"{len(log_probs)} log-probs for {len(tokens)} tokens"
    if tokens.min() < 0 or tokens.max() >= vocabulary:
        return f"ids from {tokens.min()} to {tokens.max()}, and the model knows those below {vocabulary}"
    if not isinstance(completion.text, str) or completion.finish not in get_args(FinishReason):
        return f"no text, or an end that is none of {', '.join(get_args(FinishReason))}"
    if completion.experts is not None and not _is_record(completion.experts):
        return "experts that are no marft.common.token_data.RoutedExperts with expert numbers, or -1 without a record"
    return "" if isinstance(completion.versions, VersionRange) else "no versions of the policy"


def _is_record(experts: object) -> bool:
    return (
        isinstance(experts, RoutedExperts)
        and experts.layers > 0
        and experts.top_k > 0
        and len(experts.flat) % (experts.layers * experts.top_k) == 0
        and bool((experts.flat >= NO_EXPERT).all())
    )
