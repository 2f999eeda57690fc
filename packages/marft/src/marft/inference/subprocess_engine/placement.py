"""Placement of subprocess engines on a cluster, and their resource requests."""

from __future__ import annotations

from marft.common.processes.launcher import Launcher
from marft.config.placement import find_cluster, open_launcher
from marft.config.run import RunSettings
from marft.models.loader import pick_device


def make_engine_launcher(run: RunSettings, device: str) -> Launcher:
    """Return the launcher for an engine's process.

    On a cluster, the process requests the number of GPUs in the recipe. Without this setting, it requests one GPU if it
    computes on a GPU.

    Args:
        device: device name from the recipe.

    Raises:
        ValueError: the run cannot join the cluster.
        RunError: the cluster has no room for the process.
    """
    cluster = find_cluster(run)
    gpus = None if cluster is None else cluster.gpus_for("engine") or float(engine_device(run, device) == "cuda")
    return open_launcher(run, "engine", 1, gpus)


def engine_device(run: RunSettings, device: str) -> str:
    """Return the device name inside an engine's process.

    On a cluster, Ray selects the visible devices, so the name has no index. "auto" is "cuda" if the recipe requests
    GPUs for the engine, else this machine's device type.
    """
    cluster = find_cluster(run)
    if cluster is None:
        return device
    if device != "auto":
        return device.partition(":")[0]
    return "cuda" if cluster.gpus_for("engine") else pick_device(device).type
