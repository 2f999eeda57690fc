"""Model's own forward, for architectures without packing: slower, with its own masks, states and caches.

Rows in a batch are right-padded without a mask. In a causal model, no token depends on later tokens, whether through
attention, convolutions or recurrent states. Rows that decode together have the same length, so a cache never contains
padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from inspect import signature
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from marft.common.errors import UserError
from marft.models.attention import padded_length
from marft.models.devices import to_device
from marft.models.lora import Routing
from marft.models.packed_rows import PackedRows

CACHE_NAMES = ("past_key_values", "cache_params")  # output names for the cache


def native_hidden_states(decoder: nn.Module, routing: Routing, rows: PackedRows) -> Tensor:
    """Return the last hidden states for packed rows, [N, D]; zeros for padding tokens.

    Rows of similar length share a forward, as in :class:`PackedPlan`. In a batch padded to a fixed size, each row has
    its own forward, because its result must not depend on the other rows.
    """
    texts, policies = rows.ids[: sum(rows.lengths)].split(rows.lengths), rows.policies()
    groups: dict[tuple[int, int], list[int]] = {}
    for index, length in enumerate(rows.lengths):
        groups.setdefault((padded_length(length), index if rows.fixed_size else -1), []).append(index)
    hidden_by_row: dict[int, Tensor] = {}
    for (width, _), members in groups.items():
        batch = pad_sequence([texts[index] for index in members], batch_first=True)
        batch = torch.nn.functional.pad(batch, (0, width - batch.shape[1]))
        owners = [policies[index] for index in members]
        hidden = _run_decoder(decoder, routing, batch, owners, use_cache=False).last_hidden_state
        hidden_by_row.update({index: hidden[position, : rows.lengths[index]] for position, index in enumerate(members)})
    padding = len(rows.ids) - sum(rows.lengths)
    parts = [hidden_by_row[index] for index in range(len(rows.lengths))]
    return torch.cat([*parts, parts[0].new_zeros(padding, parts[0].shape[1])] if padding else parts)


@dataclass(slots=True, eq=False)
class _RowGroup:
    """Group of rows with equal length and policy, stored in a model cache."""

    cache: Any
    name: str  # name of the cache argument of the decoder
    policy: str | None
    slots: list[int | None]  # by index in the cache; None for a removed row


class NativeDecodeCache:
    """Decoding cache with the model's own caches; see :class:`~marft.models.decode_cache.DecodeCache`."""

    def __init__(self, decoder: nn.Module, routing: Routing) -> None:
        self.decoder, self.routing = decoder, routing
        self._groups: list[_RowGroup] = []

    def prefill(self, rows: PackedRows, slots: list[list[int]]) -> Tensor:
        """Prefill rows into slots; return their hidden states, [N, D].

        Raises:
            UserError: the model has no cache.
        """
        self._free_slots({slot for row_slots in slots for slot in row_slots})
        texts, policies = rows.ids.split(rows.lengths), rows.policies()
        groups: dict[tuple[int, str | None], list[int]] = {}
        for index, length in enumerate(rows.lengths):
            groups.setdefault((length, policies[index]), []).append(index)
        hidden_by_row: dict[int, Tensor] = {}
        for (_, policy), members in groups.items():
            batch = torch.stack([texts[index] for index in members])
            out = _run_decoder(self.decoder, self.routing, batch, [policy] * len(members), use_cache=True)
            name = next((name for name in CACHE_NAMES if getattr(out, name, None) is not None), "")
            if not name:
                raise UserError(f"{type(self.decoder).__name__} keeps no cache of its own")
            cache_indices = [position for position, index in enumerate(members) for _ in slots[index]]
            cache = getattr(out, name)
            cache.reorder_cache(to_device(np.array(cache_indices), batch.device))
            self._groups.append(_RowGroup(cache, name, policy, [slot for i in members for slot in slots[i]]))
            hidden_by_row.update(zip(members, out.last_hidden_state, strict=True))
        return torch.cat([hidden_by_row[index] for index in range(len(texts))])

    def step(self, ids: Tensor, lengths: Sequence[int], policies: Sequence[str | None]) -> Tensor:  # noqa: ARG002
        """Decode one token per row; return the hidden states, [n, D]."""
        self._free_slots(
            {slot for group in self._groups for slot in group.slots if slot is not None and slot >= len(ids)}
        )
        order: list[int] = []
        parts = []
        for group in self._groups:
            slots = _compact_group(group, ids.device)
            out = _run_decoder(
                self.decoder,
                self.routing,
                ids[to_device(np.array(slots), ids.device)][:, None],
                [group.policy] * len(slots),
                lengths[slots[0]],
                use_cache=True,
                **{group.name: group.cache},
            )
            group.cache = getattr(out, group.name)
            parts.append(out.last_hidden_state[:, 0])
            order += slots
        hidden = torch.cat(parts)
        return hidden[to_device(np.argsort(order), ids.device)]

    def move(self, source: int, target: int, length: int) -> None:  # noqa: ARG002
        """Reassign a slot. The caches stay in place."""
        self._free_slots({target})
        for group in self._groups:
            group.slots = [target if slot == source else slot for slot in group.slots]

    def _free_slots(self, slots: set[int]) -> None:
        for group in self._groups:
            group.slots = [None if slot in slots else slot for slot in group.slots]
        self._groups = [group for group in self._groups if any(slot is not None for slot in group.slots)]


def _compact_group(group: _RowGroup, device: torch.device) -> list[int]:
    """Return a group's slots after removing freed rows from its cache."""
    indices = [index for index, slot in enumerate(group.slots) if slot is not None]
    if len(indices) < len(group.slots):
        group.cache.reorder_cache(to_device(np.array(indices), device))
        group.slots = [group.slots[index] for index in indices]
    return [slot for slot in group.slots if slot is not None]


def _run_decoder(
    decoder: nn.Module,
    routing: Routing,
    ids_BT: Tensor,
    policies: Sequence[str | None],
    cached_tokens: int = 0,
    **arguments: Any,
) -> Any:
    """Run a batch through the model's own decoder with each row's policy.

    Args:
        cached_tokens: number of cached tokens per row.
    """
    width = ids_BT.shape[1]
    spans = [(policy, row * width, (row + 1) * width) for row, policy in enumerate(policies)]
    if "position_ids" in signature(decoder.forward).parameters:
        arguments["position_ids"] = (torch.arange(width, device=ids_BT.device) + cached_tokens).expand(ids_BT.shape)
    with routing.by_span(spans, ids_BT.numel()):
        return decoder(input_ids=ids_BT, **arguments)
