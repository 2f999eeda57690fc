"""CUDA graphs: GPU work that is captured once and replayed with one launch, without Python."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch

Work = Callable[[], None]


class Graphs(Protocol):
    """Captured graphs of a device, which share memory."""

    def capture(self, work: Work) -> Work:
        """Capture ``work``; return a function that replays it. Capturing may run ``work`` any number of times."""

    def reset(self) -> None:
        """Prepare for new graphs after all graphs have been deleted."""


class CudaGraphs:
    """Graphs of a CUDA device with a shared memory pool.

    A graph contains no copies from or to the host and no synchronization. It reads and writes tensors at their
    addresses during the capture, so these tensors must stay alive and in place.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._pool = torch.cuda.graph_pool_handle()

    def capture(self, work: Work) -> Work:
        """Run ``work`` once on a side stream, which loads libraries and chooses kernels, then capture it."""
        current, side = torch.cuda.current_stream(self.device), torch.cuda.Stream(self.device)
        side.wait_stream(current)
        with torch.cuda.stream(side):
            work()
        current.wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        # other threads may allocate GPU memory meanwhile
        with torch.cuda.graph(graph, pool=self._pool, stream=side, capture_error_mode="thread_local"):
            work()
        return graph.replay

    def reset(self) -> None:
        """Use a new memory pool: a pool ends with its last graph."""
        self._pool = torch.cuda.graph_pool_handle()
