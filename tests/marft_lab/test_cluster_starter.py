"""How processes are started on a cluster: what is asked for, what is given back, and whose loss is made up for. Ray is
played here."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from marft.common.errors import RunError
from marft.common.processes.launcher import LocalLauncher, NoResourcesError
from marft.config import RunSettings
from marft.config.sections import open_launcher
from marft_lab.cluster.settings import ClusterSettings
from tests.helpers import settings

pytest.importorskip("ray")

from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError

from marft_lab.cluster import launcher as room
from marft_lab.cluster.launcher import RayProcessLauncher
from marft_lab.cluster.relay import NodeInfo, read_node_info


class Cluster:
    """A cluster that notes what it is asked for, and has room or not."""

    def __init__(self, has_room: bool = True) -> None:
        self.did: list[object] = []
        self.asked: list[dict[str, Any]] = []
        self.has_room = has_room
        self.here: Callable[[], NodeInfo] = read_node_info
        self.get_node_ip_address = lambda: "10.0.0.1"
        self.util = self

    def placement_group(self, bundles: Sequence[object], strategy: str) -> Any:
        self.did.append((list(bundles), strategy))
        return SimpleNamespace(wait=lambda seconds: self.did.append(f"waited {seconds:g} s") or self.has_room)

    def remove(self, group: object) -> None:
        self.did.append("given back")

    def remote(self, **options: object) -> Callable[[object], Any]:
        return lambda of: self

    def options(self, **asked: Any) -> Cluster:
        self.asked.append(asked)
        return SimpleNamespace(remote=self.actor)  # type: ignore[return-value]

    def actor(self) -> Any:
        call = SimpleNamespace(remote=lambda *arguments: arguments)
        return SimpleNamespace(node_info=call, begin=call)

    def get(self, what: object, timeout: float) -> object:
        return self.here()

    def kill(self, actor: object) -> None:
        self.did.append("killed")

    def available_resources(self) -> dict[str, float]:
        return {"CPU": 0.5}

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 4.0}

    def nodes(self) -> list[dict[str, bool]]:
        return [{"Alive": True}, {"Alive": False}]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    monkeypatch.setattr(room, "ray", made)
    monkeypatch.setattr(room, "placement_group", made.placement_group)
    monkeypatch.setattr(room, "remove_placement_group", made.remove)
    monkeypatch.setattr(room, "connect", lambda *_: made.did.append("joined"))
    monkeypatch.setattr(room, "disconnect", lambda: made.did.append("left"))
    monkeypatch.setattr(room, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(
        room, "PlacementGroupSchedulingStrategy", lambda _, placement_group_bundle_index: placement_group_bundle_index
    )
    monkeypatch.setattr(room, "RemoteProcess", lambda name, actor, node, quiet: SimpleNamespace(name=name, node=node))
    return made


def run_of(output: Path, *overrides: str) -> RunSettings:
    return settings("tiny", output, "--cluster.start_timeout_seconds", "0.2", *overrides)


def opened(run: RunSettings, kind: Any = "worker", count: int = 2) -> RayProcessLauncher:
    cluster = run.section(ClusterSettings)
    assert cluster is not None
    return RayProcessLauncher(run, cluster, kind, count)


def nothing(_: int) -> Sequence[str]:
    return []


def test_a_place_for_each_is_asked_for_as_the_recipe_says_and_given_back(cluster: Cluster, tmp_path: Path) -> None:
    of_workers = ("--cluster.worker", "{ cpus = 2.0, memory_gb = 0.5, resources = { disk = 1.0 } }")
    run = run_of(tmp_path, *of_workers, "--cluster.learner.gpus", "1.0", "--cluster.strategy", "SPREAD")
    opened(run).close()
    opened(run, "learner", 1).close()
    of_worker, of_learner = {"CPU": 2.0, "memory": 2.0**29, "disk": 1.0}, {"CPU": 1.0, "GPU": 1.0}
    given_back = ["waited 0.2 s", "given back", "left"]
    assert cluster.did == [
        "joined", ([of_worker] * 2, "SPREAD"), *given_back, "joined", ([of_learner], "SPREAD"), *given_back,
    ]  # fmt: skip


def test_a_run_with_a_cluster_starts_its_processes_there_and_another_one_here(cluster: Cluster, tmp_path: Path) -> None:
    there = open_launcher(run_of(tmp_path, "--cluster.learner.cpus", "2.0"), "learner", 2, gpus=1.0)
    assert isinstance(there, RayProcessLauncher)
    assert cluster.did[1] == ([{"CPU": 2.0, "GPU": 1.0}] * 2, "PACK")
    assert isinstance(open_launcher(settings("tiny", tmp_path), "learner", 2, gpus=1.0), LocalLauncher)


def test_a_place_that_there_is_no_room_for_is_waited_for_no_more(cluster: Cluster, tmp_path: Path) -> None:
    cluster.has_room = False
    with pytest.raises(
        NoResourcesError, match=r"for 2 processes \(cluster.worker: 1 CPU; PACK\).*0.5 CPU of 4 CPU, on one"
    ):
        opened(run_of(tmp_path))
    assert cluster.did[2:] == ["waited 0.2 s", "given back", "left"]


def test_a_process_is_started_in_its_place_with_all_that_the_place_has(cluster: Cluster, tmp_path: Path) -> None:
    place = "{ cpus = 3.0, gpus = 0.5, memory_gb = 2.0, resources = { disk = 1.0 } }"
    run = run_of(tmp_path, "--cluster.engine", place)
    child = opened(run, "engine", 3).start("engine", nothing, slot=2)
    assert (child.name, child.node) == ("engine", read_node_info().node)
    assert cluster.asked == [
        {"num_cpus": 3.0, "num_gpus": 0.5, "memory": 2.0**31, "resources": {"disk": 1.0}, "scheduling_strategy": 2}
    ]


def test_one_whose_node_is_lost_before_it_has_begun_is_started_again_until_it_is_there(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Ray may put it on a node that it does not know yet to be lost."""
    losses = iter([RayActorError(), RayActorError()])

    def lost() -> NodeInfo:
        if error := next(losses, None):
            raise error
        return read_node_info()

    cluster.here = lost
    here = opened(run_of(tmp_path, "--cluster.start_timeout_seconds", "9"))
    assert here.start("worker 1", nothing, slot=1).name == "worker 1"
    assert [asked["scheduling_strategy"] for asked in cluster.asked] == [1, 1, 1]
    assert cluster.did[-2:] == ["killed", "killed"], "one that cannot be reached may still have its place"


