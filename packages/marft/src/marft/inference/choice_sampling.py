"""Choice between given options: one batched forward scores every option, one uniform number draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marft.common.types import Choice, LogProbs, Option, SamplingParams, TokenIds
from marft.inference.decoding import PREFILL_TOKENS
from marft.inference.sampling import sample_from_weights, top_k_top_p_mask
from marft.models.backbone import Backbone
from marft.models.choice_distribution import ChoiceSets
from marft.models.decode_cache import pack_rows
from marft.models.devices import to_device
from marft.models.log_probs import score_tokens
from marft.models.packed_rows import split_batches


@dataclass(frozen=True, slots=True, eq=False)
class ChoiceRequest:
    """Request to choose one option, with the uniform number for the draw."""

    adapter: str | None
    prompt: TokenIds  # [P]
    options: Sequence[Option]
    sampling: SamplingParams  # temperature 0 takes the likeliest option; top-p and top-k apply to options
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
        backbone.check_adapter(request.adapter)
    groups_by_key: dict[tuple[object, ...], list[ChoiceRequest]] = {}
    for request in sorted(requests, key=lambda request: request.adapter or ""):
        option_keys = tuple((option.tokens.tobytes(), option.normaliser) for option in request.options)
        limits = request.temperature, request.sampling.top_p, request.sampling.top_k
        groups_by_key.setdefault((request.adapter, request.prompt.tobytes(), option_keys, *limits), []).append(request)
    chosen: dict[int, Choice] = {}
    for group in split_batches(list(groups_by_key.values()), lambda identical: identical[0].tokens, PREFILL_TOKENS):
        # one device synchronization; the draw needs little data
        table = _option_log_probs(backbone, [identical[0] for identical in group]).cpu()
        for log_probs, identical in zip(table, group, strict=True):
            logs = log_probs[: len(identical[0].options)].float()
            uniforms = [request.uniform for request in identical]
            choices = sample_choices(identical[0].options, logs, identical[0].sampling, uniforms)
            chosen.update(zip(map(id, identical), choices, strict=True))
    return [chosen[id(request)] for request in requests]


def sample_choices(
    options: Sequence[Option], logs: Tensor, sampling: SamplingParams, uniforms: Sequence[float]
) -> list[Choice]:
    """Draw one choice per uniform number.

    Args:
        logs: log-probabilities ``log π`` of the options, [A], on the CPU.
    """
    allowed = top_k_top_p_mask(logs[None], [sampling])
    weights = logs.exp()[None] if allowed is None else logs.exp() * allowed
    indices = sample_from_weights(weights.expand(len(uniforms), -1), torch.tensor(uniforms)).tolist()
    best = int(logs.argmax())
    return [Choice(tuple(options), i if sampling.temperature else best, logs.numpy()) for i in indices]


@torch.inference_mode()
def score_options(backbone: Backbone, requests: Sequence[ChoiceRequest]) -> list[LogProbs]:
    """Return the log-probability of every option per request, [A], at the request's temperature.

    The log-probability of an option is the sum over its tokens.

    Raises:
        ValueError: the backbone has no such adapter.
    """
    for request in requests:
        backbone.check_adapter(request.adapter)
    scores: list[LogProbs] = []
    for group in split_batches(list(requests), lambda request: request.tokens, PREFILL_TOKENS):
        token_log_probs = _token_log_probs(backbone, group).double().cpu().numpy()
        sizes = [len(option.tokens) for request in group for option in request.options]
        sums = iter([part.sum() for part in np.split(token_log_probs, np.cumsum(sizes)[:-1])])
        scores += [np.array([next(sums) for _ in request.options], np.float32) for request in group]
    return scores


def _option_log_probs(backbone: Backbone, requests: Sequence[ChoiceRequest]) -> Tensor:
    """Return ``log π`` for every option per request, [C, longest request]."""
    return ChoiceSets.from_lengths(
        [[len(option.tokens) for option in request.options] for request in requests],
        [[option.normaliser for option in request.options] for request in requests],
        backbone.device,
    ).log_softmax(_token_log_probs(backbone, requests))


def _token_log_probs(backbone: Backbone, requests: Sequence[ChoiceRequest]) -> Tensor:
    """Return the log-probabilities of all option tokens, concatenated over requests and options."""
    pairs = [(request, option) for request in requests for option in request.options]
    sizes = [len(option.tokens) for _, option in pairs]
    packed = pack_rows(
        [np.concatenate([request.prompt, option.tokens[:-1]]) for request, option in pairs],
        [request.adapter for request, _ in pairs],
        backbone,
    )
    positions = np.concatenate(
        [
            places[len(request.prompt) - 1 :][:size]
            for places, (request, _), size in zip(packed.token_indices(), pairs, sizes, strict=True)
        ]
    )
    targets = np.concatenate([option.tokens for _, option in pairs]).astype(np.int64)
    temperatures = np.repeat(np.array([request.temperature for request, _ in pairs], np.float32), sizes)
    at, wanted, scales = (to_device(array, backbone.device) for array in (positions, targets, temperatures))
    return score_tokens(backbone.hidden_states(packed)[at], backbone.output_head, wanted, scales).log_probs
