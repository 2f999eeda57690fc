"""Which device each rank computes on."""

from __future__ import annotations

import torch

from marft.cluster.opening import asking
from marft.config.run import RunSettings
from marft.models.loading import pick_device


def device_of(run: RunSettings, rank: int) -> str:
    """A rank's device, as a recipe names one: a GPU of its own each, the run's and those after it; or the processor.
    On a cluster it is what Ray shows the rank.

    Raises:
        ValueError: there are fewer GPUs than ranks.
    """
    if run.cluster is not None and rank:
        kind = run.device.partition(":")[0]
        return "cuda:0" if pick_device(kind).type == "cuda" else kind
    device = pick_device(run.device)
    if device.type != "cuda":
        return run.device
    number = (device.index or 0) + rank
    if number >= torch.cuda.device_count():
        raise ValueError(
            f"training.ranks = {run.training.ranks}: each rank has a GPU of its own, from {device} on, and there are "
            f"{torch.cuda.device_count()}; lower it"
        )
    return f"cuda:{number}"


def for_others(run: RunSettings) -> RunSettings:
    """The recipe as ranks beside the run have it: on a cluster they compute on the kind of device that it does, and
    ask for one at least where that is a GPU, else for none.

    Raises:
        ValueError: the run's device does not exist here.
    """
    if run.cluster is None:
        return run
    kind = pick_device(run.device).type
    gpus = (run.cluster.learner.gpus or 1.0) if kind == "cuda" else 0.0
    return asking(run, "learner", gpus).model_copy(update={"device": kind})
