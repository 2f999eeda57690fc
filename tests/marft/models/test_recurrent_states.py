"""States of recurrent layers in slots, and the functions of transformers that compute them."""

from __future__ import annotations

import torch
from tools.model_families import build_small_backbone
from torch import Tensor
from transformers.models.lfm2 import modeling_lfm2

from marft.models.recurrent_states import RecurrentStates
from tests.families import FAMILY


def held(states: RecurrentStates) -> list[float]:
    """Return the number that fills each slot."""
    return states.tensors[0, "conv"].mean((1, 2)).tolist()


def filled(*numbers: float) -> Tensor:
    return torch.tensor(numbers)[:, None, None].expand(-1, 3, 2)


def test_states_are_kept_when_slots_are_added_one_at_a_time_and_when_a_row_moves() -> None:
    states = RecurrentStates()
    states.reserve(1)
    states.write(0, "conv", filled(5.0), [[0]])
    states.reserve(2)
    states.write(0, "conv", filled(6.0), [[1]])
    states.reserve(1)
    assert held(states) == [5.0, 6.0]
    states.reserve(5)
    states.write(0, "conv", filled(7.0, 8.0), [[2, 4], [3]])
    assert held(states) == [5.0, 6.0, 7.0, 8.0, 7.0]
    states.move(3, 0)
    assert held(states) == [8.0, 6.0, 7.0, 8.0, 7.0]


def test_functions_are_replaced_once_for_all_models_of_a_family() -> None:
    """Within a plan, a second replacement would pack packed rows again."""
    build_small_backbone(FAMILY["LFM 2"])
    replaced = modeling_lfm2.causal_conv1d_fn
    build_small_backbone(FAMILY["LFM 2"])
    assert modeling_lfm2.causal_conv1d_fn is replaced
