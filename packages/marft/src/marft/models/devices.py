"""Transfers between CPU and device: asynchronous sends, batched reads, and device-specific operations.

A device executes queued operations while the CPU queues more. Reading a number back waits for all of them. Therefore
loops read rarely and in one transfer: once per decoding step, and once per minibatch before the optimizer step. Many
tensors, such as those of adapters and optimizers, are packed for a transfer.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FloatArray = npt.NDArray[np.float64]
MAX_PACKED_BYTES = 2**28  # in one transfer of several tensors; a packed copy takes as much memory on both sides
ALIGNMENT = 16  # bytes; where an array begins in a packed transfer
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt(3)

EXACT_DTYPES = (torch.float32, torch.float64)


def is_on_cpu(tensor: Tensor) -> bool:
    """Return whether a tensor resides in CPU memory, with free reads."""
    return tensor.device.type == "cpu"


def to_device(values: npt.NDArray[np.generic], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy an array to a device without waiting for the device."""
    tensor = torch.from_numpy(values)
    return tensor.to(device, dtype or tensor.dtype, non_blocking=True)


def send_together(arrays: Sequence[npt.NDArray[np.generic]], device: torch.device) -> list[Tensor]:
    """Copy arrays to a device as :func:`to_device`, in a single transfer.

    >>> [tensor.tolist() for tensor in send_together([np.arange(3), np.array([True])], torch.device("cpu"))]
    [[0, 1, 2], [True]]
    """
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    hosts = [torch.from_numpy(np.ascontiguousarray(array)) for array in arrays]
    starts = np.cumsum([0, *(-(-host.nbytes // ALIGNMENT) * ALIGNMENT for host in hosts)])
    packed = np.zeros(starts[-1], np.uint8)
    for start, array in zip(starts, arrays, strict=False):
        packed[start : start + array.nbytes] = np.frombuffer(array.tobytes(), np.uint8)
    flat = to_device(packed, device)
    return [
        flat[start : start + host.nbytes].view(host.dtype).view(host.shape)
        for start, host in zip(starts.tolist(), hosts, strict=False)
    ]


def read_tensors(tensors: Sequence[Tensor]) -> list[FloatArray]:
    """Read several tensors as flat float64 arrays, in a single transfer from each device.

    >>> [numbers.tolist() for numbers in read_tensors([torch.tensor([1, 2]), torch.tensor(0.5)])]
    [[1.0, 2.0], [0.5]]
    """
    if not tensors:
        return []
    numbers: dict[int, FloatArray] = {}
    for indices in _group_by([tensor.device for tensor in tensors]):
        # one conversion for each type, not for each tensor
        kinds = [[indices[i] for i in kind] for kind in _group_by([tensors[index].dtype for index in indices])]
        flat = torch.cat([torch.cat([tensors[i].detach().flatten() for i in kind]).double() for kind in kinds])
        order = [index for kind in kinds for index in kind]
        sizes = [tensors[index].numel() for index in order]
        numbers |= zip(order, np.split(flat.cpu().numpy(), np.cumsum(sizes)[:-1]), strict=True)
    return [numbers[index] for index in range(len(tensors))]


def _group_by(keys: Sequence[object]) -> list[list[int]]:
    """Return the indices of equal keys, in the order of their first occurrence."""
    groups: dict[object, list[int]] = {}
    for index, key in enumerate(keys):
        groups.setdefault(key, []).append(index)
    return list(groups.values())


@torch.no_grad()
def copy_together(targets: Iterable[Tensor], sources: Iterable[Tensor]) -> None:
    """Copy tensors to tensors with the same shapes and types; between CPU and device in few transfers.

    >>> here = [torch.zeros(2), torch.zeros(1)]
    >>> copy_together(here, [torch.tensor([1.0, 2.0]), torch.tensor([3.0])]); here
    [tensor([1., 2.]), tensor([3.])]
    """
    packed: dict[object, list[tuple[Tensor, Tensor]]] = {}
    for target, source in zip(targets, sources, strict=True):
        if target.device == source.device or target.dtype != source.dtype:
            target.copy_(source)
        else:
            packed.setdefault((source.device, target.device, source.dtype), []).append((target, source))
    for pairs in packed.values():
        for group in _limit_bytes(pairs):
            if len(group) == 1:  # without a packed copy
                group[0][0].copy_(group[0][1])
                continue
            flat = torch.cat([source.flatten() for _, source in group]).to(group[0][0].device)
            parts = flat.split([source.numel() for _, source in group])
            torch._foreach_copy_(
                [target for target, _ in group],
                [part.view(target.shape) for part, (target, _) in zip(parts, group, strict=True)],
            )


def _limit_bytes(pairs: Sequence[tuple[Tensor, Tensor]]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Group pairs up to :data:`MAX_PACKED_BYTES`; a larger tensor forms its own group."""
    group: list[tuple[Tensor, Tensor]] = []
    size = 0
    for pair in pairs:
        added = pair[1].numel() * pair[1].element_size()
        if group and size + added > MAX_PACKED_BYTES:
            yield group
            group, size = [], 0
        group.append(pair)
        size += added
    yield group


def copy_to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return contiguous tensors in host memory, by name; tensors that are there already are not copied."""
    host = {
        name: tensor.detach().contiguous() if is_on_cpu(tensor) else torch.empty(tensor.shape, dtype=tensor.dtype)
        for name, tensor in tensors.items()
    }
    elsewhere = [name for name, tensor in tensors.items() if not is_on_cpu(tensor)]
    copy_together([host[name] for name in elsewhere], [tensors[name] for name in elsewhere])
    return host


class AutogradContext(Protocol):
    """Context of an autograd Function: saved tensors, and attributes that the forward sets for the backward."""

    needs_input_grad: tuple[bool, ...]
    saved_tensors: tuple[Tensor, ...]

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...
    def __getattr__(self, name: str) -> Any: ...
    def __setattr__(self, name: str, value: object) -> None: ...


class DeferredReads:
    """Deferred reads: device tensors with callbacks for their values.

    >>> awaited, heard = DeferredReads(), []
    >>> awaited.add(torch.tensor([1.0, 2.0]), lambda numbers: heard.append(numbers.sum()))
    >>> awaited.read_pending(); float(heard[0])
    3.0
    """

    def __init__(self) -> None:
        self._pending: list[tuple[Tensor, Callable[[FloatArray], None]]] = []

    def add(self, tensor: Tensor, callback: Callable[[FloatArray], None]) -> None:
        """Register a callback for a tensor's flat values, called by :meth:`read_pending`."""
        self._pending.append((tensor.detach(), callback))

    def read_pending(self) -> None:
        """Read every pending tensor, then run the callbacks in registration order."""
        pending, self._pending = self._pending, []
        for (_, callback), numbers in zip(pending, read_tensors([tensor for tensor, _ in pending]), strict=True):
            callback(numbers)


def device_name(device: torch.device) -> str:
    """Return the device name reported by its driver; "" for a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def reset_peak_memory(device: torch.device) -> None:
    """Reset the counter behind :func:`peak_memory`."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int | None:
    """Return the peak tensor memory since :func:`reset_peak_memory`, in bytes; None for a CPU.

    The CPU allocator does not count.
    """
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def half_matmul(a_TK: Tensor, b_KN: Tensor) -> Tensor:
    """Multiply half-precision matrices on a GPU, with accumulation and result in float32."""
    return torch.mm(a_TK, b_KN, out_dtype=torch.float32)


def keep_freed_memory() -> bool:
    """Configure glibc to reuse freed memory; return whether it worked. Other C libraries stay unchanged.

    A CPU forward frees and allocates megabytes many times. By default, the C library returns such blocks at once, and
    the kernel provides new zeroed pages each time. That costs as much as the arithmetic of a small model.
    """
    if platform.system() != "Linux" or platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(M_MMAP_THRESHOLD, 2**30)) and bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
