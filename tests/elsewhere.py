"""A device that is not there: tensors that say they are on it, and a count of who waits for them.

What a tensor of it holds is computed on the CPU, so that code which decides by numbers runs as it is. Everything that a
GPU would refuse is refused, a tensor of the host among those of the device above all; and everything for which it
would have to catch up with the host is counted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_flatten, tree_map
from transformers import AutoModelForCausalLM

DEVICE = torch.device("meta")  # what they say they are on: the one device that every torch knows beside the CPU
CPU = torch.device("cpu")
aten = torch.ops.aten
WAITS = {  # what tells the host a number, or how large something is
    aten._local_scalar_dense.default, aten.nonzero.default, aten.masked_select.default, aten.equal.default,
    aten._unique2.default, aten.bincount.default, aten.repeat_interleave.Tensor, aten.is_nonzero.default,
}  # fmt: skip
INDEXES = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
INDEXING = (Tensor.__getitem__, Tensor.__setitem__)
WAITING = Counter[str]()  # by operation, while :func:`elsewhere` lasts


class Elsewhere(Tensor):
    """A tensor of the device, which holds one of the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> Elsewhere:
        made = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=DEVICE, requires_grad=held.requires_grad,
        )  # fmt: skip
        made.held = held
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"Elsewhere({self.held!r})"

    @classmethod
    def __torch_dispatch__(
        cls, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _compute(function, args, dict(kwargs or {}))


class _Factories(TorchDispatchMode):
    """Makes tensors of the device where code asks for them."""

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        flat, _ = tree_flatten((args, given))
        mine = given.get("device") == DEVICE or any(isinstance(value, Elsewhere) for value in flat)
        return _compute(function, args, given) if mine else function(*args, **given)


class _FromLists(TorchFunctionMode):
    """``torch.tensor(list, device=…)`` fills a tensor of the host and sends it; so does an index that is a list."""

    asleep = False

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        given = dict(kwargs or {})
        place = given.get("device")
        if function is torch.tensor and not self.asleep and place is not None and torch.device(place) == DEVICE:
            return torch.tensor(*args, **{**given, "device": CPU}).to(DEVICE)
        if function is Tensor.tolist and isinstance(args[0], Elsewhere):
            return args[0].cpu().tolist()
        if function in INDEXING and isinstance(args[0], Elsewhere) and isinstance(args[1], list):
            args = (args[0], torch.tensor(args[1]).to(DEVICE), *args[2:])
        return function(*args, **given)


@contextmanager
def elsewhere() -> Iterator[Counter[str]]:
    """While it lasts there is the device; yields how often what was waited for."""
    from_files = AutoModelForCausalLM.from_pretrained

    def read_at_home(*args: Any, **kwargs: Any) -> Any:
        """transformers begins with tensors on "meta" that hold nothing."""
        with _disable_current_modes(), mock.patch.object(_FromLists, "asleep", True):
            return from_files(*args, **kwargs)

    WAITING.clear()
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(AutoModelForCausalLM, "from_pretrained", read_at_home))
        # Tensors of inference mode cannot be held by others.
        stack.enter_context(mock.patch.object(torch.inference_mode, "__enter__", torch.no_grad.__enter__))
        stack.enter_context(mock.patch.object(torch.inference_mode, "__exit__", torch.no_grad.__exit__))
        kinds = _foreach_utils._get_foreach_kernels_supported_devices()
        stack.enter_context(mock.patch.object(
            _foreach_utils, "_get_foreach_kernels_supported_devices", return_value=[*kinds, DEVICE.type]
        ))  # fmt: skip
        stack.enter_context(_FromLists())
        stack.enter_context(_Factories())
        yield WAITING


def _compute(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    flat, _ = tree_flatten((args, kwargs))
    tensors = [value for value in flat if isinstance(value, Tensor)]
    goes = kwargs.get("device")
    copies = function in (aten._to_copy.default, aten.copy_.default)
    if not copies:
        _refuse_strangers(function, tensors)
    if function is aten.copy_.default and type(args[0]) is not type(args[1]) and args[1].dim() + args[0].dim():
        blocking = args[2] if len(args) > 2 else kwargs.get("non_blocking", False)
        _count(f"{'sent' if isinstance(args[0], Elsewhere) else 'read'}", not blocking or args[0].device == CPU)
    elif function is aten._to_copy.default and goes is not None:
        here, there = isinstance(args[0], Elsewhere), goes == DEVICE
        if here != there:
            _count("read" if here else "sent", here or not kwargs.get("non_blocking", False))
    elif function in WAITS:
        _count(str(function), True)
    elif function in INDEXES and any(
        index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
    ):
        _count(f"{function} by a mask", True)
    if goes is not None:
        kwargs = {**kwargs, "device": CPU}
    run = _product_in_float32 if function is aten.mm.dtype else function
    out = run(*tree_map(_unwrapped, args), **tree_map(_unwrapped, kwargs))
    if goes is not None and goes != DEVICE:
        return tree_map(lambda value: value.clone() if isinstance(value, Tensor) else value, out)
    if function is aten.copy_.default and not isinstance(args[0], Elsewhere):
        return args[0]
    return tree_map(lambda value: Elsewhere(value) if isinstance(value, Tensor) else value, out)


def _refuse_strangers(function: Any, tensors: Sequence[Tensor]) -> None:
    """As a GPU does: beside its own it takes the host's numbers (of no dimension), and no tensors that hold nothing."""
    for tensor in tensors:
        if not isinstance(tensor, Elsewhere) and (tensor.dim() or tensor.device != CPU):
            raise RuntimeError(f"{function}: a tensor on {tensor.device} among tensors of another device")


def _count(what: str, waits: bool) -> None:
    if waits:
        WAITING[what] += 1


def _product_in_float32(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return a.to(dtype) @ b.to(dtype)


def _unwrapped(value: Any) -> Any:
    return value.held if isinstance(value, Elsewhere) else value
