"""Command line of a worker process."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.processes.python_command import python_command


def worker_command(descriptor: int) -> Sequence[str]:
    """Return the command for a worker, with this process's Python and module search path.

    Args:
        descriptor: file descriptor of the worker's end of the connection.
    """
    return python_command("marft.rollout.workers.worker", descriptor)
