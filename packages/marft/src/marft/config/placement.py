"""Process placement: on this machine, or on the cluster in the recipe."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Literal

from marft.common.processes.launcher import Launcher, LocalLauncher
from marft.config.sections import Section

if TYPE_CHECKING:
    from marft.config.run import RunSettings

ProcessKind = Literal["worker", "engine", "learner"]  # kind of a process


class Cluster(Section):
    """Base class for cluster settings. A cluster starts processes on other machines."""

    @abstractmethod
    def gpus_for(self, kind: ProcessKind) -> float:
        """Return the requested GPUs per process for a kind."""

    @abstractmethod
    def open_launcher(self, run: RunSettings, kind: ProcessKind, count: int, gpus: float | None = None) -> Launcher:
        """Return a starter for ``count`` processes with one kind. Close it after use.

        Args:
            gpus: GPUs requested by each process; None: the recipe's number.

        Raises:
            ValueError: the cluster cannot be joined.
            RunError: the cluster does not have enough resources.
        """


def find_cluster(run: RunSettings) -> Cluster | None:
    """Return the run's cluster; None if all processes run on this machine."""
    return next((section for section in run.sections if isinstance(section, Cluster)), None)


def open_launcher(run: RunSettings, kind: ProcessKind, count: int, gpus: float | None = None) -> Launcher:
    """Return a starter for ``count`` processes, local unless the run has a cluster. Close it after use.

    Args:
        gpus: GPUs requested by each process on a cluster; None: the recipe's number.

    Raises:
        ValueError: the cluster cannot be joined.
        RunError: the cluster does not have enough resources.
    """
    cluster = find_cluster(run)
    return cluster.open_launcher(run, kind, count, gpus) if cluster else LocalLauncher()
