"""Which cluster a run joins, and that it leaves it when nobody of it is there any more. Ray itself is not started."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from marft_lab.cluster.settings import ClusterSettings
from tests.helpers import settings

ray: Any = pytest.importorskip("ray")

from marft_lab.cluster import launcher as connection  # noqa: E402


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    made: list[object] = []
    before = signal.getsignal(signal.SIGTERM)

    def init(**options: object) -> None:
        made.append(options["address"])
        made.append(options.get("num_cpus"))
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: made.append("shut down"))
    monkeypatch.setattr(connection, "_check_reachable", lambda address: made.append(f"knocked at {address}"))
    monkeypatch.setattr(connection, "_users", 0)
    monkeypatch.delenv(connection.ADDRESS_VARIABLE, raising=False)
    yield made
    signal.signal(signal.SIGTERM, before)


def joined(output: Path, address: str) -> None:
    run = settings("tiny", output, "--cluster.address", address)
    cluster = run.section(ClusterSettings)
    assert cluster is not None
    connection.connect(run, cluster)


@pytest.mark.parametrize(
    ("said", "set_there", "found"), [("a:1", "", "a:1"), ("a:1", "b:2", "a:1"), ("", "b:2", "b:2"), ("", "", "local")]
)
def test_the_cluster_is_the_recipes_else_that_of_the_environment_else_one_of_its_own(
    said: str, set_there: str, found: str, calls: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(connection.ADDRESS_VARIABLE, set_there)
    joined(tmp_path, said)
    knocked, address, cpus = calls
    assert (knocked, address) == (f"knocked at {'' if found == 'local' else found}", found)
    assert (cpus is None) == (found != "local")


def test_it_is_joined_once_and_left_with_the_last_of_its_parts_and_sigterm_stays_ours(
    calls: list[object], tmp_path: Path
) -> None:
    ours = signal.getsignal(signal.SIGTERM)
    joined(tmp_path, "a:1")
    assert signal.getsignal(signal.SIGTERM) == ours
    joined(tmp_path, "a:1")
    connection.disconnect()
    assert calls == ["knocked at a:1", "a:1", None]
    connection.disconnect()
    assert calls[-1] == "shut down"


def test_a_cluster_of_its_own_has_room_for_every_replica_of_an_engine(tmp_path: Path) -> None:
    """Two policies, of which neither need share a base."""
    run = settings(
        "tiny", tmp_path, "--engine.kind", "vllm", "--engine.replicas", "40", "--cluster.engine.cpus", "50.5"
    )
    cluster = run.section(ClusterSettings)
    assert cluster is not None
    assert connection.count_cpus(run, cluster) == 2 * 40 * 50.5


def test_without_ray_it_is_said_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marft_lab.cluster.settings.find_spec", lambda name: None)
    cluster = settings("tiny", tmp_path, "--cluster.address", "a:1").section(ClusterSettings)
    assert cluster is not None
    with pytest.raises(ValueError, match=r"^\[cluster\] needs Ray: .*; without the table processes are started here$"):
        cluster.open_launcher(settings("tiny", tmp_path), "worker", 1)
