"""Bytes of live tensors, counted at every operation of torch.

This is the memory that a computation needs, without memory that an allocator keeps or rounds up.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from marft.models.dtensors import local_shard


class Counted(TorchDispatchMode):
    """Mode that counts storages as they appear and disappear.

    Memory inside an operation of torch is not counted. The mode works on any device, also on ``meta``, which computes
    nothing.

    Args:
        there: tensors that exist before.
    """

    def __init__(self, there: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.now = self.most = 0
        self._known: set[int] = set()
        for tensor in there:
            self._see(tensor)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_iter(out):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        return out

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._known:
            return
        size = storage.nbytes()
        self._known.add(key)
        self.now += size
        self.most = max(self.most, self.now)
        weakref.finalize(storage, self._gone, key, size)

    def _gone(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.now -= size


class Held(TorchDispatchMode):
    """Variant of :class:`Counted` for storages that are freed by resizing them to zero, as FSDP2 does.

    It checks all storages after every operation.
    """

    def __init__(self, there: Iterable[Tensor] = ()) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.most = 0
        self._alive: dict[int, weakref.ref[torch.UntypedStorage]] = {}
        for tensor in there:
            self._see(tensor)

    def now(self) -> int:
        """Return the bytes of live storages."""
        return sum(storage.nbytes() for one in self._alive.values() if (storage := one()) is not None)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_iter((out, args)):
            if isinstance(leaf, Tensor):
                self._see(leaf)
        self.most = max(self.most, self.now())
        return out

    def _see(self, tensor: Tensor) -> None:
        storage = local_shard(tensor).untyped_storage()
        self._alive[storage._cdata] = weakref.ref(storage)


def saved_bytes(compute: Callable[[], object], without: Iterable[Tensor]) -> int:
    """Return the bytes of the storages that a computation keeps for its backward pass, each counted once.

    Args:
        compute: the computation.
        without: tensors that exist anyway, such as parameters.
    """
    there = {tensor.untyped_storage()._cdata for tensor in without}
    seen: dict[int, Tensor] = {}

    def keep(tensor: Tensor) -> Tensor:
        if tensor.untyped_storage()._cdata not in there:
            seen.setdefault(tensor.untyped_storage()._cdata, tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        compute()
    return sum(tensor.untyped_storage().nbytes() for tensor in seen.values())
