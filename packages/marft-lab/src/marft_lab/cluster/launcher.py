"""Processes of a run on a Ray cluster: the connection, and an actor in a placement group per process."""

from __future__ import annotations

import logging
import math
import os
import platform
import re
import signal
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from marft.common.errors import RunError, UserError
from marft.common.packages import install_command
from marft.common.processes.child_process import END_SECONDS, OUTPUT_TAIL_LINES, Command, module_path, print_line
from marft.common.processes.launcher import NoResourcesError
from marft.common.texts import single_line
from marft.common.version import __version__
from marft.config.run import RunSettings
from marft.config.sections import ProcessKind
from marft_lab.cluster.relay import CHUNK_BYTES, CONCURRENCY_GROUPS, NodeInfo, ProcessOutput, Relay
from marft_lab.cluster.settings import ClusterSettings

CONNECT_TIMEOUT = 10.0  # timeout for an answer of the cluster
ADDRESS_VARIABLE = "RAY_ADDRESS"  # set by `ray job submit`
# object store of a cluster started here, in bytes; holds data for transfer to processes
OBJECT_STORE_BYTES = 256 * 2**20
_LOCK = threading.Lock()
_users = 0
FILE_CHUNK_BYTES = 8 * 2**20  # bytes per call of a file transfer
MAX_PENDING_WRITES = 4  # maximum pending calls that write input
PENDING_READS = 2
UNIT_BYTES = {"memory": 2**30}  # bytes per GiB
RETRY_SECONDS = 1.0  # delay before a retry after the loss of a node


def connect(run: RunSettings, settings: ClusterSettings) -> None:
    """Connect this process to the cluster, if not connected yet.

    Call :func:`disconnect` once per call.

    Raises:
        UserError: the cluster cannot be reached.
    """
    global _users
    with _LOCK:
        if not _users:
            _start_ray(settings.address or os.environ.get(ADDRESS_VARIABLE, ""), count_cpus(run, settings))
        _users += 1


def disconnect() -> None:
    """Release a use count; the last release disconnects."""
    global _users
    with _LOCK:
        _users -= 1
        if not _users:
            ray.shutdown()


def count_cpus(run: RunSettings, settings: ClusterSettings) -> int:
    """Return the CPU count for a local cluster: the machine's CPUs, or more if the recipe's processes need more."""
    engines = len(run.policies) * getattr(run.engine, "replicas", 1)
    required = run.rollout.workers * settings.worker.cpus + engines * settings.engine.cpus
    required += (run.training.ranks - 1) * settings.learner.cpus
    return max(os.cpu_count() or 1, math.ceil(required))


def _start_ray(address: str, cpus: int) -> None:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")

    options: dict[str, object] = {"address": address}
    if not address:
        options = {
            "address": "local",
            "num_cpus": cpus,
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
        }
    try:
        _check_reachable(address)
        with _keep_signal_handlers():
            ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError, OSError) as error:
        ray.shutdown()
        raise UserError(_describe_connect_error(address, error)) from error


def _check_reachable(address: str) -> None:
    """Check that the address answers, because Ray itself retries for minutes.

    Raises:
        OSError: no answer.
        UserError: invalid port.
    """
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT).close()


def _describe_connect_error(address: str, error: Exception) -> str:
    reason = single_line(str(error)).rstrip(".")
    if not address:
        return f"[cluster]: Ray cannot be started on this machine: {reason}"
    return (
        f"cluster.address: no Ray cluster can be joined at {address!r}: {reason}; it is joined from one of its "
        "machines, with the same versions of Python and Ray (ray status), and with RAY_AUTH_MODE=token where it was "
        "started so. Without an address, and without $RAY_ADDRESS, one is started here"
    )


