"""Where on a cluster an engine that is apart computes, and what it asks for there."""

from __future__ import annotations

from marft.common.processes.starting import Starter
from marft.config.placement import cluster_of, open_starter
from marft.config.run import RunSettings
from marft.models.loading import pick_device


def engine_starter(run: RunSettings, device: str) -> Starter:
    """What starts a process of an engine. On a cluster it asks for the GPUs that the recipe says, else for one where
    it computes on one.

    Args:
        device: that the engine computes on, as a recipe names one.

    Raises:
        ValueError: the cluster cannot be joined.
        RunError: it has no room for the process.
    """
    cluster = cluster_of(run)
    gpus = None if cluster is None else cluster.gpus_of("engine") or float(device_there(run, device) == "cuda")
    return open_starter(run, "engine", 1, gpus)


def device_there(run: RunSettings, device: str) -> str:
    """A device as an engine's process has it. On a cluster that is what Ray shows it; "auto" is a GPU where the recipe
    asks for one for it, else what this machine has."""
    cluster = cluster_of(run)
    if cluster is None:
        return device
    if device != "auto":
        return device.partition(":")[0]
    return "cuda" if cluster.gpus_of("engine") else pick_device(device).type
