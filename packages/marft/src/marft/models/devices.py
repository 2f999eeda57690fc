"""Between the host and a device: what is sent without waiting, what is read at once, and where a GPU goes another way.

A device works through what it was asked for while the host goes on asking. Whoever reads a number back waits for all of
it, so loops read seldom, and everything at once: a step of decoding once, a minibatch once before it steps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Floats = npt.NDArray[np.float64]


def on_host(tensor: Tensor) -> bool:
    """Whether a tensor is in the host's memory and computed with by its processor: reading it costs nothing."""
    return tensor.device.type == "cpu"


def sent(values: npt.NDArray[np.generic], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
    """An array on a device, as it is now; what the device still computes is not waited for."""
    tensor = torch.from_numpy(values)
    return tensor.to(device, dtype or tensor.dtype, non_blocking=True)


def read_all(tensors: Sequence[Tensor]) -> list[Floats]:
    """The numbers of several tensors, flat, in float64: all in one transfer.

    >>> [numbers.tolist() for numbers in read_all([torch.tensor([1, 2]), torch.tensor(0.5)])]
    [[1.0, 2.0], [0.5]]
    """
    if not tensors:
        return []
    flat = torch.cat([tensor.detach().flatten().double() for tensor in tensors]).cpu().numpy()
    return np.split(flat, np.cumsum([tensor.numel() for tensor in tensors])[:-1])


class Awaited:
    """Numbers that a device will have, and what is to be done with them once they are read.

    >>> awaited, heard = Awaited(), []
    >>> awaited.add(torch.tensor([1.0, 2.0]), lambda numbers: heard.append(numbers.sum()))
    >>> awaited.read(); float(heard[0])
    3.0
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[Tensor, Callable[[Floats], None]]] = []

    def add(self, tensor: Tensor, then: Callable[[Floats], None]) -> None:
        """Have ``then`` told the numbers of a tensor, flat, when they are read."""
        self._waiting.append((tensor.detach(), then))

    def read(self) -> None:
        """Read all, and tell of each in the order in which they were added."""
        waiting, self._waiting = self._waiting, []
        for (_, then), numbers in zip(waiting, read_all([tensor for tensor, _ in waiting]), strict=True):
            then(numbers)


def reported_name(device: torch.device) -> str:
    """What the driver of a device calls it; "" of a processor."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else ""


def forget_peak_memory(device: torch.device) -> None:
    """From here on :func:`peak_memory` counts anew."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_memory(device: torch.device) -> int | None:
    """The most bytes that tensors had there at any time since :func:`forget_peak_memory`; None of a processor, whose
    allocator does not count."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None


def half_product(a_TK: Tensor, b_KN: Tensor) -> Tensor:
    """A GPU's product of matrices in half precision that is added up, and stays, in float32."""
    return torch.mm(a_TK, b_KN, out_dtype=torch.float32)
