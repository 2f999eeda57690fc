"""Tensors that report the device "cuda:0" and compute on the CPU.

To PyTorch's C++ code they are on "meta:0": autograd needs a device that a CPU build knows, and "cuda" is none. Python
code sees "cuda:0" everywhere, because a mode translates the device in both directions.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from weakref import finalize

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map
from torch.utils.weak import WeakTensorKeyDictionary

from tests.simulated_gpu.counts import record_copy, record_launch, record_sync, uncounted

CUDA = torch.device("cuda", 0)
INNER = torch.device("meta", 0)  # the device in C++; models without memory use "meta" without an index
CPU = torch.device("cpu")
aten = torch.ops.aten
SYNCS = {
    aten.nonzero.default, aten.masked_select.default, aten.equal.default, aten._unique.default, aten._unique2.default,
    aten.unique_dim.default, aten.unique_consecutive.default, aten.bincount.default, aten.is_nonzero.default,
}  # fmt: skip
INDEXES = {aten.index.Tensor, aten.index_put.default, aten.index_put_.default, aten._index_put_impl_.default}
NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view", "detach_",
             "lift_fresh", "resize_", "set_", "record_stream", "_reshape_alias", "alias", "detach"}  # fmt: skip
# Limits of one kernel: tensors by number of lists and blocks of multi_tensor_apply, inputs of cat (aten/native/cuda).
FOREACH_TENSORS, FOREACH_BLOCKS, FOREACH_CHUNK, CAT_INPUTS = {1: 110, 2: 64, 3: 48, 4: 36, 5: 30}, 320, 65536, 128
HALF_TYPES = (torch.float16, torch.bfloat16)


class Memory:
    """Bytes of live storages on the device, and their peak."""

    def __init__(self) -> None:
        self.owners: dict[int, int] = {}
        self.allocated = self.peak = 0

    def hold(self, tensor: Tensor) -> None:
        """Count the tensor's storage until no tensor uses it."""
        storage = tensor.untyped_storage()
        place, size = storage.data_ptr(), storage.nbytes()
        if not size:
            return
        self.owners[place] = self.owners.get(place, 0) + 1
        if self.owners[place] == 1:
            self.allocated += size
            self.peak = max(self.peak, self.allocated)
        finalize(tensor, self._release, place, size)

    def _release(self, place: int, size: int) -> None:
        self.owners[place] -= 1
        if not self.owners[place]:
            del self.owners[place]
            self.allocated -= size


class Recorder:
    """Kernels of a captured graph, in order."""

    def __init__(self) -> None:
        self.kernels: list[Callable[[], object]] = []


MEMORY = Memory()
_thread = threading.local()
PENDING: list[tuple[Tensor, Tensor]] = []  # host tensors with the values that they get at the next synchronization
RECORDER: list[Recorder] = []  # the capture in progress
PINNED = WeakTensorKeyDictionary()  # pinned host tensors


class SimulatedTensor(Tensor):
    """Tensor on "cuda:0"; ``held`` is the CPU tensor with its values."""

    held: Tensor
    device = property(lambda self: CUDA)
    is_cuda: ClassVar[bool] = True  # type: ignore[misc]
    is_meta: ClassVar[bool] = False  # type: ignore[misc]
    is_cpu: ClassVar[bool] = False  # type: ignore[misc]

    @staticmethod
    def __new__(cls, held: Tensor) -> SimulatedTensor:
        made: SimulatedTensor = torch.Tensor._make_wrapper_subclass(
            cls, held.shape, strides=held.stride(), storage_offset=held.storage_offset(), dtype=held.dtype,
            device=INNER, requires_grad=held.requires_grad,
        )  # fmt: skip
        made.held = held
        MEMORY.hold(held)
        return made

    def __repr__(self) -> str:  # type: ignore[override]
        return f"{self.held!r} on {CUDA}"

    def __deepcopy__(self, memo: dict[int, Any]) -> SimulatedTensor:
        copied = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            copied = torch.nn.Parameter(copied, self.requires_grad)
        memo[id(self)] = copied
        return copied  # type: ignore[return-value]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        return _compute(function, args, dict(kwargs or {}))


