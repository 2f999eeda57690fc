"""What a rank does around a step: it takes the first one's learning rates, and refuses to differ from the others."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from marft.errors import RunError
from marft.learning.interfaces import Progress
from marft.ranks.member import Member
from marft.ranks.words import Learn
from tests import test_ranks


class Idle(Member):
    """A rank that holds one policy and one weight of the critic's, and notes what it does."""

    def __init__(self, group: Any, policy: Tensor, critic: Tensor) -> None:
        self.did: list[str] = []
        optimizer = SimpleNamespace(parameters={"w": policy}, learning_rate=1.0)
        self.run: Any = SimpleNamespace(threads=1, trained_policies=(), models={}, engine=SimpleNamespace(apart=False))
        self.group = group
        self.models: Any = SimpleNamespace(
            let_go=lambda: self.did.append("let go"), gather=lambda **_: self.did.append("gather")
        )
        value_head = SimpleNamespace(parameters=lambda: {"w": critic})
        self.learner: Any = SimpleNamespace(optimizers={"actor": optimizer}, critic=value_head)

        def learn(*_: object) -> dict[str, float]:
            self.did.append(f"learn at {optimizer.learning_rate}")
            return {}

        self.careful: Any = SimpleNamespace(learn=learn)


@pytest.mark.parametrize("moved", [0, 1, 2])
def test_ranks_whose_weights_differ_by_one_bit_are_refused_on_each(moved: int) -> None:
    """The last rank's policy (1) or critic (2) is the next number there is."""

    def said(group: Any) -> str:
        weights = [torch.ones(3), torch.ones(2)]
        if moved and group.rank == 2:
            weights[moved - 1][1] = torch.nextafter(torch.tensor(1.0), torch.tensor(2.0))
        try:
            Idle(group, *weights)._refuse_drift(Progress(4, 0))
        except RunError as error:
            return str(error).partition(",")[0]
        return ""

    refusal = "step 5: ranks have come to different weights"
    assert test_ranks.together(3, said) == [refusal if moved else ""] * 3


def test_a_rank_learns_at_the_first_ones_rates_on_its_parts_alone_and_is_looked_at_before_it_gathers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    member = Idle(SimpleNamespace(rank=1, device=torch.device("cpu")), torch.ones(1), torch.ones(1))
    monkeypatch.setattr(Idle, "_hand_over", lambda self: self.did.append("hand over"))
    monkeypatch.setattr(Idle, "_refuse_drift", lambda self, _: self.did.append("look"))
    member.learn(Learn([], Progress(0, 0), {"actor": 0.25}))
    assert member.did == ["let go", "learn at 0.25", "hand over", "look", "gather"]