@contextmanager
def _keep_signal_handlers() -> Iterator[None]:
    """Restore the SIGTERM handler, because Ray replaces the handler; SIGTERM ends a run like Ctrl-C."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)


class RemoteProcess:
    """Proxy of a process on another machine, with the interface of
    :class:`~marft.common.processes.child_process.ChildProcess`.

    The connection and the output lines of the process are available locally.

    Args:
        name: name of the process, for messages.
        actor: :class:`~marft_lab.cluster.relay.Relay` with a started process.
        node: node of the actor, for messages.
        quiet: True to keep the output without showing the output.
    """

    def __init__(self, name: str, actor: Any, node: str, *, quiet: bool = False) -> None:
        self.name, self.node, self.quiet = name, node, quiet
        self.output_tail: deque[str] = deque(maxlen=OUTPUT_TAIL_LINES)
        self.socket, self._peer_socket = socket.socketpair()
        self._actor = actor
        self._outcome = ""
        self._outcome_lock = threading.Lock()
        self._closed = threading.Event()
        self._forwarders = [
            threading.Thread(target=forwarder, name="marft-relay", daemon=True)
            for forwarder in (self._forward_output, self._forward_input)
        ]
        for forwarder in self._forwarders:
            forwarder.start()

    def end(self) -> None:
        """Terminate the process and its children within a second.

        If the machine does not answer, the actor is killed after twice ``END_SECONDS``.
        """
        self._call("end", "end")
        threading.Thread(target=self._kill_if_stuck, name="marft-relay", daemon=True).start()

    def _kill_if_stuck(self) -> None:
        if not self._closed.wait(2 * END_SECONDS):
            self._kill()

    def close(self) -> None:
        """Terminate the process, wait for its exit and close the connection."""
        self.end()
        self.wait_or_terminate()
        self.socket.close()

    def wait_or_terminate(self) -> str:
        """Wait for the process to exit and return the outcome; then stop the actor."""
        with self._outcome_lock:
            if not self._outcome:
                self._outcome = self._wait_for_outcome()
                self._closed.wait(END_SECONDS)  # until all output has arrived
                self._kill()
                with suppress(OSError):
                    self._peer_socket.shutdown(socket.SHUT_RDWR)
                for forwarder in self._forwarders:
                    forwarder.join(END_SECONDS)
                self._peer_socket.close()
            return self._outcome

    def _wait_for_outcome(self) -> str:
        try:
            outcome, lines = ray.get(self._actor.wait_or_terminate.remote())
        except RayError as error:
            return f"was lost with its place on node {self.node} ({_describe_error(error)})"
        self._show_lines(lines)
        return f"{outcome} on node {self.node}"

    def _kill(self) -> None:
        with suppress(RayError, RuntimeError, ValueError):  # the actor or the cluster is gone
            ray.kill(self._actor)

    def share_folder(self, folder: Path) -> str:
        """Copy a folder to the node, file by file, in bounded chunks.

        Returns:
            The path of the copy on the node.

        Raises:
            RunError: the process is gone.
        """
        try:
            remote_path: str = ray.get(self._actor.folder.remote(folder.name))
            pending: deque[Any] = deque()
            for name, chunk in _read_chunks(folder):
                pending.append(self._actor.write.remote(folder.name, name, chunk))
                if len(pending) > 1:
                    ray.get(pending.popleft())
            ray.get(list(pending))
        except RayError as error:
            raise RunError(
                f"{self.name}: weights cannot be carried to node {self.node}: {_describe_error(error)}"
            ) from error
        return remote_path

    def release_folder(self, folder: Path) -> None:
        """Remove a copied folder from the node."""
        with suppress(RayError):
            self._actor.drop.remote(folder.name)

    def _call(self, group: str, method: str, *arguments: object) -> Any:
        return getattr(self._actor, method).options(concurrency_group=group).remote(*arguments)

    def _forward_output(self) -> None:
        """Forward data and output lines of the process to the run, until the connection closes."""
        pending = deque(self._call("out", "read_output") for _ in range(PENDING_READS))
        output = ProcessOutput()
        try:
            while not output.closed:
                output = ray.get(pending.popleft())
                pending.append(self._call("out", "read_output"))
                self._show_lines(output.lines)
                with suppress(OSError):  # the run has closed the connection; lines are still shown
                    self._peer_socket.sendall(output.data)
            for last_read in pending:  # output printed during exit
                self._show_lines(ray.get(last_read).lines)
        except (RayError, RuntimeError):  # the actor or the connection to the cluster is gone
            pass
        finally:
            self._closed.set()
            with suppress(OSError):
                self._peer_socket.shutdown(socket.SHUT_WR)

    def _forward_input(self) -> None:
        """Forward data of the run to the process, until the run closes the connection."""
        pending: deque[Any] = deque()
        data = b"begun"
        try:
            while data:
                try:
                    data = self._peer_socket.recv(CHUNK_BYTES)
                except OSError:
                    data = b""
                pending.append(self._call("in", "write_input", data))
                if len(pending) > MAX_PENDING_WRITES:
                    ray.get(pending.popleft())
        except (RayError, RuntimeError):
            with suppress(OSError):
                self._peer_socket.shutdown(socket.SHUT_RD)

    def _show_lines(self, lines: tuple[str, ...]) -> None:
        for line in lines:
            self.output_tail.append(line)
            if not self.quiet:
                print_line(self.name, line)


def _read_chunks(folder: Path) -> Iterator[tuple[str, bytes]]:
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        with file.open("rb") as source:
            chunk = b"begun"
            while chunk:
                chunk = source.read(FILE_CHUNK_BYTES)
                yield file.relative_to(folder).as_posix(), chunk


def _describe_error(error: Exception) -> str:
    return single_line(str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__)


class RayProcessLauncher:
    """Launcher for processes in a Ray placement group, with a bundle per process.

    Args:
        run: settings of the run.
        settings: settings of the cluster.
        kind: kind of process.
        count: number of processes.

    Raises:
        UserError: the cluster cannot be reached.
        NoResourcesError: the cluster has no free resources.
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
            UserError: MARFT, the recipe's folder, or a requirement of the command is missing on the node.
            NoResourcesError: the cluster has no free resources.
            RunError: the launcher is closed, or nodes are lost repeatedly.
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
                raise UserError(f"{name}: {single_line(str(error.cause))}") from error
            if isinstance(error, RayActorError) and error.actor_init_failed:  # its module cannot be imported
                raise UserError(f"{name}: {_describe_missing_package(str(error))}") from error
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


