"""What ranks do over ``torch.distributed``: sums of gradients, and where they meet. Sends are played by threads here."""

from __future__ import annotations

import fcntl
import os
import socket
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from marft.trainer.ranks import group
from marft.trainer.ranks.devices import select_device
from marft.trainer.ranks.group import INTERFACE, RankGroup, RankSubgroup, find_interface
from tests.helpers import settings
from tests.marft.trainer import test_ranks
from tests.marft.trainer.test_ranks import Member
from tests.satellites import NEEDS_LAB

linux = pytest.mark.skipif(not Path("/sys/class/net").is_dir(), reason="interfaces are asked of Linux")


class Process:
    """A process group of threads."""

    def __init__(self, member: Member) -> None:
        self.member = member

    def rank(self) -> int:
        return self.member.rank

    def size(self) -> int:
        return self.member.count


def all_reduce(flat: Tensor, op: Any = dist.ReduceOp.SUM, group: Process | None = None) -> None:
    assert group is not None
    parts = torch.stack(group.member.gather(flat.clone()))
    flat.copy_(parts.sum(0) if op == dist.ReduceOp.SUM else parts.mean(0))


@pytest.mark.parametrize("bucket", [2, 100])
def test_gradients_are_sums_over_ranks_also_where_one_has_none_whatever_is_sent_together(
    bucket: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An agent without rows on a rank has no gradient there."""
    monkeypatch.setattr(group, "BUCKET", bucket)
    monkeypatch.setattr(dist, "all_reduce", all_reduce)

    def summed(member: Member) -> Any:
        sizes = {"a": (2, 2), "b": (3,), "c": (1,)}
        parameters = {name: nn.Parameter(torch.zeros(size)) for name, size in sizes.items()}
        for name, parameter in parameters.items():
            if not (name == "b" and member.rank == 1) and name != "c":
                parameter.grad = torch.full_like(parameter, 1.0 + member.rank)
        RankSubgroup(cast(Any, Process(member)), torch.device("cpu")).sum_gradients(parameters.values())
        return [p.grad.tolist() for p in parameters.values() if p.grad is not None]

    assert test_ranks.together(3, summed) == [[[[6.0, 6.0], [6.0, 6.0]], [4.0, 4.0, 4.0], [0.0]]] * 3


def test_who_does_not_learn_on_a_model_is_not_among_those_that_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group of one process: it learns on one model, on another with all, and on the third not at all. Nobody is waited
    for beyond the patience, in any of them."""
    waited: list[timedelta] = []
    for name in ("init_process_group", "new_group"):
        real = getattr(dist, name)

        def noted(*words: Any, real: Any = real, **more: Any) -> Any:
            waited.append(more["timeout"])
            return real(*words, **more)

        monkeypatch.setattr(dist, name, noted)
    made = RankGroup(str(tmp_path / "meeting"), 0, 1, torch.device("cpu"), 10.0, {"mine": [0]})
    try:
        assert waited == [timedelta(seconds=10)] * 2
        mine = made.on("mine")
        assert mine is not None
        assert (mine is made, mine.count, made.on("any") is made) == (False, 1, True)
        made._subgroups["others"] = None
        assert made.on("others") is None
        assert made.mesh_of("others") is None
        assert dist.get_backend() == "gloo"
    finally:
        for _ in range(2):  # ranks that were lost again while they were started again had been left before
            made.close()
    assert not dist.is_initialized()


def test_a_meeting_that_fails_leaves_room_for_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist, "new_group", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("Connection closed")))
    with pytest.raises(RuntimeError, match="Connection closed"):
        RankGroup(str(tmp_path / "meeting"), 0, 1, torch.device("cpu"), 10.0, {"mine": [0]})
    assert not dist.is_initialized()


@pytest.mark.parametrize("said", ["", "given"])
def test_the_environment_says_where_they_meet_and_is_left_as_it_was(
    said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next meeting of this process may be on another interface."""
    found: list[str | None] = []
    monkeypatch.setattr(group, "find_interface", lambda _: "found")
    monkeypatch.setenv(INTERFACE, said) if said else monkeypatch.delenv(INTERFACE, raising=False)
    with group._use_interface("tcp://10.0.0.1:7"):
        found.append(os.environ.get(INTERFACE))
    assert found == [said or ("found" if Path("/proc").is_dir() else None)]
    assert os.environ.get(INTERFACE, "") == said


@linux
def test_ranks_on_one_machine_meet_where_nobody_else_is_and_others_on_the_interface_that_leads_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    addresses = {"lo": "127.0.0.9", "wlan0": "", "eth7": "127.0.0.1"}

    def ioctl(_: object, __: int, asked: bytes) -> bytes:
        address = addresses[asked.rstrip(b"\0").decode()]
        if not address:
            raise OSError(99, "Cannot assign requested address")
        return bytes(20) + socket.inet_aton(address) + bytes(232)

    monkeypatch.setattr(fcntl, "ioctl", ioctl)
    monkeypatch.setattr(socket, "if_nameindex", lambda: list(enumerate(addresses, 1)))
    assert find_interface("/tmp/meeting 1") == "lo"
    assert find_interface("tcp://127.0.0.1:7") == "eth7"


@pytest.mark.parametrize(
    ("device", "ranks", "found"),
    [("cuda", 2, ["cuda:0", "cuda:1"]), ("cuda:1", 3, ["cuda:1", "cuda:2", "cuda:3"]), ("cuda:2", 3, None), ("cpu", 9, ["cpu"] * 9)],
)  # fmt: skip
def test_each_rank_has_a_gpu_of_its_own_from_the_runs_on(
    device: str, ranks: int, found: list[str] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marft.trainer.ranks.devices.pick_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    run = settings("tiny", tmp_path, "--training.ranks", str(ranks)).model_copy(update={"device": device})
    if found is None:
        with pytest.raises(ValueError, match=r"^training.ranks = 3: .* from cuda:2 on, and there are 4; lower it$"):
            select_device(run, ranks - 1)
    else:
        assert [select_device(run, rank) for rank in range(ranks)] == found


@NEEDS_LAB
def test_the_run_on_a_cluster_has_the_device_that_its_recipe_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marft.trainer.ranks.devices.pick_device", torch.device)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    run = settings("tiny", tmp_path, "--training.ranks", "3", "--cluster.learner.cpus", "1")
    there = run.model_copy(update={"device": "cuda:1"})
    assert [select_device(there, rank) for rank in range(3)] == ["cuda:1", "cuda:0", "cuda:0"]
