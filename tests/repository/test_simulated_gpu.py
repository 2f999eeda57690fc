"""The simulated GPU answers, counts and refuses as CUDA does."""

from __future__ import annotations

import copy
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from tests.simulated_gpu import CaptureError, capturable, counting, simulated_gpu

Values = Callable[[Tensor], object]
SYNCS: list[tuple[Values, str]] = [
    (lambda x: x.sum().item(), "copy to host"), (lambda x: bool((x > 0).all()), "copy to host"),
    (lambda x: x.tolist(), "copy to host"), (lambda x: x.cpu(), "copy to host"), (lambda x: x[x > 0], "index by a mask"),
    (lambda x: x.nonzero(), "nonzero"), (lambda x: x[[0, 1]], "copy to device"),
    (lambda x: torch.ones(3).to(x.device), "copy to device"), (lambda x: torch.ones(3).cuda(), "copy to device"),
    (lambda x: torch.tensor([1.0], device=x.device), "copy to device"), (lambda x: x[torch.tensor([0])], "copy to device"),
    (lambda x: x.repeat_interleave(torch.arange(3, device="cuda")), "repeat_interleave"),
    (lambda x: torch.equal(x, x), "equal"), (lambda x: torch.cuda.synchronize(), "torch.cuda.synchronize"),
]  # fmt: skip
FREE: list[Values] = [
    lambda x: x.view(3, 1)[0].t().detach(), lambda x: torch.empty(7, device="cuda"), lambda x: x.split([1, 2]),
    lambda x: x.to("cuda"), lambda x: x[:0] + 1,
]  # fmt: skip
MISTAKES: list[Values] = [
    lambda x: x + torch.ones(3), lambda x: torch.cat([x, torch.ones(1)]), lambda x: torch.ones(3) @ x,
    lambda x: x.index_add(0, torch.tensor([0]), torch.ones(1, device="cuda")),
]  # fmt: skip


@pytest.fixture(autouse=True)
def gpu() -> Iterator[None]:
    with simulated_gpu():
        yield


@pytest.mark.parametrize(("code", "sync"), SYNCS)
def test_a_synchronization_is_counted_with_its_line_and_refused_in_a_capture(code: Values, sync: str) -> None:
    x = torch.ones(3, device="cuda")
    with counting("code") as counts:
        code(x)
    assert [line.partition(" at ")[0] for line in counts.syncs] == [sync]
    assert all("test_simulated_gpu.py:" in line for line in counts.syncs)
    with capturable(), pytest.raises(CaptureError, match=rf"{sync} at .*test_simulated_gpu.py:\d+: not permitted"):
        code(x)


@pytest.mark.parametrize("code", FREE)
def test_views_and_empty_tensors_launch_nothing(code: Values) -> None:
    x = torch.ones(3, device="cuda")
    with counting("code") as counts:
        code(x)
    assert not counts.num_launches, counts.report()


@pytest.mark.parametrize("mistake", MISTAKES)
def test_tensors_of_the_host_are_refused(mistake: Values) -> None:
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu"):
        mistake(torch.ones(3, device="cuda"))


def test_numpy_is_refused_and_single_numbers_of_the_host_are_not() -> None:
    with pytest.raises(TypeError, match="can't convert cuda:0 device type tensor to numpy"):
        np.asarray(torch.ones(3, device="cuda"))
    assert (torch.ones(2, device="cuda") * torch.tensor(3.0)).tolist() == [3.0, 3.0]


def test_a_gradient_is_computed_without_a_synchronization() -> None:
    x = torch.ones(3, device="cuda", requires_grad=True)
    with counting("gradient") as counts:
        weights = torch.from_numpy(np.ones(3, np.float32)).to("cuda", non_blocking=True)
        with capturable():
            (x.cumsum(0) @ weights).backward()
    assert (counts.num_syncs, counts.to_device.number, counts.to_device.bytes) == (0, 1, 12)
    assert x.grad is not None
    assert x.grad.tolist() == [3.0, 2.0, 1.0]


