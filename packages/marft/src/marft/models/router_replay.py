"""Record and replay of the experts that routers select (Rollout Routing Replay, Ma et al. 2025).

Sampling and training may send a token to different experts, because rounding changes the order of nearly equal scores.
The log-probs then differ far more than by rounding alone. So the sampler records the experts of each token, and the
learner replays them. The weights of these experts still come from the current scores, with gradient.

Nearly every router of transformers selects experts with ``torch.topk`` over scores [N, E]. A function mode replaces the
result of this call, so each model computes the weights in its own way. A model with another router, such as PhiMoE, is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from marft.common.errors import UserError
from marft.common.log import get_logger
from marft.common.token_data import NO_EXPERT, ExpertTable
from marft.models.experts import find_experts
from marft.models.lora import Routing

logger = get_logger(__name__)


@dataclass(slots=True)
class ExpertLog:
    """Experts selected in one forward: a tensor [N, K] per layer with experts."""

    layers: list[Tensor] = field(default_factory=list)

    def table(self) -> Tensor | None:
        """Return the experts of each token, [N, L, K] as int16; None if nothing is recorded."""
        return torch.stack(self.layers, 1).to(torch.int16) if self.layers else None


class RouterReplay:
    """Routers of a model, with record and replay in forwards that ask for it.

    Args:
        model: model with fused experts.
        routing: state of the current forward.
        label: the model's name in errors.

    Raises:
        UserError: the model has no experts that can be replayed.
    """

    def __init__(self, model: nn.Module, num_layers: int, routing: Routing, label: str) -> None:
        self.routing, self.label, self.num_layers = routing, label, num_layers
        names = [name.removesuffix(".base").rpartition(".")[0] for name, _ in find_experts(model)]
        if not names:
            raise UserError(f"{label}: router_replay is for mixtures of experts, and this model has none; leave it out")
        self.num_experts: list[int] = [experts.num_experts for _, experts in find_experts(model)]
        self.experts_per_token = 0  # set by :meth:`probe`
        # decoder layers with experts
        self.layer_indices = [int(next(part for part in name.split(".") if part.isdigit())) for name in names]
        self._has_warned = False
        for index, name in enumerate(names):
            block: Any = model.get_submodule(name)
            block.forward = partial(self._run_block, index, block.forward)

    def probe(self, run_forward: Callable[[], object]) -> None:
        """Find the number of experts per token in a forward with any tokens.

        Raises:
            UserError: the model selects experts in a way that cannot be replayed.
        """
        with torch.no_grad(), self.record() as log:
            run_forward()
        self.experts_per_token = log.layers[0].shape[1]

    @contextmanager
    def record(self) -> Iterator[ExpertLog]:
        """Record the experts of the forward inside the context."""
        log = ExpertLog()
        self.routing.recorded = log.layers
        try:
            yield log
        finally:
            self.routing.recorded = None

    def select_layers(self, experts_SLK: ExpertTable) -> ExpertTable:
        """Return a record's layers with experts. Engines may report other layers, too.

        Raises:
            UserError: the record is of another model.
        """
        if experts_SLK.shape[2] != self.experts_per_token:
            raise UserError(
                f"{self.label}: the engine reports {experts_SLK.shape[2]} experts per token, and the model selects "
                f"{self.experts_per_token}; set router_replay = false, or sample with the same model"
            )
        if experts_SLK.shape[1] == self.num_layers:
            experts_SLK = experts_SLK[:, self.layer_indices]
        limits = np.array(self.num_experts)
        if experts_SLK.shape[1] != len(limits) or (experts_SLK >= limits[:, None]).any():
            raise UserError(
                f"{self.label}: the engine reports experts that the model does not have; set router_replay = false, or "
                "sample with the same model"
            )
        return experts_SLK

    def warn_missing(self) -> None:
        """Log one warning if trained tokens have no record of their experts."""
        if not self._has_warned:
            logger.warning(
                "%s: for some trained tokens there is no record of experts, so router_replay does not apply to them",
                self.label,
            )
        self._has_warned = True

    def _run_block(self, index: int, forward: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        recorded, replayed = self.routing.recorded, self.routing.experts
        if recorded is None and replayed is None:
            return forward(*args, **kwargs)
        with _ExpertSelection(self.num_experts[index], None if replayed is None else replayed[:, index]) as selection:
            out = forward(*args, **kwargs)
        if selection.selected is None:
            raise UserError(f"{self.label}: leave router_replay out: the model selects experts without torch.topk")
        if recorded is not None:
            recorded.append(selection.selected)
        return out


class _ExpertSelection(TorchFunctionMode):
    """Function mode for a layer with experts: replaces the selected experts and keeps the last selection, [N, K].

    Args:
        replayed: experts to select, [N, K]; NO_EXPERT leaves the selection to the router.
    """

    def __init__(self, num_experts: int, replayed: Tensor | None) -> None:
        super().__init__()
        self.num_experts, self.replayed = num_experts, replayed
        self.selected: Tensor | None = None

    def __torch_function__(
        self, func: Callable[..., Any], types: object, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func not in (torch.topk, Tensor.topk) or args[0].dim() != 2 or args[0].shape[1] != self.num_experts:
            return result
        indices: Tensor = result.indices
        if self.replayed is not None:
            indices = torch.where(self.replayed == NO_EXPERT, indices, self.replayed.long())
            result = torch.return_types.topk((args[0].gather(1, indices), indices))
        self.selected = indices
        return result
