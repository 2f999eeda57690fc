"""Text that a teammate wrote inside an agent's own turn, prepared for the loss (LlamaRL, 2025)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marft.common.types import Sample
from marft.models.devices import to_device


@dataclass(frozen=True, slots=True, eq=False)
class TeammateText:
    """Teammate tokens in the turns of a micro-batch; M is their number."""

    predict_from: Tensor  # [M] packed positions of the logits that predict the tokens
    targets: Tensor  # [M]
    temperatures: Tensor  # [M]
    author_log_probs: Tensor  # [M]
    advantages: Tensor  # [M] advantage of the agent's next own decision
    weights: Tensor  # [M] 1 / number of teammate tokens of the policy in the global minibatch

    @staticmethod
    def from_samples(
        samples: Sequence[Sample],
        predict_positions: Sequence[np.ndarray],
        temperatures: Sequence[float],
        tokens_of_policy: Mapping[str, int],
        device: torch.device,
    ) -> TeammateText | None:
        """Collect teammate tokens from samples; None without teammate tokens.

        Args:
            samples: samples of the micro-batch.
            predict_positions: for each sample, the packed position that predicts each token of its action, over all
                segments.
            temperatures: sampling temperature of each sample's agent.
            tokens_of_policy: number of teammate tokens of each policy in the global minibatch.
            device: device of the tensors.
        """
        columns: dict[str, list[np.ndarray]] = {name: [] for name in TeammateText.__slots__}
        for sample, token_positions, temperature in zip(samples, predict_positions, temperatures, strict=True):
            action = sample.action
            positions = np.flatnonzero(action.teammate_mask)
            if not len(positions):
                continue
            assert action.teammate_log_probs is not None, "a teammate's tokens have its log-probs"
            decisions = np.cumsum(action.sampled_mask)[positions].clip(max=len(sample.advantages) - 1)
            columns["predict_from"].append(token_positions[positions])
            columns["targets"].append(action.tokens[positions])
            columns["temperatures"].append(np.full(len(positions), temperature))
            columns["author_log_probs"].append(action.teammate_log_probs)
            columns["advantages"].append(sample.advantages[decisions])
            columns["weights"].append(np.full(len(positions), 1.0 / tokens_of_policy[action.policy]))
        if not columns["targets"]:
            return None

        def column(name: str, dtype: torch.dtype = torch.float32) -> Tensor:
            return to_device(np.concatenate(columns[name]), device, dtype)

        return TeammateText(
            column("predict_from", torch.long),
            column("targets", torch.long),
            column("temperatures"),
            column("author_log_probs"),
            column("advantages"),
            column("weights"),
        )
