"""Assignment of devices to ranks."""

from __future__ import annotations

import os

import torch

from marft.common.errors import UserError
from marft.common.processes.launcher import Launcher
from marft.config.run import RunSettings
from marft.config.sections import find_cluster, open_launcher
from marft.models.loader import pick_device

MAX_RANKS_PER_CORE = 8  # maximum ranks per core; each is a separate process


def select_device(run: RunSettings, rank: int) -> str:
    """Return a rank's device, as named in recipes.

    Each rank has its own GPU, counted from the run's device, or shares the CPU. On a cluster, Ray assigns the GPU.

    Raises:
        UserError: there are fewer GPUs than ranks, or too few CPU cores.
    """
    if find_cluster(run) is not None and rank:
        kind = run.device.partition(":")[0]
        return "cuda:0" if pick_device(kind).type == "cuda" else kind
    device = pick_device(run.device)
    if device.type != "cuda":
        cores = os.cpu_count() or 1
        if run.training.ranks > MAX_RANKS_PER_CORE * cores:
            raise UserError(
                f"training.ranks = {run.training.ranks}: on a CPU ranks share its cores, and there are {cores}; give "
                f"{cores} or fewer, for more are no faster and each holds the models once more"
            )
        return run.device
    number = (device.index or 0) + rank
    if number >= torch.cuda.device_count():
        raise UserError(
            f"training.ranks = {run.training.ranks}: each rank has a GPU of its own, from {device} on, and there are "
            f"{torch.cuda.device_count()}; lower it"
        )
    return f"cuda:{number}"


def build_peer_run(run: RunSettings) -> RunSettings:
    """Return the recipe for the other ranks; on a cluster they use the same kind of device.

    Raises:
        UserError: the run's device does not exist on this machine.
    """
    if find_cluster(run) is None:
        return run
    return run.model_copy(update={"device": pick_device(run.device).type})


def open_rank_launcher(run: RunSettings) -> Launcher:
    """Return a launcher for the other ranks; call ``close`` at the end.

    On a cluster each rank requests at least one GPU if the run computes on a GPU, else none.

    Raises:
        UserError: the run's device does not exist on this machine, or the cluster cannot be joined.
        RunError: the cluster has no room for the ranks.
    """
    cluster = find_cluster(run)
    gpus = None
    if cluster is not None:
        gpus = (cluster.gpus_for("learner") or 1.0) if pick_device(run.device).type == "cuda" else 0.0
    return open_launcher(run, "learner", run.training.ranks - 1, gpus)
