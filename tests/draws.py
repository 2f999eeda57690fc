"""What torch draws at random, from a generator of one's own: whatever other threads draw meanwhile, it is the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode


class DrawnFrom(TorchDispatchMode):
    """Within it, what this thread fills tensors with in place is drawn from a generator with this seed, where none is
    named: the same numbers as of torch's global stream behind ``torch.manual_seed``, which every thread may draw from.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        named = {**(kwargs or {})}
        if any(argument.name == "generator" for argument in func._schema.arguments):
            named["generator"] = named.get("generator") or self._generator
        else:
            assert torch.Tag.nondeterministic_seeded not in func.tags, (
                f"{func} takes no generator: fill a tensor in place"
            )
        return func(*args, **named)