def test_one_whose_node_is_lost_again_and_again_is_given_up_after_the_patience(
    cluster: Cluster, tmp_path: Path
) -> None:
    cluster.here = lambda: _raised(RayActorError())
    with pytest.raises(RunError, match=r"^worker 1: its actor cannot be had: The actor "):
        opened(run_of(tmp_path)).start("worker 1", nothing)
    assert len(cluster.asked) > 2


def test_nothing_is_started_again_once_the_run_has_ended_which_waits_for_what_is_being_started(
    cluster: Cluster, tmp_path: Path
) -> None:
    here = opened(run_of(tmp_path, "--cluster.start_timeout_seconds", "9"))
    begun, closing = threading.Event(), threading.Thread(target=here.close)

    def lost() -> NodeInfo:
        if not begun.is_set():
            begun.set()
            closing.start()
            while "given back" not in cluster.did:
                closing.join(0.001)
        assert "left" not in cluster.did
        raise RayActorError

    cluster.here = lost
    with pytest.raises(RunError, match="its actor cannot be had"):
        here.start("worker 1", nothing)
    closing.join()
    assert len(cluster.asked) == 1
    assert cluster.did[-3:] == ["given back", "killed", "left"]
    with pytest.raises(RunError, match="the run has ended"):
        here.start("worker 1", nothing)


@pytest.mark.parametrize(
    ("what", "raised", "said"),
    [
        (lambda: _raised(RayTaskError("begin", "trace", ValueError("no Python"))), ValueError, "^worker 1: no Python$"),
        (
            lambda: _raised(GetTimeoutError()),
            NoResourcesError,
            r"^worker 1: the cluster has had no room for one process",
        ),
        (
            lambda: _raised(
                RayActorError("1", "ray::Relay.__init__() (pid=5, ip=10.0.0.2)\nNo module named 'x'", True)
            ),
            ValueError,
            r"^worker 1: node 10\.0\.0\.2 cannot import MARFT \(No module named 'x'\): install the same on every node, .*pip",
        ),
        (lambda: NodeInfo("n1", "3.11.1", "0.0.1", ()), ValueError, r"^node n1 has MARFT 0.0.1"),
        (lambda: NodeInfo("n1", "2.7.18", read_node_info().version, ()), ValueError, r"on Python 2.7.18, and the run"),
        (
            lambda: NodeInfo("n1", read_node_info().python, read_node_info().version, ("/there",)),
            ValueError,
            r"has no folder /there",
        ),
    ],
)
def test_an_actor_of_no_use_is_let_go_of(
    what: Callable[[], NodeInfo], raised: type[Exception], said: str, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.here = what
    with pytest.raises(raised, match=said):
        opened(run_of(tmp_path)).start("worker 1", nothing)
    assert cluster.did[-1] == "killed"


def test_only_what_reads_the_recipe_needs_its_folder(cluster: Cluster, tmp_path: Path) -> None:
    run = run_of(tmp_path).model_copy(update={"recipe_folder": "/there"})
    assert [opened(run, kind)._folders for kind in ("worker", "engine", "learner")] == [["/there"], [], ["/there"]]


def test_an_engine_asks_for_the_gpus_that_are_said_else_for_one_where_it_computes_on_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from marft.inference.subprocess_engine import launch

    found: list[float] = []
    monkeypatch.setattr(launch, "open_launcher", lambda run, kind, count, gpus: found.append(gpus))
    run = run_of(tmp_path)
    for here, device, there, gpus in (
        ("cpu", "cpu", "cpu", 0.0), ("cpu", "auto", "cpu", 0.0), ("cuda", "auto", "cuda", 1.0),
        ("cpu", "cuda:1", "cuda", 1.0),
    ):  # fmt: skip
        monkeypatch.setattr(launch, "pick_device", lambda _, here=here: SimpleNamespace(type=here))
        launch.make_engine_launcher(run, device)
        assert (launch.engine_device(run, device), found.pop()) == (there, gpus)
    run = run_of(tmp_path, "--cluster.engine.gpus", "0.5")
    for device, there in (("cpu", "cpu"), ("auto", "cuda"), ("cuda:1", "cuda")):
        launch.make_engine_launcher(run, device)
        assert (launch.engine_device(run, device), found.pop()) == (there, 0.5)
    assert launch.engine_device(settings("tiny", tmp_path), "cuda:1") == "cuda:1"


def _raised(error: Exception) -> NodeInfo:
    raise error
