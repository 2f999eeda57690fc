"""Shared connection from this process to a Ray cluster."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec

from marft.common.packages import install_command
from marft.common.texts import single_line
from marft.config.run import RunSettings
from marft_lab.cluster.settings import ClusterSettings

CONNECT_TIMEOUT = 10.0  # timeout for an answer of the cluster
ADDRESS_VARIABLE = "RAY_ADDRESS"  # set by `ray job submit`
OBJECT_STORE_BYTES = (
    256 * 2**20
)  # object store of a cluster started here, in bytes; holds data for transfer to processes
_LOCK = threading.Lock()
_users = 0


def connect(run: RunSettings, settings: ClusterSettings) -> None:
    """Connect this process to the cluster, if not connected yet.

    Call :func:`disconnect` once per call.

    Raises:
        ValueError: Ray is not installed, or the cluster cannot be reached.
    """
    global _users
    if find_spec("ray") is None:
        raise ValueError(f"[cluster] needs Ray: {install_command('ray')}; without the table processes are started here")
    with _LOCK:
        if not _users:
            _start_ray(settings.address or os.environ.get(ADDRESS_VARIABLE, ""), count_cpus(run, settings))
        _users += 1


def disconnect() -> None:
    """Release a use count; the last release disconnects."""
    global _users
    import ray

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
    import ray

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
        raise ValueError(_describe_error(address, error)) from error


def _check_reachable(address: str) -> None:
    """Check that the address answers, because Ray itself retries for minutes.

    Raises:
        OSError: no answer.
        ValueError: invalid port.
    """
    host, colon, port = address.rpartition(":")
    if colon:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_TIMEOUT).close()


def _describe_error(address: str, error: Exception) -> str:
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
