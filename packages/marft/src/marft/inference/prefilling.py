"""Prompt prefill: a single computation for each shared or cached prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from marft.common.types import TokenIds
from marft.models.backbone import Backbone
from marft.models.devices import sent
from marft.models.forest import Forest, Span
from marft.models.packed_rows import PackedRows
from marft.models.prefixes import Prefix, Prefixes, joined
from marft.models.running_rows import CachedRows, RunningRows
from marft.models.tree_attention import KnownKeys


@dataclass(frozen=True, slots=True, eq=False)
class Asked:
    """Prompt with the slots for every row sharing the prompt."""

    tasks: str
    adapter: str | None
    prompt: TokenIds
    slots: list[int]


@dataclass(slots=True)
class Tokens:
    """Prompt-token counts: total, and actually computed."""

    asked: int = 0
    computed: int = 0


class Prefill:
    """Prefill prompts into the slots of running rows.

    Sharing depends only on the requests and their order, never on timing. Cached prefixes are reused only within one
    pass over tasks. A resumed run starts its pass with an empty cache.

    Args:
        prefix_bytes: size limit of the prefix cache, in bytes; 0 disables the cache.
        tokens: counters to update; None creates new counters.
    """

    def __init__(
        self, backbone: Backbone, running: RunningRows, prefix_bytes: int, tokens: Tokens | None = None
    ) -> None:
        self.backbone, self.running = backbone, running
        self.cached = running if isinstance(running, CachedRows) else None
        self.prefixes = Prefixes(prefix_bytes) if self.cached is not None and prefix_bytes else None
        self.tokens = tokens or Tokens()

    def read(self, asked: Sequence[Asked]) -> Tensor:
        """Prefill prompts; return the hidden state at each prompt's last token, [B, D]."""
        prompts, adapters = [one.prompt for one in asked], [one.adapter for one in asked]
        slots = [one.slots for one in asked]
        self.tokens.asked += sum(len(one.prompt) * len(one.slots) for one in asked)
        forest, known = _forest(prompts, adapters, self._found(asked))
        whole = sum(map(len, prompts))
        if self.cached is not None and self.backbone.gains(forest, whole):
            self.tokens.computed += len(forest.ids)
            packed = PackedRows.sharing(forest, self.backbone.device)
            of_known = KnownKeys(*joined(known, self.backbone.depth)) if known else None
            hidden = self.cached.prefill_sharing(packed, slots, of_known)
            last = [int(places[-1]) - forest.known for places in forest.places]
        else:
            self.tokens.computed += whole
            packed = PackedRows.of(prompts, adapters, self.backbone.device)
            hidden = self.running.prefill(packed, slots)
            last = (np.cumsum(packed.lengths) - 1).tolist()
        for one in asked:
            self.keep(one.tasks, one.adapter, one.prompt, one.slots[0])
        return hidden[sent(np.array(last), hidden.device)]

    def keep(self, tasks: str, adapter: str | None, ids: TokenIds, slot: int) -> None:
        """Cache the keys and values for ``ids`` from a slot."""
        if self.prefixes is not None and self.cached is not None:
            self.prefixes.keep((tasks, adapter), ids, self.cached.cache, slot)

    def _found(self, asked: Sequence[Asked]) -> list[Prefix]:
        if self.prefixes is None:
            return [Prefix()] * len(asked)
        self.prefixes.forget_others({one.tasks for one in asked})
        return [self.prefixes.find((one.tasks, one.adapter), one.prompt) for one in asked]


def _forest(
    prompts: Sequence[TokenIds], adapters: Sequence[str | None], found: Sequence[Prefix]
) -> tuple[Forest, list[Prefix]]:
    """Build a prefix tree for the prompts; return it with the cached prefixes, each listed once."""
    spans: dict[tuple[tuple[int, int], ...], Span] = {}
    known: list[Prefix] = []
    keys = 0
    for prefix in found:
        if prefix and prefix.key() not in spans:
            spans[prefix.key()] = (keys, keys + len(prefix))
            known.append(prefix)
            keys += len(prefix)
    return Forest.of(prompts, adapters, [spans.get(prefix.key(), (0, 0)) for prefix in found], keys), known
