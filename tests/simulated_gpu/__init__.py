"""A simulated GPU: tensors on "cuda:0" that compute on the CPU, with counts of launches, copies and synchronizations.

Code under test takes its CUDA branches: ``torch.cuda`` answers as on a machine with one GPU, and operations that mix
devices raise as on CUDA. Use it in tests and scripts::

    with simulated_gpu():
        model.to("cuda")
        with counting("decode step") as counts:
            step()
        assert counts.num_syncs <= 1, counts.report()   # the report names the lines

``with capturable():`` marks code for a CUDA graph: inside, every synchronization and every copy from or to the host
raises :class:`CaptureError` with its line, as stream capture does. ``torch.cuda.CUDAGraph`` and ``torch.cuda.graph``
work too: a capture records kernels without running them, outputs hold NaN or 0 until :meth:`CUDAGraph.replay`, and a
replay counts as one launch. ``python -m tests.simulated_gpu script.py arguments…`` runs a script on the simulated GPU.

What counts: one launch for each dispatched operation that computes (views, empty tensors and metadata are free; a
``_foreach`` operation and ``cat`` have the kernels of PyTorch's own limits), so launches are a lower bound. A blocking
copy to the device is a synchronization, as in PyTorch. A ``non_blocking`` copy to the host is none, and its target
holds NaN or 0 until the next synchronization.

Why not another way: a CPU build of PyTorch cannot run autograd on a tensor that is "cuda" in C++, and a PrivateUse1
backend cannot take that name. So tensors are on "meta:0" in C++, and Python sees "cuda:0". Backward passes run in the
calling thread. Tensors of ``torch.inference_mode`` are ordinary tensors.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest import mock

import torch
from torch.utils import _foreach_utils
from torch.utils._python_dispatch import _disable_current_modes
from transformers import PreTrainedModel

from tests.simulated_gpu.counts import CaptureError, Counts, capturable, counting
from tests.simulated_gpu.cuda import replacements
from tests.simulated_gpu.tensors import CPU, CUDA, INNER, SimulatedTensor, asleep, modes

with suppress(ImportError):
    import bitsandbytes  # noqa: F401  it chooses its backends when it is first imported, by whether there is a GPU

__all__ = ["CPU", "CUDA", "CaptureError", "Counts", "SimulatedTensor", "capturable", "counting", "simulated_gpu"]


@contextmanager
def simulated_gpu() -> Iterator[None]:
    """Simulate one GPU inside the context, in this thread and in all threads that start inside."""
    kinds = [*_foreach_utils._get_foreach_kernels_supported_devices(), INNER.type]
    with ExitStack() as stack:
        for name, value in replacements().items():
            stack.enter_context(mock.patch.object(torch.cuda, name, value))
        stack.enter_context(mock.patch.object(PreTrainedModel, "from_pretrained", _on_the_host()))
        # a tensor of inference mode cannot be held by another tensor
        stack.enter_context(mock.patch.object(torch.inference_mode, "__enter__", torch.no_grad.__enter__))
        stack.enter_context(mock.patch.object(torch.inference_mode, "__exit__", torch.no_grad.__exit__))
        stack.enter_context(
            mock.patch.object(_foreach_utils, "_get_foreach_kernels_supported_devices", return_value=kinds)
        )
        stack.enter_context(mock.patch.object(threading.Thread, "start", _start_with_modes(threading.Thread.start)))
        stack.enter_context(modes())
        yield


def _on_the_host() -> Any:
    """Return ``from_pretrained`` without modes: transformers begins with "meta" tensors that hold nothing."""
    load = PreTrainedModel.from_pretrained.__func__  # type: ignore[attr-defined]

    def from_pretrained(cls: type[PreTrainedModel], *args: Any, **kwargs: Any) -> Any:
        with _disable_current_modes(), asleep():
            return load(cls, *args, **kwargs)

    return classmethod(from_pretrained)


def _start_with_modes(start: Any) -> Any:
    """Return ``Thread.start`` with both modes in the new thread."""

    def start_with_modes(thread: threading.Thread) -> None:
        run = thread.run

        def run_with_modes() -> None:
            with modes():
                run()

        thread.run = run_with_modes  # type: ignore[method-assign]
        start(thread)

    return start_with_modes
