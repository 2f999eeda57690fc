"""Starter for processes in a Ray placement group, with an actor per process."""

from __future__ import annotations

import platform
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import ray
from ray.exceptions import GetTimeoutError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from marft.common.errors import RunError
from marft.common.processes.child_process import Command
from marft.common.processes.launcher import NoResourcesError
from marft.common.processes.python_command import module_path
from marft.common.texts import single_line
from marft.common.version import __version__
from marft.config.placement import ProcessKind
from marft.config.run import RunSettings
from marft_lab.cluster.connection import connect, disconnect
from marft_lab.cluster.relay import CONCURRENCY_GROUPS, NodeInfo, Relay
from marft_lab.cluster.remote_process import RemoteProcess
from marft_lab.cluster.settings import ClusterSettings

UNIT_BYTES = {"memory": 2**30}  # bytes per GiB
RETRY_SECONDS = 1.0  # delay before a retry after the loss of a node


class RayProcessLauncher:
    """Starter for processes in a Ray placement group, with a bundle per process.

    Args:
        run: settings of the run.
        settings: settings of the cluster.
        kind: kind of process.
        count: number of processes.

    Raises:
        ValueError: the cluster cannot be reached.
        NoRoomError: the cluster has no free resources.
    """

    def __init__(self, run: RunSettings, settings: ClusterSettings, kind: ProcessKind, count: int) -> None:
        self.settings, self.kind, self.count = settings, kind, count
        self.resources = settings.resources_for(kind)
        self._changed = threading.Condition()
        self._starting, self._closed = 0, False
        self._folders = [run.recipe_folder] if run.recipe_folder and kind != "engine" else []
        connect(run, settings)
        try:
            self._group = placement_group([self.resources.bundle()] * count, strategy=settings.strategy)
            if not self._group.wait(settings.start_timeout_seconds):
                message = self._describe_shortage(count)
                remove_placement_group(self._group)
                raise NoResourcesError(message)
        except BaseException:
            disconnect()
            raise

    def start(self, name: str, command: Command, *, quiet: bool = False, slot: int = 0) -> RemoteProcess:
        """Start a process in bundle ``slot``; Ray moves the bundle to a different node after the loss of a node.

        Args:
            name: name of the process, for messages.
            command: command to start.
            quiet: True to hide the output.
            slot: index of the bundle.

        Raises:
            ValueError: MARFT, the recipe's folder, or a requirement of the command is missing on the node.
            NoRoomError: the cluster has no free resources.
            RunError: the starter is closed, or nodes are lost repeatedly.
        """
        with self._changed:
            if self._closed:
                raise RunError(f"{name}: the run has ended")
            self._starting += 1
        deadline = time.monotonic() + self.settings.start_timeout_seconds
        try:
            while True:
                try:
                    return self._start(name, command, quiet, slot)
                except RayError as error:  # Ray may choose a node before it notices the loss of the node
                    if self._closed or time.monotonic() > deadline:
                        raise RunError(f"{name}: its actor cannot be had: {single_line(str(error))}") from error
                    time.sleep(RETRY_SECONDS)
        finally:
            with self._changed:
                self._starting -= 1
                self._changed.notify_all()

    def _start(self, name: str, command: Command, quiet: bool, slot: int) -> RemoteProcess:
        """Start a process once.

        Raises:
            RayError: the actor was lost during the start.
        """
        bundle = self.resources.bundle()
        actor = (
            ray.remote(concurrency_groups=CONCURRENCY_GROUPS)(Relay)
            .options(
                num_cpus=bundle.get("CPU", 0.0),
                num_gpus=bundle.get("GPU", 0.0),
                memory=bundle.get("memory"),
                resources=self.resources.resources or None,
                scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=slot),
            )
            .remote()
        )
        try:
            node_info: NodeInfo = ray.get(
                actor.node_info.remote(self._folders), timeout=self.settings.start_timeout_seconds
            )
            _check_node(node_info)
            started = actor.begin.remote(name, command, module_path(), str(Path.cwd()))
            ray.get(started, timeout=self.settings.start_timeout_seconds)
        except (RayError, ValueError) as error:
            with suppress(RayError, RuntimeError, ValueError):  # an unreachable actor may still hold its resources
                ray.kill(actor)
            if isinstance(error, GetTimeoutError):
                raise NoResourcesError(f"{name}: {self._describe_shortage(1)}") from None
            if isinstance(error, RayTaskError):
                raise ValueError(f"{name}: {single_line(str(error.cause))}") from error
            raise
        return RemoteProcess(name, actor, node_info.node, quiet=quiet)

    @property
    def host(self) -> str:
        """This machine's address for the cluster's nodes."""
        return str(ray.util.get_node_ip_address())

    def close(self) -> None:
        """Release the bundles with their processes, and disconnect after pending starts.

        A call to Ray after the disconnect would block forever.
        """
        with self._changed:
            self._closed = True
        remove_placement_group(self._group)
        with self._changed:
            self._changed.wait_for(lambda: not self._starting, 2 * self.settings.start_timeout_seconds)
        disconnect()

    def _describe_shortage(self, count: int) -> str:
        required = _format_amounts(self.resources.bundle())
        free, total = ray.available_resources(), ray.cluster_resources()
        available = ", ".join(
            f"{_format_amount(name, free.get(name, 0.0))} of {_format_amount(name, total.get(name, 0.0))}"
            for name in self.resources.bundle()
        )
        processes = "one process" if count == 1 else f"{count} processes"
        settings_to_lower = {"worker": "rollout.workers, ", "engine": "", "learner": "training.ranks, "}[self.kind]
        return (
            f"the cluster has had no room for {processes} (cluster.{self.kind}: {required}; {self.settings.strategy}) "
            f"in {self.settings.start_timeout_seconds:g} s: free are {available}, on {_describe_nodes()}. Add nodes, "
            f"or lower {settings_to_lower}cluster.{self.kind}.cpus or .gpus; a larger cluster.start_timeout_seconds "
            "waits longer"
        )


def _describe_nodes() -> str:
    alive = sum(bool(node["Alive"]) for node in ray.nodes())
    return "one node" if alive == 1 else f"{alive} nodes"


def _format_amounts(bundle: Mapping[str, float]) -> str:
    return ", ".join(_format_amount(name, amount) for name, amount in bundle.items())


def _format_amount(name: str, amount: float) -> str:
    """Return an amount with its unit.

    >>> _format_amount("CPU", 2.0), _format_amount("memory", 2.0**31)
    ('2 CPU', '2 GiB memory')
    """
    return f"{amount / UNIT_BYTES.get(name, 1):g} {'GiB ' if name in UNIT_BYTES else ''}{name}"


def _check_node(node_info: NodeInfo) -> None:
    """Check the versions and folders of a node.

    Raises:
        ValueError: different version of MARFT or Python, or missing folder.
    """
    own_version = ".".join(platform.python_version_tuple()[:2])
    if node_info.version != __version__ or ".".join(node_info.python.split(".")[:2]) != own_version:
        raise ValueError(
            f"node {node_info.node} has MARFT {node_info.version} on Python {node_info.python}, and the run MARFT "
            f"{__version__} on Python {platform.python_version()}: install the same on every node"
        )
    if node_info.missing:
        raise ValueError(
            f"node {node_info.node} has no folder {node_info.missing[0]}, where the recipe's paths and modules are: "
            "put it on a file system that all nodes have, or submit the run with it (ray job submit --working-dir …)"
        )
