"""A run whose processes are on the nodes of a Ray cluster is the run that it is on one machine; nodes may be lost."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from marft.common.errors import RunError
from marft.common.types import SamplingParams
from marft.config import load_recipe, parse_recipe
from marft.config.run import RunSettings
from marft.inference.subprocess_engine.engine import SubprocessEngine, SubprocessPolicy
from marft.inference.subprocess_engine.messages import EngineInit
from marft.rollout.local_runner import open_rollout_runner
from marft.rollout.rollout_batch import load_training_tasks, sample_attempts
from marft.runs.run_folder import RunFolder
from marft.trainer.ranks.devices import build_peer_run, open_rank_launcher, select_device
from marft.trainer.ranks.rank_worker import RankWorker
from marft.trainer.train import train
from marft_lab.cluster.relay import NodeInfo
from marft_lab.cluster.settings import ClusterSettings
from tests.crews import crew, told
from tests.helpers import recipe, settings, until
from tests.marft.inference.test_engine_apart import PROMPT, Weights, command, key
from tests.marft.rollout.test_lost_workers import attempts
from tests.nights import BY_NIGHT, NIGHT

ray: Any = pytest.importorskip("ray")

from marft_lab.cluster.launcher import RayProcessLauncher, RemoteProcess, _check_node, count_cpus  # noqa: E402

QUICK = {
    "health_check_initial_delay_ms": 0, "health_check_period_ms": 500, "health_check_timeout_ms": 1000,
    "health_check_failure_threshold": 3,
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two nodes on one machine."""
    from ray.cluster_utils import Cluster

    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 3, "_system_config": QUICK})
    made.other = made.add_node(num_cpus=2)
    yield made
    made.shutdown()


def clustered(cluster: Any, run: RunSettings, *, patience: float = 60.0, strategy: str = "PACK") -> RunSettings:
    table = run.model_dump(mode="json", exclude_none=True)
    table["cluster"] = {"address": cluster.address, "start_timeout_seconds": patience, "strategy": strategy}
    return parse_recipe(table)


def demo(output: Path, *overrides: str) -> RunSettings:
    return load_recipe("demo", ["--device", "cpu", "--threads", "1", "--output", str(output), *overrides])


def played(run: RunSettings) -> list[Any]:
    with open_rollout_runner(run) as rollouts:
        rollouts.publish(0)
        return told(rollouts.play(sample_attempts(run, load_training_tasks(run), 0, 0, 4)))


def nodes_of(rollouts: Any) -> list[str]:
    group = rollouts._launcher._group
    return list(ray.util.placement_group_table(group)["bundles_to_node_id"].values())


@pytest.mark.slow
class TestWorkers:
    @BY_NIGHT
    def test_episodes_are_those_of_one_process_to_the_bit(self, cluster: Any, tmp_path: Path) -> None:
        there = clustered(cluster, demo(tmp_path, "--rollout.workers", "2"), strategy="SPREAD")
        assert played(there) == played(demo(tmp_path))

    @pytest.mark.skipif(not NIGHT, reason="a tenth of a minute: make nightly")
    def test_one_that_is_killed_loses_nothing(self, cluster: Any, tmp_path: Path) -> None:
        environment = {"name": "tests.crews:Doomed", "folder": str(tmp_path), "seconds": 1.0}
        run = clustered(cluster, crew(tmp_path, environment))

        def kill() -> None:
            until(lambda: list(tmp_path.glob("stepping-fine-0-0")))
            os.kill(int((tmp_path / "stepping-fine-0-0").read_text().split()[0]), signal.SIGKILL)

        with open_rollout_runner(run) as rollouts:
            killer = threading.Thread(target=kill)
            killer.start()
            episodes = rollouts.play(attempts(*["fine"] * 4))
            killer.join()
            assert [episode.status for episode in episodes] == ["terminated"] * 4
            assert rollouts.usage()["workers_lost"] == 1.0

    @BY_NIGHT
    def test_what_they_cannot_have_is_said_as_it_would_be_here(self, cluster: Any, tmp_path: Path) -> None:
        tools = (
            "--tools",
            "{files = {name = 'mcp', command = ['no-such-program']}}",
            "--agents.actor.tools",
            "['files']",
        )
        run = clustered(cluster, settings("tiny", tmp_path, "--rollout.workers", "1", *tools))
        with pytest.raises(ValueError, match=r"^tools.files: there is no program 'no-such-program'$"):
            open_rollout_runner(run)

    @BY_NIGHT
    def test_a_cluster_without_room_says_what_it_lacks(self, cluster: Any, tmp_path: Path) -> None:
        run = clustered(cluster, settings("tiny", tmp_path, "--rollout.workers", "9"), patience=1.0)
        with pytest.raises(RunError, match=r"no room for 9 processes \(cluster.worker: 1 CPU; PACK\) in 1 s: free are "
                           r"\d CPU of 5 CPU, on 2 nodes. Add nodes, or lower rollout.workers"):  # fmt: skip
            open_rollout_runner(run)

    def test_a_folder_that_is_not_there_is_named(self, cluster: Any, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match=r"has no folder /no/such/folder, where the recipe's paths"):
            _check_node(NodeInfo("n1", sys.version.split()[0], _version(), ("/no/such/folder",)))
        with pytest.raises(ValueError, match=r"node n1 has MARFT 0.0.1 on Python 2.7.18, and the run MARFT"):
            _check_node(NodeInfo("n1", "2.7.18", "0.0.1", ()))


