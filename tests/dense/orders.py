"""What is drawn: the order of minibatches and of turns, from the documented streams (``marft.common.seeds``). Data, no more."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from marft.common import seeds

Part = np.ndarray  # indices


def policy_minibatches(count: int, size: int, seed: int, policy: str, step: int, epoch: int) -> list[Part]:
    """``size`` rows of a policy, in ``count`` parts."""
    return np.array_split(seeds.generator(seed, "minibatches", policy, step, epoch).permutation(size), count)


def critic_minibatches(count: int, size: int, seed: int, step: int, epoch: int) -> list[Part]:
    parts = np.array_split(seeds.generator(seed, "critic minibatches", step, epoch).permutation(size), count)
    return [part for part in parts if len(part)]


def turns(policies: Sequence[str], seed: int, step: int) -> list[str]:
    """Who comes when, where policies step one after another."""
    return [policies[i] for i in seeds.generator(seed, "update order", step).permutation(len(policies))]
