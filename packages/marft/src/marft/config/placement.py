"""Process placement: on this machine, or on the cluster in the recipe."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Literal

from marft.common.processes.starting import LocalStarter, Starter
from marft.config.sections import Section

if TYPE_CHECKING:
    from marft.config.run import RunSettings

Kind = Literal["worker", "engine", "learner"]  # kind of a process


class Cluster(Section):
    """Base class for cluster settings. A cluster starts processes on other machines."""

    @abstractmethod
    def gpus_of(self, kind: Kind) -> float:
        """Return the requested GPUs per process for a kind."""

    @abstractmethod
    def open_starter(self, run: RunSettings, kind: Kind, count: int, gpus: float | None = None) -> Starter:
        """Return a starter for ``count`` processes with one kind. Close it after use.

        Args:
            gpus: GPUs requested by each process; None: the recipe's number.

        Raises:
            ValueError: the cluster cannot be joined.
            RunError: the cluster does not have enough resources.
        """


def cluster_of(run: RunSettings) -> Cluster | None:
    """Return the run's cluster; None if all processes run on this machine."""
    return next((section for section in run.sections if isinstance(section, Cluster)), None)


def open_starter(run: RunSettings, kind: Kind, count: int, gpus: float | None = None) -> Starter:
    """Return a starter for ``count`` processes, local unless the run has a cluster. Close it after use.

    Args:
        gpus: GPUs requested by each process on a cluster; None: the recipe's number.

    Raises:
        ValueError: the cluster cannot be joined.
        RunError: the cluster does not have enough resources.
    """
    cluster = cluster_of(run)
    return cluster.open_starter(run, kind, count, gpus) if cluster else LocalStarter()
