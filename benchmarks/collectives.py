"""Check which collectives ``fully_shard`` uses, and whether gloo supports them on this machine's processors.

    python benchmarks/collectives.py

The script starts groups of 1, 2, 3 and 4 processes. It calls every collective of FSDP2, with the same reductions and
types, and checks the results. It records which collectives a sharded forward and backward pass calls. It also checks
that all ranks get the same bits of a sum. The run takes half a minute. Writes results/collectives.json and .md.
"""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as processes
from machine import RESULTS, describe, save
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from marft.trainer.ranks.group import RankGroup

COUNTS = (1, 2, 3, 4)
SIZE = 12  # numbers per rank; divisible by every count
MISSING = "—"
TYPES = (torch.float32, torch.bfloat16, torch.uint8)
WATCHED = ("all_gather_single", "reduce_scatter_single", "all_reduce", "broadcast")


def main() -> None:
    rows: dict[str, dict[str, str]] = {}
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as folder:
            processes.spawn(rank, (count, folder), count)  # type: ignore[attr-defined, no-untyped-call]
            for name, said in torch.load(Path(folder) / "found").items():
                rows.setdefault(name, {})[str(count)] = said
    save("collectives", {"machine": describe(), "rows": rows})
    lines = ["| what is asked of gloo | " + " | ".join(f"{n} ranks" for n in COUNTS) + " |", "| --- |" + " --- |" * 4]
    lines += [f"| {name} | " + " | ".join(said[str(n)] for n in COUNTS) + " |" for name, said in rows.items()]
    text = "\n".join(lines) + "\n"
    (RESULTS / "collectives.md").write_text(text)
    print(text)


def rank(number: int, count: int, folder: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    group = RankGroup(str(Path(folder) / "meeting"), number, count, torch.device("cpu"), 30.0)
    found = {name: attempt(ask) for name, ask in asked(number, count).items()}
    found |= sharded(number, count) | {"the same bits of a sum everywhere": same_bits(group)}
    if number == 0:
        torch.save(found, Path(folder) / "found")
    group.close()


def asked(number: int, count: int) -> dict[str, Callable[[], bool]]:
    """Return the checks by collective, each called as in FSDP2. A check returns True if the result is right."""
    asks: dict[str, Callable[[], bool]] = {}
    sums = {"SUM": dist.ReduceOp.SUM, "AVG": dist.ReduceOp.AVG}
    for dtype in TYPES:
        mine = [(torch.arange(SIZE) + rank).to(dtype) for rank in range(count)]
        name = str(dtype).removeprefix("torch.")
        asks[f"all_gather_single, {name}"] = partial(_gathered, mine, number)
        for word, op in sums.items() if dtype != torch.uint8 else ():  # bytes are only gathered
            asks[f"reduce_scatter_single, {word}, {name}"] = partial(_scattered, mine, number, op)
    floats = [torch.arange(SIZE) + float(rank) for rank in range(count)]
    for word, op in sums.items():
        asks[f"all_reduce, {word}, float32"] = partial(_reduced, floats, number, op)
    asks["reduce_scatter_single, PREMUL_SUM, float32"] = lambda: _scattered(
        floats, number, dist.ReduceOp.PREMUL_SUM(0.5), 0.5
    )
    asks["all_reduce, PREMUL_SUM, float32"] = lambda: _reduced(floats, number, dist.ReduceOp.PREMUL_SUM(0.5), 0.5)
    return asks


def attempt(ask: Callable[[], bool]) -> str:
    try:
        return "right" if ask() else "**wrong**"
    except (RuntimeError, AttributeError, ValueError) as error:
        return f"{MISSING} {str(error).splitlines()[0][:60]}"


def sharded(number: int, count: int) -> dict[str, str]:
    """Check the gradients of a sharded model for each way of dividing them, and list the collectives called."""
    calls: dict[str, int] = {}

    def watched(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **named: Any) -> Any:
            calls[name] = calls.get(name, 0) + 1
            return original(*arguments, **named)

        return call

    before = {name: getattr(dist, name) for name in WATCHED}
    for name, original in before.items():
        setattr(dist, name, watched(name, original))
    try:
        found = {f"fully_shard, {how}": attempt(partial(_trains, number, count, how)) for how in WAYS}
    finally:
        for name, original in before.items():
            setattr(dist, name, original)
    return found | {"called by fully_shard": ", ".join(sorted(calls)) or "nothing"}


WAYS = ("mean (as it comes)", "sum by set_gradient_divide_factor(1)", "sum, set_force_sum_reduction_for_comms too")


def _trains(number: int, count: int, how: str) -> bool:
    torch.manual_seed(0)
    layers = [nn.Linear(5, 7), nn.Linear(7, 3)]
    rows = torch.randn(count, 2, 5)
    right = [torch.zeros_like(p) for layer in layers for p in layer.parameters()]
    for batch in rows:
        made = layers[1](layers[0](batch)).square().sum()
        grads = torch.autograd.grad(made, [p for layer in layers for p in layer.parameters()])
        for total, grad in zip(right, grads, strict=True):
            total += grad / (count if how == WAYS[0] else 1)
    model: Any = nn.Sequential(*layers)
    mesh = init_device_mesh("cpu", (count,))
    for module in (*layers, model):
        made_of: Any = fully_shard(module, mesh=mesh)
        if how != WAYS[0]:
            made_of.set_gradient_divide_factor(1.0)
        if how == WAYS[2]:
            made_of.set_force_sum_reduction_for_comms(True)
    model(rows[number]).square().sum().backward()
    found = [p.grad.full_tensor() for p in model.parameters()]
    return all(torch.allclose(a, b, rtol=1e-5, atol=1e-6) for a, b in zip(found, right, strict=True))


def _gathered(mine: list[Tensor], number: int) -> bool:
    out = torch.empty(SIZE * len(mine), dtype=mine[0].dtype)
    dist.all_gather_single(out, mine[number])
    return torch.equal(out, torch.cat(mine))


def _scattered(mine: list[Tensor], number: int, op: Any, factor: float = 1.0) -> bool:
    out = torch.empty(SIZE // len(mine), dtype=mine[0].dtype)
    dist.reduce_scatter_single(out, mine[number], op=op)
    return torch.allclose(out.float(), _total(mine, op, factor).chunk(len(mine))[number], rtol=1e-2)


def _reduced(mine: list[Tensor], number: int, op: Any, factor: float = 1.0) -> bool:
    out = mine[number].clone()
    dist.all_reduce(out, op=op)
    return torch.allclose(out, _total(mine, op, factor))


def _total(mine: list[Tensor], op: Any, factor: float) -> Tensor:
    total = torch.stack([part.float() for part in mine]).sum(0) * factor
    return total / len(mine) if op == dist.ReduceOp.AVG else total


def same_bits(group: RankGroup) -> str:
    """Check that all ranks get the same bits of sums of random numbers.

    Different rounding would show in one of the sizes.
    """
    generator = torch.Generator().manual_seed(group.rank)
    for size in (1, 3, 1000, 100_003):
        out = torch.randn(size, generator=generator)
        dist.all_reduce(out)
        if len(set(group.gather(out.numpy().tobytes()))) > 1:
            return "**no**"
    return "yes"


if __name__ == "__main__":
    main()