def _version() -> str:
    from marft.common.version import __version__

    return __version__


@pytest.mark.slow
class TestEngines:
    @pytest.mark.skipif(not NIGHT, reason="a fifth of a minute: make nightly")
    def test_one_gets_its_weights_on_its_own_node_and_comes_again_where_it_is_killed(
        self, cluster: Any, tmp_path: Path, tiny_tokenizer: Any
    ) -> None:
        run = clustered(cluster, settings("tiny", tmp_path))
        cluster = run.section(ClusterSettings)
        assert cluster is not None
        carried: list[str] = []

        async def whole() -> None:
            weights = Weights()
            opened = EngineInit("model", "float32", 64, 4, 1, 8, 0, {"folder": str(tmp_path), "dies": 1})
            starter = RayProcessLauncher(run, cluster, "engine", 1)  # type: ignore[arg-type]
            policies = {"actor": SubprocessPolicy(tiny_tokenizer, (2,), weights.save)}
            engine = SubprocessEngine("fake", command, opened, policies, seed=1, timeout=20.0, launcher=starter)
            taken = RemoteProcess.share_folder

            def noted(child: RemoteProcess, folder: Path) -> str:
                carried.append(taken(child, folder))
                assert carried[-1] != str(folder)
                assert (Path(carried[-1]) / "adapter").read_text() == "weights"
                return carried[-1]

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(RemoteProcess, "share_folder", noted)
                await engine.start()
                completion = await engine.sample("actor", PROMPT, SamplingParams(max_new_tokens=6), key())
                assert completion.tokens.tolist() == [5, 6, 7, 8, 5, 6]
                assert engine.usage()["engine_restarts"] == 1.0
                await engine.publish({"actor": weights}, 3)  # type: ignore[dict-item]
                completion = await engine.sample("actor", PROMPT, SamplingParams(max_new_tokens=6), key(1))
                assert completion.versions.lowest == 3
                await asyncio.sleep(0.3)
            assert [Path(path).exists() for path in carried] == [False, False, True]
            await engine.close()

        asyncio.run(asyncio.wait_for(whole(), 90))
        assert len(carried) == 3
        assert not any(Path(path).parent.exists() for path in carried)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="a tenth of a minute: make nightly")
class TestLostNodes:
    def test_what_was_on_one_goes_on_elsewhere(self, cluster: Any, tmp_path: Path) -> None:
        """A worker a node: the place of the lost one is given up, for there is no other node."""
        environment = {"name": "tests.crews:Doomed", "folder": str(tmp_path), "seconds": 1.0}
        run = crew(tmp_path, environment, "--rollout.timeout_seconds", "60")
        run = clustered(cluster, run, strategy="STRICT_SPREAD")

        def lose() -> None:
            until(lambda: len(list(tmp_path.glob("stepping-fine-*"))) >= 2)
            cluster.remove_node(cluster.other, allow_graceful=False)

        with open_rollout_runner(run) as rollouts:
            assert len(set(nodes_of(rollouts))) == 2
            starter = cast(Any, rollouts)._launcher  # workers are there: from here on nobody is waited for as long
            starter.settings = starter.settings.model_copy(update={"start_timeout_seconds": 2.0})
            losing = threading.Thread(target=lose)
            losing.start()
            episodes = rollouts.play(attempts(*["fine"] * 6))
            losing.join()
            assert [episode.status for episode in episodes] == ["terminated"] * 6
            assert rollouts.usage()["workers_lost"] == 1.0
        cluster.other = cluster.add_node(num_cpus=2)


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="a third of a minute: make nightly")
def test_a_training_run_is_that_of_one_process(cluster: Any, tmp_path: Path) -> None:
    rows = []
    for name in ("here", "there"):
        run = demo(tmp_path, "--name", name, "--training.steps", "2", "--rollout.workers", "2")
        run = clustered(cluster, run) if name == "there" else run
        train(run, folder := RunFolder.create(run))
        rows.append([{k: v for k, v in row.items() if "second" not in k} for row in folder.read_metrics()])
    assert rows[1] == rows[0]


