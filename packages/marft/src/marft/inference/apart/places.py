"""Placement of subprocess engines on a cluster, and their resource requests."""

from __future__ import annotations

from marft.common.processes.starting import Starter
from marft.config.placement import cluster_of, open_starter
from marft.config.run import RunSettings
from marft.models.loading import pick_device


def engine_starter(run: RunSettings, device: str) -> Starter:
    """Return the launcher for an engine's process.

    On a cluster, the process requests the number of GPUs in the recipe. Without this setting, it requests one GPU if it
    computes on a GPU.

    Args:
        device: device name from the recipe.

    Raises:
        ValueError: the run cannot join the cluster.
        RunError: the cluster has no room for the process.
    """
    cluster = cluster_of(run)
    gpus = None if cluster is None else cluster.gpus_of("engine") or float(device_there(run, device) == "cuda")
    return open_starter(run, "engine", 1, gpus)


def device_there(run: RunSettings, device: str) -> str:
    """Return the device name inside an engine's process.

    On a cluster, Ray selects the visible devices, so the name has no index. "auto" is "cuda" if the recipe requests
    GPUs for the engine, else this machine's device type.
    """
    cluster = cluster_of(run)
    if cluster is None:
        return device
    if device != "auto":
        return device.partition(":")[0]
    return "cuda" if cluster.gpus_of("engine") else pick_device(device).type
