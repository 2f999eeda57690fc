"""Which device each rank computes on."""

from __future__ import annotations

import os

import torch

from marft.common.processes.starting import Starter
from marft.config.placement import cluster_of, open_starter
from marft.config.run import RunSettings
from marft.models.loading import pick_device

MOST_A_CORE = 8  # ranks that share one: each is a whole process


def device_of(run: RunSettings, rank: int) -> str:
    """A rank's device, as a recipe names one: a GPU of its own each, the run's and those after it; or the processor.
    On a cluster it is what Ray shows the rank.

    Raises:
        ValueError: there are fewer GPUs than ranks, or far fewer cores.
    """
    if cluster_of(run) is not None and rank:
        kind = run.device.partition(":")[0]
        return "cuda:0" if pick_device(kind).type == "cuda" else kind
    device = pick_device(run.device)
    if device.type != "cuda":
        cores = os.cpu_count() or 1
        if run.training.ranks > MOST_A_CORE * cores:
            raise ValueError(
                f"training.ranks = {run.training.ranks}: on a CPU ranks share its cores, and there are {cores}; give "
                f"{cores} or fewer, for more are no faster and each holds the models once more"
            )
        return run.device
    number = (device.index or 0) + rank
    if number >= torch.cuda.device_count():
        raise ValueError(
            f"training.ranks = {run.training.ranks}: each rank has a GPU of its own, from {device} on, and there are "
            f"{torch.cuda.device_count()}; lower it"
        )
    return f"cuda:{number}"


def for_others(run: RunSettings) -> RunSettings:
    """Return the recipe as ranks beside the run have it: on a cluster they compute on the kind of device that it does.

    Raises:
        ValueError: the run's device does not exist here.
    """
    if cluster_of(run) is None:
        return run
    return run.model_copy(update={"device": pick_device(run.device).type})


def open_rank_starter(run: RunSettings) -> Starter:
    """Return a starter of the ranks beside the run. Close it.

    On a cluster each asks for one GPU at least where the run computes on one, else for none.

    Raises:
        ValueError: the run's device does not exist here, or the cluster cannot be joined.
        RunError: the cluster has no room for them.
    """
    cluster = cluster_of(run)
    gpus = None
    if cluster is not None:
        gpus = (cluster.gpus_of("learner") or 1.0) if pick_device(run.device).type == "cuda" else 0.0
    return open_starter(run, "learner", run.training.ranks - 1, gpus)
