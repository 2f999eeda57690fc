"""On a simulated GPU, forward passes and scores equal those of the CPU, and nothing inside them synchronizes."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from marft.models.backbone import Backbone
from marft.models.log_probs import OutputHead, score_tokens
from marft.models.packed_rows import PackedRows
from tests.simulated_gpu import CPU, CUDA, capturable, simulated_gpu

ROWS = [np.arange(3, 9, dtype=np.int32), np.arange(3, 30, dtype=np.int32), np.arange(40, 51, dtype=np.int32)]
FORWARDS = ("fused", "packed", "own")


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with simulated_gpu():
        yield


def tune(backbone: Backbone) -> None:
    """Give a backbone adapters that say something."""
    torch.manual_seed(5)
    for policy in ("one", "two"):
        backbone.add_adapter(policy, 4, 8.0, ("q_proj", "up_proj"), seed=0)
        for adapter in backbone.adapters(policy).values():
            torch.nn.init.normal_(adapter.b, std=0.3)


def states_and_gradients(backbone: Backbone, device: torch.device, captures: bool) -> list[Tensor]:
    """Return the hidden states of the rows, and the gradients of all adapters."""
    rows = PackedRows.from_rows(ROWS, ["one", "two", None], device, size=64)
    hidden = backbone.hidden_states(rows)
    if captures:
        with capturable():
            hidden.square().sum().backward()
    else:
        hidden.square().sum().backward()
    parameters = [p for name in ("one", "two") for a in backbone.adapters(name).values() for p in (a.a, a.b)]
    gradients = [p.grad.cpu() for p in parameters if p.grad is not None]
    backbone.model.zero_grad()
    return [hidden.detach().cpu()[: sum(map(len, ROWS))], *gradients]


@pytest.mark.parametrize("forward", FORWARDS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_packed_rows_and_their_gradients_are_the_cpus(backbone: Backbone, forward: str, checkpointing: bool) -> None:
    tune(backbone)
    for _ in range(FORWARDS.index(forward)):
        backbone.use_slower_forward()
    if checkpointing:
        backbone.checkpoint_activations()
    here = states_and_gradients(backbone, CPU, captures=False)
    torch.nn.Module.to(backbone.model, CUDA)
    there = states_and_gradients(backbone, CUDA, captures=backbone.fused)
    assert len(here) == len(there) > 1
    torch.testing.assert_close(there[0], here[0], rtol=1e-4, atol=1e-5)
    for mine, theirs in zip(there[1:], here[1:], strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_log_probs_in_chunks_do_not_synchronize(dtype: torch.dtype) -> None:
    """This includes impossible tokens, whose entropy the CPU checks first."""
    torch.manual_seed(0)
    hidden, head = torch.randn(300, 8), torch.randn(5000, 8).to(dtype)
    bias = torch.zeros(5000, dtype=dtype)
    bias[7] = -torch.inf
    targets = torch.randint(8, 5000, (300,))

    def score(states: Tensor, weight: Tensor, b: Tensor, y: Tensor) -> list[Tensor]:
        scores = score_tokens(states.requires_grad_(), OutputHead(weight, b), y, None, entropy_gradient=True)
        (scores.log_probs.sum() + scores.entropies.sum()).backward()
        assert states.grad is not None
        return [*scores, states.grad]

    here = score(*(x.clone() for x in (hidden, head, bias, targets)))
    sent = [x.to(CUDA) for x in (hidden, head, bias, targets)]
    with capturable():
        there = score(*sent)
    for mine, theirs in zip(there, here, strict=True):
        assert torch.isfinite(theirs).all()
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach(), rtol=1e-3, atol=2e-3)
