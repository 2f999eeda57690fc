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
from marft.common.processes.child import Command
from marft.common.processes.python_here import module_path
from marft.common.processes.starting import NoRoomError
from marft.common.texts import one_line
from marft.common.version import __version__
from marft.config.placement import Kind
from marft.config.run import RunSettings
from marft_lab.cluster.child import RelayedChild
from marft_lab.cluster.joining import join, leave
from marft_lab.cluster.relay import GROUPS, About, Relay
from marft_lab.cluster.settings import ClusterSettings

UNITS = {"memory": 2**30}  # bytes per GiB
AGAIN_SECONDS = 1.0  # delay before a retry after the loss of a node


class RayStarter:
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

    def __init__(self, run: RunSettings, settings: ClusterSettings, kind: Kind, count: int) -> None:
        self.settings, self.kind, self.count = settings, kind, count
        self.place = settings.place_of(kind)
        self._changed = threading.Condition()
        self._starting, self._closed = 0, False
        self._folders = [run.recipe_folder] if run.recipe_folder and kind != "engine" else []
        join(run, settings)
        try:
            self._group = placement_group([self.place.bundle()] * count, strategy=settings.strategy)
            if not self._group.wait(settings.patience_seconds):
                said = self._no_room(count)
                remove_placement_group(self._group)
                raise NoRoomError(said)
        except BaseException:
            leave()
            raise

    def start(self, name: str, command: Command, *, quiet: bool = False, place: int = 0) -> RelayedChild:
        """Start a process in bundle ``place``; Ray moves the bundle to a different node after the loss of a node.

        Args:
            name: name of the process, for messages.
            command: command to start.
            quiet: True to hide the output.
            place: index of the bundle.

        Raises:
            ValueError: MARFT, the recipe's folder, or a requirement of the command is missing on the node.
            NoRoomError: the cluster has no free resources.
            RunError: the starter is closed, or nodes are lost repeatedly.
        """
        with self._changed:
            if self._closed:
                raise RunError(f"{name}: the run has ended")
            self._starting += 1
        until = time.monotonic() + self.settings.patience_seconds
        try:
            while True:
                try:
                    return self._start(name, command, quiet, place)
                except RayError as error:  # Ray may choose a node before it notices the loss of the node
                    if self._closed or time.monotonic() > until:
                        raise RunError(f"{name}: its actor cannot be had: {one_line(str(error))}") from error
                    time.sleep(AGAIN_SECONDS)
        finally:
            with self._changed:
                self._starting -= 1
                self._changed.notify_all()

    def _start(self, name: str, command: Command, quiet: bool, place: int) -> RelayedChild:
        """Start a process once.

        Raises:
            RayError: the actor was lost during the start.
        """
        bundle = self.place.bundle()
        actor = ray.remote(concurrency_groups=GROUPS)(Relay).options(
            num_cpus=bundle.get("CPU", 0.0), num_gpus=bundle.get("GPU", 0.0), memory=bundle.get("memory"),
            resources=self.place.resources or None,
            scheduling_strategy=PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=place),
        ).remote()  # fmt: skip
        try:
            about: About = ray.get(actor.look.remote(self._folders), timeout=self.settings.patience_seconds)
            _check(about)
            begun = actor.begin.remote(name, command, module_path(), str(Path.cwd()))
            ray.get(begun, timeout=self.settings.patience_seconds)
        except (RayError, ValueError) as error:
            with suppress(RayError, RuntimeError, ValueError):  # an unreachable actor may still hold its resources
                ray.kill(actor)
            if isinstance(error, GetTimeoutError):
                raise NoRoomError(f"{name}: {self._no_room(1)}") from None
            if isinstance(error, RayTaskError):
                raise ValueError(f"{name}: {one_line(str(error.cause))}") from error
            raise
        return RelayedChild(name, actor, about.node, quiet=quiet)

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
            self._changed.wait_for(lambda: not self._starting, 2 * self.settings.patience_seconds)
        leave()

    def _no_room(self, count: int) -> str:
        wanted = _amounts(self.place.bundle())
        free, there = ray.available_resources(), ray.cluster_resources()
        has = ", ".join(
            f"{_amount(name, free.get(name, 0.0))} of {_amount(name, there.get(name, 0.0))}"
            for name in self.place.bundle()
        )
        processes = "one process" if count == 1 else f"{count} processes"
        less = {"worker": "rollout.processes, ", "engine": "", "learner": "training.ranks, "}[self.kind]
        return (
            f"the cluster has had no room for {processes} (cluster.{self.kind}: {wanted}; {self.settings.strategy}) in "
            f"{self.settings.patience_seconds:g} s: free are {has}, on {_nodes()}. Add nodes, or lower {less}"
            f"cluster.{self.kind}.cpus or .gpus; a larger cluster.patience_seconds waits longer"
        )


def _nodes() -> str:
    alive = sum(bool(node["Alive"]) for node in ray.nodes())
    return "one node" if alive == 1 else f"{alive} nodes"


def _amounts(bundle: Mapping[str, float]) -> str:
    return ", ".join(_amount(name, amount) for name, amount in bundle.items())


def _amount(name: str, amount: float) -> str:
    """Return an amount with its unit.

    >>> _amount("CPU", 2.0), _amount("memory", 2.0**31)
    ('2 CPU', '2 GiB memory')
    """
    return f"{amount / UNITS.get(name, 1):g} {'GiB ' if name in UNITS else ''}{name}"


def _check(about: About) -> None:
    """Check the versions and folders of a node.

    Raises:
        ValueError: different version of MARFT or Python, or missing folder.
    """
    mine = ".".join(platform.python_version_tuple()[:2])
    if about.version != __version__ or ".".join(about.python.split(".")[:2]) != mine:
        raise ValueError(
            f"node {about.node} has MARFT {about.version} on Python {about.python}, and the run MARFT {__version__} on "
            f"Python {platform.python_version()}: install the same on every node"
        )
    if about.missing:
        raise ValueError(
            f"node {about.node} has no folder {about.missing[0]}, where the recipe's paths and modules are: put it on "
            "a file system that all nodes have, or submit the run with it (ray job submit --working-dir …)"
        )
