"""Models of tests are drawn from streams of their own."""

from __future__ import annotations

import pytest
import torch

from tests.draws import DrawnFrom


def drawn() -> list[torch.Tensor]:
    return [torch.empty(20).normal_(), torch.nn.Linear(4, 5).weight, torch.nn.Embedding(3, 4).weight]


def test_draws_are_those_of_the_global_stream_with_this_seed_and_leave_that_one_as_it_is() -> None:
    torch.manual_seed(3)
    wanted = drawn()
    torch.rand(9)
    before = torch.get_rng_state()
    with DrawnFrom(3):
        mine = drawn()
    assert all(torch.equal(one, other) for one, other in zip(mine, wanted, strict=True))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_draw_of_a_generator_is_of_that_one() -> None:
    wanted = torch.empty(5).uniform_(generator=torch.Generator().manual_seed(1))
    with DrawnFrom(3):
        assert torch.equal(torch.empty(5).uniform_(generator=torch.Generator().manual_seed(1)), wanted)


def test_what_would_still_be_of_the_global_stream_is_refused() -> None:
    with DrawnFrom(3), pytest.raises(AssertionError, match="takes no generator"):
        torch.randn(5)
