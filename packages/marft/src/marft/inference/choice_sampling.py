"""Choice between given options: one batched forward scores every option, one uniform number draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marft.common.types import Choice, LogProbs, Option, Sampling, TokenIds
from marft.inference.decoding import PREFILL_TOKENS
from marft.inference.sampling import allowed_tokens, inverse
from marft.models.backbone import Backbone
from marft.models.batches import in_batches
from marft.models.choice_distribution import ChoiceSets
from marft.models.devices import sent
from marft.models.log_probs import token_scores
from marft.models.running_rows import together


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceRequest:
    """Request to choose one option, with the uniform number for the draw."""

    adapter: str | None
    prompt: TokenIds  # [P]
    options: Sequence[Option]
    sampling: Sampling  # temperature 0 takes the likeliest option; top-p and top-k apply to options
    uniform: float

    @property
    def temperature(self) -> float:
        """Divisor for the scores; 1 for greedy requests."""
        return self.sampling.temperature or 1.0

    @property
    def tokens(self) -> int:
        """Number of input tokens for this request: prompt and option, for every option."""
        return sum(len(self.prompt) + len(option.tokens) - 1 for option in self.options)


@torch.inference_mode()
def choose(backbone: Backbone, requests: Sequence[ChoiceRequest]) -> list[Choice]:
    """Choose an option for every request, in the order of the requests. Equal requests share one scoring pass.

    Raises:
        ValueError: the backbone has no such adapter.
    """
    for request in requests:
        backbone.refuse_unknown(request.adapter)
    same: dict[tuple[object, ...], list[ChoiceRequest]] = {}
    for request in sorted(requests, key=lambda request: request.adapter or ""):
        words = tuple((option.tokens.tobytes(), option.normaliser) for option in request.options)
        limits = request.temperature, request.sampling.top_p, request.sampling.top_k
        same.setdefault((request.adapter, request.prompt.tobytes(), words, *limits), []).append(request)
    chosen: dict[int, Choice] = {}
    for group in in_batches(list(same.values()), lambda alike: alike[0].tokens, PREFILL_TOKENS):
        # one device synchronization; the draw needs little data
        table = _score(backbone, [alike[0] for alike in group]).cpu()
        for log_probs, alike in zip(table, group, strict=True):
            logs = log_probs[: len(alike[0].options)].float()
            uniforms = [request.uniform for request in alike]
            choices = drawn(alike[0].options, logs, alike[0].sampling, uniforms)
            chosen.update(zip(map(id, alike), choices, strict=True))
    return [chosen[id(request)] for request in requests]


def drawn(options: Sequence[Option], logs: Tensor, sampling: Sampling, uniforms: Sequence[float]) -> list[Choice]:
    """Draw one choice per uniform number.

    Args:
        logs: log-probabilities ``log π`` of the options, [A], on the CPU.
    """
    allowed = allowed_tokens(logs[None], [sampling])
    weights = logs.exp()[None] if allowed is None else logs.exp() * allowed
    indices = inverse(weights.expand(len(uniforms), -1), torch.tensor(uniforms)).tolist()
    best = int(logs.argmax())
    return [Choice(tuple(options), i if sampling.temperature else best, logs.numpy()) for i in indices]


@torch.inference_mode()
def weigh(backbone: Backbone, requests: Sequence[ChoiceRequest]) -> list[LogProbs]:
    """Return the log-probability of every option per request, [A], at the request's temperature.

    The log-probability of an option is the sum over its tokens.

    Raises:
        ValueError: the backbone has no such adapter.
    """
    for request in requests:
        backbone.refuse_unknown(request.adapter)
    found: list[LogProbs] = []
    for group in in_batches(list(requests), lambda request: request.tokens, PREFILL_TOKENS):
        of_tokens = _token_log_probs(backbone, group).double().cpu().numpy()
        sizes = [len(option.tokens) for request in group for option in request.options]
        sums = iter([part.sum() for part in np.split(of_tokens, np.cumsum(sizes)[:-1])])
        found += [np.array([next(sums) for _ in request.options], np.float32) for request in group]
    return found


def _score(backbone: Backbone, requests: Sequence[ChoiceRequest]) -> Tensor:
    """Return ``log π`` for every option per request, [C, longest request]."""
    return ChoiceSets.of(
        [[len(option.tokens) for option in request.options] for request in requests],
        [[option.normaliser for option in request.options] for request in requests],
        backbone.device,
    ).log_softmax(_token_log_probs(backbone, requests))


def _token_log_probs(backbone: Backbone, requests: Sequence[ChoiceRequest]) -> Tensor:
    """Return the log-probabilities of all option tokens, concatenated over requests and options."""
    pairs = [(request, option) for request in requests for option in request.options]
    sizes = [len(option.tokens) for _, option in pairs]
    packed = together(
        [np.concatenate([request.prompt, option.tokens[:-1]]) for request, option in pairs],
        [request.adapter for request, _ in pairs],
        backbone,
    )
    positions = np.concatenate(
        [
            places[len(request.prompt) - 1 :][:size]
            for places, (request, _), size in zip(packed.places(), pairs, sizes, strict=True)
        ]
    )
    targets = np.concatenate([option.tokens for _, option in pairs]).astype(np.int64)
    temperatures = np.repeat(np.array([request.temperature for request, _ in pairs], np.float32), sizes)
    at, wanted, scales = (sent(array, backbone.device) for array in (positions, targets, temperatures))
    head = backbone.head
    hidden = backbone.hidden_states(packed)[at]
    return token_scores(hidden, head.weight, head.bias, wanted, scales, shape=backbone.logit_shape).log_probs
