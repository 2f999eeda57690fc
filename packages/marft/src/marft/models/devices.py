"""Transfers between CPU and device: asynchronous sends, batched reads, and device-specific operations.

A device executes queued operations while the CPU queues more. Reading a number back waits for all of them. Therefore
loops read rarely and in one transfer: once per decoding step, and once per minibatch before the optimizer step.
"""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

FloatArray = npt.NDArray[np.float64]
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt(3)


def is_on_cpu(tensor: Tensor) -> bool:
    """Return whether a tensor resides in CPU memory, with free reads."""
    return tensor.device.type == "cpu"


def to_device(values: npt.NDArray[np.generic], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """Copy an array to a device without waiting for the device."""
    tensor = torch.from_numpy(values)
    return tensor.to(device, dtype or tensor.dtype, non_blocking=True)


def read_tensors(tensors: Sequence[Tensor]) -> list[FloatArray]:
    """Read several tensors as flat float64 arrays, in a single transfer.

    >>> [numbers.tolist() for numbers in read_tensors([torch.tensor([1, 2]), torch.tensor(0.5)])]
    [[1.0, 2.0], [0.5]]
    """
    if not tensors:
        return []
    flat = torch.cat([tensor.detach().flatten().double() for tensor in tensors]).cpu().numpy()
    return np.split(flat, np.cumsum([tensor.numel() for tensor in tensors])[:-1])


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