@pytest.mark.slow
@pytest.mark.skipif(not NIGHT, reason="half a minute: make nightly")
def test_ranks_on_a_cluster_learn_what_ranks_here_do(cluster: Any, tmp_path: Path) -> None:
    rows, weights = [], []
    for name in ("here", "there"):
        run = demo(tmp_path, "--name", name, "--training.steps", "2", "--training.ranks", "2")
        run = clustered(cluster, run) if name == "there" else run
        train(run, folder := RunFolder.create(run))
        rows.append([{k: v for k, v in row.items() if "second" not in k} for row in folder.read_metrics()])
        policies = folder.path / "checkpoints"
        weights.append({str(path.relative_to(policies)): path.read_bytes() for path in policies.rglob("*.safetensors")})
    assert rows[1] == rows[0]
    assert weights[1] == weights[0]
    assert any("adapter_model" in name for name in weights[0])


class TestSettings:
    @pytest.mark.parametrize("address", ["127.0.0.1:9", "nowhere.invalid:6379", "127.0.0.1:head"])
    def test_a_cluster_that_does_not_answer_is_named_at_once(self, address: str, tmp_path: Path) -> None:
        run = settings("tiny", tmp_path, "--rollout.workers", "1", "--cluster.address", address)
        with pytest.raises(ValueError, match=rf"^cluster.address: no Ray cluster can be joined at '{address}': "):
            open_rollout_runner(run)

    def test_rays_client_is_refused_with_what_to_do(self) -> None:
        with pytest.raises(
            ValueError, match=r"cluster.address: a run is on a machine of the cluster, and Ray's client"
        ):
            parse_recipe(recipe(cluster={"address": "ray://head:10001"}))

    def test_a_cluster_of_its_own_has_room_for_all_ranks(self, tmp_path: Path) -> None:
        run = settings(
            "tiny", tmp_path, "--rollout.workers", "1", "--training.ranks", "41", "--cluster.learner.cpus", "50"
        )
        cluster = run.section(ClusterSettings)
        assert cluster is not None
        without = run.model_copy(update={"training": run.training.model_copy(update={"ranks": 1})})
        assert count_cpus(run, cluster) >= 40 * 50
        assert count_cpus(without, cluster) < 40 * 50

    def test_a_rank_on_a_cluster_has_the_gpu_that_it_is_shown(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("marft.trainer.ranks.devices.pick_device", torch.device)
        run = settings("tiny", tmp_path, "--training.ranks", "3", "--cluster.learner.cpus", "1")
        there = run.model_copy(update={"device": "cuda:1"})
        assert select_device(there, 2) == "cuda:0"
        assert select_device(run.model_copy(update={"device": "cpu"}), 2) == "cpu"

    def test_ranks_elsewhere_compute_on_what_the_run_does_and_wait_for_no_gpu_where_that_is_none(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run = settings("tiny", tmp_path, "--training.ranks", "3", "--cluster.learner.cpus", "1", "--device", "auto")
        asked: list[float] = []
        monkeypatch.setattr(
            "marft.trainer.ranks.devices.open_launcher", lambda run, kind, count, gpus: asked.append(gpus)
        )
        for found, gpus in (("cpu", 0.0), ("cuda", 1.0)):
            monkeypatch.setattr("marft.trainer.ranks.devices.pick_device", lambda _, found=found: torch.device(found))
            open_rank_launcher(run)
            assert (build_peer_run(run).device, asked.pop()) == (found, gpus)

    def test_a_checkpoint_that_a_ranks_node_has_not_is_named(self, tmp_path: Path) -> None:
        with pytest.raises(
            ValueError, match=r"^there is no checkpoint /no/such/step on node .*: have the run's folder"
        ):
            RankWorker.load(cast("RankWorker", None), Path("/no/such/step"), True)