class DispatchMode(TorchDispatchMode):
    """Makes tensors on the device where code asks for them."""

    def __torch_dispatch__(
        self, function: Any, types: Sequence[type], args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = dict(kwargs or {})
        flat, _ = tree_flatten((args, given))
        here = _is_simulated(given.get("device")) or any(isinstance(value, SimulatedTensor) for value in flat)
        return _compute(function, args, given) if here else function(*args, **given)


class FunctionMode(TorchFunctionMode):
    """Translates "cuda" in calls of PyTorch's Python functions, and does what PyTorch does before it dispatches."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Sequence[type], args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        given = dict(kwargs or {})
        if getattr(_thread, "asleep", False):
            return function(*args, **given)
        replacement = REPLACED.get(function)
        if replacement is not None:
            result = replacement(function, args, given)
            if result is not NotImplemented:
                return result
        args = tuple(_translated(value, function) for value in args)
        if "device" in given:
            given["device"] = _translated(given["device"], Tensor.to)
        return function(*args, **given)


def _translated(value: Any, function: object) -> Any:
    is_name = isinstance(value, str) and function is Tensor.to and value.startswith("cuda")
    if not is_name and not isinstance(value, torch.device):
        return value
    device = torch.device(value)
    if device.type != "cuda":
        return value
    if device.index:
        raise RuntimeError("CUDA error: invalid device ordinal")
    return INNER


def _is_simulated(device: Any) -> bool:
    return device is not None and (device == INNER or torch.device(device).type == "cuda")


def _from_host(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Fill a host tensor with values and copy it: ``torch.tensor(values, device="cuda")``."""
    if not _is_simulated(_translated(kwargs.get("device"), Tensor.to)) or isinstance(args[0], Tensor):
        return NotImplemented
    tensor = torch.tensor(*args, **{key: kwargs[key] for key in kwargs if key not in ("device", "requires_grad")})
    return tensor.to(INNER).requires_grad_(kwargs.get("requires_grad", False))


def _new_tensor(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _from_host(torch.tensor, args[1:], {"dtype": args[0].dtype, "device": args[0].device} | kwargs)


def _to_list(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].cpu().tolist() if isinstance(args[0], SimulatedTensor) else NotImplemented


def _refuse_numpy(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    if isinstance(args[0], SimulatedTensor):
        raise TypeError(
            "can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() to copy the tensor to host memory first."
        )
    return NotImplemented


def _index(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copy indices that are lists or arrays to the device, as PyTorch does before it dispatches."""
    if not isinstance(args[0], SimulatedTensor):
        return NotImplemented

    def moved(index: object) -> object:
        return torch.tensor(index).to(INNER) if isinstance(index, (list, np.ndarray)) else index

    index = tuple(map(moved, args[1])) if isinstance(args[1], tuple) else moved(args[1])
    return function(args[0], index, *args[2:])


def _attend(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run the kernel that a GPU would choose: flash attention, memory-efficient attention, or plain products."""
    if not isinstance(args[0], SimulatedTensor):
        return NotImplemented
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = dict(zip(names, args, strict=False)) | kwargs
    q, k, v, mask = given["query"], given["key"], given["value"], given.get("attn_mask")
    flash = mask is None and q.dtype in HALF_TYPES
    grouped = q.shape[-3] != k.shape[-3]
    if q.dim() != 4 or (grouped and not flash):
        return NotImplemented
    if grouped:
        with uncounted():
            k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=q.dtype).masked_fill(~mask, -math.inf)
    causal = given.get("is_causal", False)
    out = aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, 0.0, causal, attn_mask=mask, scale=given.get("scale")
    )
    return out[0]


class _RmsNorm(torch.autograd.Function):
    """RMS norm with the kernels of CUDA: one forward, two backward with the gradient of a weight, else one."""

    @staticmethod
    def forward(ctx: Any, function: Any, x: Tensor, shape: Sequence[int], weight: Tensor, epsilon: float) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.compute = lambda states, scale: function(states, shape, scale, epsilon)
        record_launch("rms_norm")
        with uncounted():
            out: Tensor = ctx.compute(x, weight)
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Any, ...]:
        needed = ctx.needs_input_grad[1], ctx.needs_input_grad[3]
        record_launch("rms_norm_backward", sum(needed))
        with uncounted(), torch.enable_grad():
            inputs = [x.detach().requires_grad_(need) for x, need in zip(ctx.saved_tensors, needed, strict=True)]
            wanted = [x for x in inputs if x.requires_grad]
            grads = iter(torch.autograd.grad(ctx.compute(*inputs), wanted, grad))
        dx, dw = (next(grads) if need else None for need in needed)
        return None, dx, None, dw, None


def _rms_norm(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Count CUDA's kernels where the weight has the input's type; elsewhere the norm is computed in parts."""
    given = dict(zip(("input", "normalized_shape", "weight", "eps"), args, strict=False)) | kwargs
    x, weight = given["input"], given.get("weight")
    if not isinstance(x, SimulatedTensor) or weight is None or weight.dtype != x.dtype:
        return NotImplemented
    return _RmsNorm.apply(function, x, given["normalized_shape"], weight, given.get("eps"))  # type: ignore[no-untyped-call]


def _pin(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    pinned = args[0].clone()
    PINNED[pinned] = True
    return pinned


def _same(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return args[0].to(INNER, non_blocking=kwargs.get("non_blocking", False))


REPLACED: dict[object, Callable[..., Any]] = {
    torch.tensor: _from_host, torch.as_tensor: _from_host, Tensor.new_tensor: _new_tensor, Tensor.tolist: _to_list,
    Tensor.numpy: _refuse_numpy, Tensor.__array__: _refuse_numpy, Tensor.__getitem__: _index, Tensor.__setitem__: _index,
    torch.nn.functional.scaled_dot_product_attention: _attend, torch.rms_norm: _rms_norm,
    torch.nn.functional.rms_norm: _rms_norm, Tensor.pin_memory: _pin, Tensor.cuda: _same,
    Tensor.is_pinned: lambda function, args, kwargs: args[0] in PINNED,
    Tensor.get_device: lambda function, args, kwargs: 0 if isinstance(args[0], SimulatedTensor) else NotImplemented,
    Tensor.data_ptr: lambda function, args, kwargs: (
        args[0].held.data_ptr() if isinstance(args[0], SimulatedTensor) else NotImplemented
    ),
    Tensor.record_stream: lambda function, args, kwargs: None,
}  # fmt: skip


def finish_copies() -> None:
    """Deliver asynchronous copies to the host: the host has waited for the device."""
    for target, values in PENDING:
        target.copy_(values)
    PENDING.clear()


def synchronize(what: str) -> None:
    """Wait for the device."""
    record_sync(what)
    finish_copies()


def _compute(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a dispatched operation on the CPU, and count what a GPU would do for it."""
    if function in (aten._to_copy.default, aten.copy_.default):
        copied = _copy(function, args, kwargs)
        if copied is not NotImplemented:
            return copied
    elif kwargs.get("device") is None:
        args = _check_devices(function, args, kwargs)
    target = kwargs.get("device")
    if target is not None:
        kwargs = {**kwargs, "device": CPU}
        if not _is_simulated(target):  # such as an empty host tensor with the shape of one of the device
            return function(*tree_map(_unwrapped, args), **kwargs)
    if function in SYNCS or (function is aten.repeat_interleave.Tensor and kwargs.get("output_size") is None):
        synchronize(function.overloadpacket.__name__)
    elif function is aten._local_scalar_dense.default:
        record_copy("to host", args[0].element_size(), blocking=True)
        finish_copies()
    elif function in INDEXES and any(i is not None and i.dtype in (torch.bool, torch.uint8) for i in args[1]):
        synchronize("index by a mask")
    return _launch(function, args, kwargs)


def _launch(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    flat, _ = tree_flatten((args, kwargs))
    wrappers = {id(value.held): value for value in flat if isinstance(value, SimulatedTensor)}
    run = _product_in_float32 if function is aten.mm.dtype else function
    held_args, held_kwargs = tree_map(_unwrapped, args), tree_map(_unwrapped, kwargs)
    is_view = function.is_view or function.overloadpacket.__name__ in NO_KERNEL
    mutates = function._schema.is_mutable
    capturing = RECORDER[-1] if RECORDER and not is_view else None
    if capturing is not None and mutates:
        written = _written(function, held_args, held_kwargs)
        out = written if len(written) != 1 else written[0]
        capturing.kernels.append(lambda: run(*held_args, **held_kwargs))
    else:
        out = run(*held_args, **held_kwargs)
        if capturing is not None:
            _capture(capturing, run, held_args, held_kwargs, out)
    if not is_view:
        record_launch(function.overloadpacket.__name__, _kernels(function, held_args, out))
    return tree_map(lambda value: _wrapped(value, wrappers), out)


def _capture(recorder: Recorder, run: Any, args: Any, kwargs: Any, out: Any) -> None:
    """Record a kernel that fills new tensors, which hold nothing before the first replay."""
    outputs = [value for value in tree_flatten(out)[0] if isinstance(value, Tensor)]
    for output in outputs:
        output.fill_(math.nan if output.is_floating_point() else 0)

    def replay() -> None:
        for old, new in zip(
            outputs, (x for x in tree_flatten(run(*args, **kwargs))[0] if isinstance(x, Tensor)), strict=True
        ):
            old.copy_(new)

    recorder.kernels.append(replay)


def _written(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
    """Return the arguments that an operation writes to."""
    schema = function._schema.arguments
    given = {argument.name: value for argument, value in zip(schema, args, strict=False)} | kwargs
    return [given[a.name] for a in schema if a.alias_info is not None and a.alias_info.is_write and a.name in given]


def _kernels(function: Any, args: tuple[Any, ...], out: Any) -> int:
    """Return the kernels of an operation; most have one, which is a lower bound."""
    name = function.overloadpacket.__name__
    if name == "_local_scalar_dense":
        return 0
    if name.startswith(("_foreach_", "_fused_adam")):
        lists = [value for value in args if isinstance(value, (list, tuple)) and value and isinstance(value[0], Tensor)]
        blocks = sum(-(-int(tensor.numel()) // FOREACH_CHUNK) for tensor in lists[0])
        return max(-(-len(lists[0]) // FOREACH_TENSORS[min(5, len(lists))]), -(-blocks // FOREACH_BLOCKS))
    if name == "cat":
        return -(-len(args[0]) // CAT_INPUTS)
    tensors = [value for value in tree_flatten(out)[0] if isinstance(value, Tensor)]
    return int(not tensors or any(tensor.numel() for tensor in tensors))


def _copy(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copy between host and device; ``NotImplemented`` for a copy inside the device, which is a kernel."""
    if function is aten.copy_.default:
        target, source = args[:2]
        here, there = isinstance(source, SimulatedTensor), isinstance(target, SimulatedTensor)
        non_blocking = bool(args[2] if len(args) > 2 else kwargs.get("non_blocking", False))
        non_blocking = non_blocking and (there or target in PINNED)
    else:
        source, device = args[0], kwargs.get("device")
        here = isinstance(source, SimulatedTensor)
        target, there = None, here if device is None else _is_simulated(device)
        non_blocking = bool(kwargs.get("non_blocking", False))
    if here == there:
        return NotImplemented
    dtype = kwargs.get("dtype") or source.dtype if target is None else target.dtype
    values = source.held if here else source
    if here and (dtype != values.dtype or not values.is_contiguous()):
        record_launch("copy")
    size = math.prod(values.shape) * dtype.itemsize
    record_copy("to device" if there else "to host", size, blocking=not non_blocking)
    if not non_blocking:
        finish_copies()
    made = values.to(dtype, copy=True)
    if target is None:
        return SimulatedTensor(made) if there else _received(made, non_blocking)
    if there:
        target.held.copy_(made)
    elif non_blocking:
        PENDING.append((target, made))
    else:
        target.copy_(made)
    return target


def _received(values: Tensor, non_blocking: bool) -> Tensor:
    """Return a host tensor with values that come from the device, now or at the next synchronization."""
    if not non_blocking:
        return values
    target = torch.full_like(values, math.nan if values.is_floating_point() else 0)
    PINNED[target] = True
    PENDING.append((target, values))
    return target


def _check_devices(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Refuse host tensors among those of the device, except single numbers; copy host indices, as CUDA does."""
    if function in INDEXES and isinstance(args[0], SimulatedTensor):
        indices = [
            _copy(aten._to_copy.default, (index,), {"device": INNER}) if _is_foreign(index) else index
            for index in args[1]
        ]
        args = (args[0], indices, *args[2:])
    for tensor in tree_flatten((args, kwargs))[0]:
        if _is_foreign(tensor) and (tensor.dim() or tensor.device != CPU):
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {CUDA} and "
                f"{tensor.device}! ({function})"
            )
    return args


def _is_foreign(value: object) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, SimulatedTensor)


def _product_in_float32(a: Tensor, b: Tensor, dtype: torch.dtype) -> Tensor:
    return a.to(dtype) @ b.to(dtype)


def _unwrapped(value: Any) -> Any:
    return value.held if isinstance(value, SimulatedTensor) else value


def _wrapped(value: Any, wrappers: Mapping[int, SimulatedTensor]) -> Any:
    if not isinstance(value, Tensor):
        return value
    wrapper = wrappers.get(id(value))
    return SimulatedTensor(value) if wrapper is None else wrapper


@contextmanager
def asleep() -> Iterator[None]:
    """Let the current thread's function mode do nothing inside the context."""
    _thread.asleep = True
    try:
        yield
    finally:
        _thread.asleep = False


@contextmanager
def modes() -> Iterator[None]:
    """Run both modes in the current thread."""
    with FunctionMode(), DispatchMode():  # type: ignore[no-untyped-call]
        yield
