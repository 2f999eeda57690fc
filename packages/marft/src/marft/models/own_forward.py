"""A model's own forward, for architectures that cannot be packed: slower, with its own masks, states and caches.

Rows of a batch are padded at their ends and nothing is masked: in a causal model no token knows what comes after it, be
it through attention, convolutions or recurrent states. Rows that are decoded together have the same length, so that no
padding ever enters a cache.
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

from marft.models.attention import padded_length
from marft.models.devices import sent
from marft.models.lora import Routing
from marft.models.packed_rows import PackedRows

CACHES = ("past_key_values", "cache_params")  # what models call theirs


def own_hidden_states(decoder: nn.Module, routing: Routing, rows: PackedRows) -> Tensor:
    """Last hidden states of packed rows → [N, D]; zeros where the batch has been filled up.

    Rows of similar length share a forward, as in :class:`PackedPlan`. In a batch that has been filled up each row has
    a forward of its own: what it comes out as must not depend on those beside it.
    """
    texts, policies = rows.ids[: sum(rows.lengths)].split(rows.lengths), rows.policies()
    groups: dict[tuple[int, int], list[int]] = {}
    for index, length in enumerate(rows.lengths):
        groups.setdefault((padded_length(length), index if rows.filled else -1), []).append(index)
    found: dict[int, Tensor] = {}
    for (width, _), members in groups.items():
        batch = pad_sequence([texts[index] for index in members], batch_first=True)
        batch = torch.nn.functional.pad(batch, (0, width - batch.shape[1]))
        hidden = _forward(
            decoder, routing, batch, [policies[index] for index in members], use_cache=False
        ).last_hidden_state
        found.update({index: hidden[place, : rows.lengths[index]] for place, index in enumerate(members)})
    spare = len(rows.ids) - sum(rows.lengths)
    parts = [found[index] for index in range(len(rows.lengths))]
    return torch.cat([*parts, parts[0].new_zeros(spare, parts[0].shape[1])] if spare else parts)


@dataclass(slots=True, eq=False)
class _Together:
    """Rows of one length and policy, which the model's own cache holds."""

    cache: Any
    name: str  # of the cache among the decoder's arguments
    policy: str | None
    slots: list[int | None]  # by place in the cache; None where a row has left


class OwnRows:
    """Rows in slots, in caches that the model makes itself; see :class:`~marft.models.running_rows.RunningRows`."""

    def __init__(self, decoder: nn.Module, routing: Routing) -> None:
        self.decoder, self.routing = decoder, routing
        self._together: list[_Together] = []

    def prefill(self, rows: PackedRows, slots: list[list[int]]) -> Tensor:
        self._forget({slot for of_row in slots for slot in of_row})
        texts, policies = rows.ids.split(rows.lengths), rows.policies()
        groups: dict[tuple[int, str | None], list[int]] = {}
        for index, length in enumerate(rows.lengths):
            groups.setdefault((length, policies[index]), []).append(index)
        found: dict[int, Tensor] = {}
        for (_, policy), members in groups.items():
            batch = torch.stack([texts[index] for index in members])
            out = _forward(self.decoder, self.routing, batch, [policy] * len(members), use_cache=True)
            name = next((name for name in CACHES if getattr(out, name, None) is not None), "")
            if not name:
                raise ValueError(f"{type(self.decoder).__name__} keeps no cache of its own")
            places = [place for place, index in enumerate(members) for _ in slots[index]]
            cache = getattr(out, name)
            cache.reorder_cache(sent(np.array(places), batch.device))
            self._together.append(_Together(cache, name, policy, [slot for i in members for slot in slots[i]]))
            found.update(zip(members, out.last_hidden_state, strict=True))
        return torch.cat([found[index] for index in range(len(texts))])

    def step(self, ids: Tensor, lengths: Sequence[int], policies: Sequence[str | None]) -> Tensor:  # noqa: ARG002
        self._forget(
            {slot for group in self._together for slot in group.slots if slot is not None and slot >= len(ids)}
        )
        order: list[int] = []
        parts = []
        for group in self._together:
            slots = _kept(group, ids.device)
            out = _forward(
                self.decoder, self.routing, ids[sent(np.array(slots), ids.device)][:, None],
                [group.policy] * len(slots), lengths[slots[0]],
                use_cache=True, **{group.name: group.cache},
            )  # fmt: skip
            group.cache = getattr(out, group.name)
            parts.append(out.last_hidden_state[:, 0])
            order += slots
        hidden = torch.cat(parts)
        return hidden[sent(np.argsort(order), ids.device)]

    def move(self, source: int, target: int, length: int) -> None:  # noqa: ARG002
        self._forget({target})
        for group in self._together:
            group.slots = [target if slot == source else slot for slot in group.slots]

    def _forget(self, slots: set[int]) -> None:
        for group in self._together:
            group.slots = [None if slot in slots else slot for slot in group.slots]
        self._together = [group for group in self._together if any(slot is not None for slot in group.slots)]


def _kept(group: _Together, device: torch.device) -> list[int]:
    """The slots of a group, once those that have left are out of its cache."""
    places = [place for place, slot in enumerate(group.slots) if slot is not None]
    if len(places) < len(group.slots):
        group.cache.reorder_cache(sent(np.array(places), device))
        group.slots = [group.slots[place] for place in places]
    return [slot for slot in group.slots if slot is not None]


def _forward(
    decoder: Any, routing: Routing, ids_BT: Tensor, policies: Sequence[str | None], read: int = 0, **arguments: Any
) -> Any:
    """A batch through the model's own decoder, each row under its policy, ``read`` tokens of each being cached."""
    width = ids_BT.shape[1]
    stretches = [(policy, row * width, (row + 1) * width) for row, policy in enumerate(policies)]
    if "position_ids" in signature(decoder.forward).parameters:
        arguments["position_ids"] = (torch.arange(width, device=ids_BT.device) + read).expand(ids_BT.shape)
    with routing.by_stretch(stretches, ids_BT.numel()):
        return decoder(input_ids=ids_BT, **arguments)
