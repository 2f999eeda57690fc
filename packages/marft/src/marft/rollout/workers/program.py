"""The command that a worker process is."""

from __future__ import annotations

from collections.abc import Sequence

from marft.common.processes.python_here import python_here


def worker_command(descriptor: int) -> Sequence[str]:
    """Python as here, with the modules that can be found here.

    Args:
        descriptor: the worker's end of its connection.
    """
    return python_here("marft.rollout.workers.worker", descriptor)
