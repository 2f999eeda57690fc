"""``torch.cuda`` of a machine with one GPU: queries, streams, events, memory numbers and graphs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import torch

from tests.simulated_gpu.counts import capturable, record_launch, set_sync_debug_mode
from tests.simulated_gpu.tensors import CPU, MEMORY, RECORDER, Recorder, synchronize

TOTAL_MEMORY = 80 * 2**30
NAME = "Simulated GPU"


class Stream:
    """Stream; all work of the simulated GPU is done in order."""

    def __init__(self, *_: object, **__: object) -> None:
        self.device = torch.device("cuda", 0)

    def synchronize(self) -> None:
        """Wait for the stream's work."""
        synchronize("stream.synchronize")

    def wait_stream(self, stream: Stream) -> None:
        """Let this stream wait for another one."""

    def wait_event(self, event: Event) -> None:
        """Let this stream wait for an event."""

    def record_event(self, event: Event | None = None) -> Event:
        """Record an event on the stream."""
        event = event or Event()
        event.record(self)
        return event

    def query(self) -> bool:
        """Return whether all work is done."""
        return True


class Event:
    """Event; times are those of the host."""

    def __init__(self, *_: object, **__: object) -> None:
        self.time = 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Record the event."""
        self.time = time.perf_counter()

    def synchronize(self) -> None:
        """Wait for the event."""
        synchronize("event.synchronize")

    def wait(self, stream: Stream | None = None) -> None:
        """Let a stream wait for the event."""

    def query(self) -> bool:
        """Return whether the event has happened."""
        return True

    def elapsed_time(self, other: Event) -> float:
        """Return the milliseconds until another event."""
        return 1000 * (other.time - self.time)


class CUDAGraph:
    """Recorded kernels. A replay runs them on the same tensors, as one launch."""

    def __init__(self, *_: object, **__: object) -> None:
        self.recorder = Recorder()
        self._region: AbstractContextManager[None] = nullcontext()

    def capture_begin(self, *_: object, **__: object) -> None:
        """Begin the capture: from here on, kernels are recorded and do not run."""
        self._region = capturable()
        self._region.__enter__()
        RECORDER.append(self.recorder)

    def capture_end(self) -> None:
        """End the capture."""
        RECORDER.remove(self.recorder)
        self._region.__exit__(None, None, None)

    def replay(self) -> None:
        """Run the recorded kernels."""
        record_launch("graph replay")
        with torch.no_grad():
            for kernel in self.recorder.kernels:
                kernel()

    def reset(self) -> None:
        """Delete the recorded kernels."""
        self.recorder.kernels.clear()

    def pool(self) -> tuple[int, int]:
        """Return the memory pool of the graph."""
        return (0, id(self))


@contextmanager
def graph(cuda_graph: CUDAGraph, *_: object, **__: object) -> Iterator[None]:
    """Capture what the context does, as ``torch.cuda.graph``."""
    synchronize("torch.cuda.graph")
    cuda_graph.capture_begin()
    try:
        yield
    finally:
        cuda_graph.capture_end()


_default_stream = Stream()


def _memory_stats(*_: object) -> dict[str, int]:
    return {"allocated_bytes.all.current": MEMORY.allocated, "allocated_bytes.all.peak": MEMORY.peak}


def _reset_peak(*_: object) -> None:
    MEMORY.peak = MEMORY.allocated


def _constant(value: object) -> Callable[..., Any]:
    return lambda *_, **__: value


def replacements() -> dict[str, Any]:
    """Return the members of ``torch.cuda`` to replace, by name."""
    properties = SimpleNamespace(
        name=NAME,
        total_memory=TOTAL_MEMORY,
        major=9,
        minor=0,
        multi_processor_count=132,
        warp_size=32,
        uuid="simulated",
    )
    return {
        **dict.fromkeys(("_lazy_init", "init", "set_device", "empty_cache", "set_stream", "ipc_collect", "manual_seed",
                         "manual_seed_all", "seed", "set_rng_state", "reset_accumulated_memory_stats",
                         "set_per_process_memory_fraction"), _constant(None)),
        **dict.fromkeys(("is_available", "is_initialized", "is_bf16_supported"), _constant(True)),
        "_is_in_bad_fork": _constant(False), "device_count": _constant(1), "current_device": _constant(0),
        "get_device_name": _constant(NAME), "get_device_capability": _constant((9, 0)),
        "get_device_properties": _constant(properties), "get_rng_state": lambda *_: torch.zeros(16, dtype=torch.uint8, device=CPU),
        "mem_get_info": lambda *_: (TOTAL_MEMORY - MEMORY.allocated, TOTAL_MEMORY),
        **dict.fromkeys(("memory_allocated", "memory_reserved"), lambda *_: MEMORY.allocated),
        **dict.fromkeys(("max_memory_allocated", "max_memory_reserved"), lambda *_: MEMORY.peak),
        **dict.fromkeys(("reset_peak_memory_stats", "reset_max_memory_allocated"), _reset_peak),
        "memory_stats": _memory_stats, "synchronize": lambda *_: synchronize("torch.cuda.synchronize"),
        **dict.fromkeys(("current_stream", "default_stream"), _constant(_default_stream)),
        **dict.fromkeys(("stream", "device"), lambda *_: nullcontext()), "Stream": Stream, "Event": Event,
        "CUDAGraph": CUDAGraph, "graph": graph, "graph_pool_handle": _constant((0, 0)),
        "set_sync_debug_mode": set_sync_debug_mode,
        "is_current_stream_capturing": lambda: bool(RECORDER),
    }  # fmt: skip