def test_a_graph_runs_when_it_is_replayed() -> None:
    x, graph = torch.zeros(2, device="cuda"), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        doubled = x * 2 + 1
        x.add_(1)
    assert (x.tolist(), str(doubled.tolist())) == ([0.0, 0.0], "[nan, nan]")
    with counting("replay") as counts:
        graph.replay()
        graph.replay()
    assert counts.num_launches == 2
    assert (x.tolist(), doubled.tolist()) == ([2.0, 2.0], [3.0, 3.0])


def test_a_capture_refuses_a_synchronization() -> None:
    x = torch.zeros(2, device="cuda")
    with pytest.raises(CaptureError), torch.cuda.graph(torch.cuda.CUDAGraph()):
        x.sum().item()
    assert x.sum().item() == 0.0


def test_a_copy_to_the_host_that_does_not_block_arrives_at_the_next_synchronization() -> None:
    with counting("copy") as counts:
        here = torch.arange(1, 3, device="cuda").to("cpu", non_blocking=True)
    assert (here.tolist(), here.is_pinned(), counts.num_syncs, counts.to_host.bytes) == ([0, 0], True, 0, 16)
    torch.cuda.synchronize()
    assert here.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("dtype", "mask", "kernels"), [("bfloat16", False, 1), ("float32", False, 1), ("float32", True, 1)]
)
def test_attention_is_one_kernel(dtype: str, mask: bool, kernels: int) -> None:
    q, k, v = (torch.randn(1, 2, 5, 8, dtype=getattr(torch, dtype)) for _ in range(3))
    visible = torch.ones(5, 5).tril().log().to(q.dtype) if mask else None
    here = scaled_dot_product_attention(q, k, v, attn_mask=visible, is_causal=not mask)
    sent = [x if x is None else x.to("cuda") for x in (q, k, v, visible)]
    with counting("attention") as counts:
        there = scaled_dot_product_attention(*sent, is_causal=not mask)  # type: ignore[arg-type]
    assert counts.num_launches == kernels
    torch.testing.assert_close(there.cpu(), here, rtol=2e-2, atol=1e-2)


def test_modules_copies_and_threads_stay_on_the_device() -> None:
    layer = torch.nn.Linear(3, 3).to("cuda")
    found = [copy.deepcopy(layer).weight.device]
    thread = threading.Thread(target=lambda: found.append(torch.zeros(2, device="cuda").device))
    thread.start()
    thread.join()
    assert found == [torch.device("cuda", 0)] * 2
    assert layer.weight.is_cuda


def test_a_host_tensor_in_the_shape_of_one_of_the_device_is_on_the_host() -> None:
    assert not torch.empty_like(torch.zeros(3, device="cuda"), device="cpu").is_cuda
    assert torch.zeros_like(torch.zeros(3), device="cuda").is_cuda


def test_memory_is_counted_by_storage() -> None:
    before = torch.cuda.memory_allocated()
    x = torch.zeros(100, device="cuda")
    views = x.view(10, 10)[3:]
    assert torch.cuda.memory_allocated() - before == 400
    del x
    assert torch.cuda.memory_allocated() - before == 400
    del views
    assert torch.cuda.memory_allocated() == before
    assert torch.cuda.max_memory_allocated() >= before + 400


def test_many_small_tensors_share_a_kernel() -> None:
    tensors = [torch.zeros(4, device="cuda") for _ in range(250)]
    with counting("foreach") as counts:
        torch._foreach_add_(tensors, 1.0)
    assert counts.launches == {"_foreach_add_": 3}  # 110 tensors each
    assert tensors[249].tolist() == [1.0] * 4


@pytest.mark.slow
def test_a_script_runs_on_the_device(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text("import sys, torch\nprint(torch.ones(2, device=sys.argv[1]).sum().item())")
    command = [sys.executable, "-m", "tests.simulated_gpu", str(script), "cuda"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == "2.0\n"
    assert "2 launches, 1 synchronizations" in done.stderr