def _describe_missing_package(error: str) -> str:
    """Return why a node cannot import the actor's module.

    >>> _describe_missing_package("died (pid=5, ip=10.0.0.2)\\nModuleNotFoundError: No module named 'numpy'")[:80]
    "node 10.0.0.2 cannot import MARFT (ModuleNotFoundError: No module named 'numpy')"
    """
    address = re.search(r"\bip=([^,)\s]+)", error)
    return (
        f"{f'node {address[1]}' if address else 'a node'} cannot import MARFT "
        f"({single_line(error.strip().splitlines()[-1])}): install the same on every node, there for example with "
        f"{install_command('ray')}"
    )


def _check_node(node_info: NodeInfo) -> None:
    """Check the versions and folders of a node.

    Raises:
        UserError: different version of MARFT or Python, or missing folder.
    """
    own_version = ".".join(platform.python_version_tuple()[:2])
    if node_info.version != __version__ or ".".join(node_info.python.split(".")[:2]) != own_version:
        raise UserError(
            f"node {node_info.node} has MARFT {node_info.version} on Python {node_info.python}, and the run MARFT "
            f"{__version__} on Python {platform.python_version()}: install the same on every node"
        )
    if node_info.missing:
        raise UserError(
            f"node {node_info.node} has no folder {node_info.missing[0]}, where the recipe's paths and modules are: "
            "put it on a file system that all nodes have, or submit the run with it (ray job submit --working-dir …)"
        )
