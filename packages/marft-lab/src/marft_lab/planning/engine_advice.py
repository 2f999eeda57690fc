"""Advice on the engine of a run: vLLM, where it is installed and the plan expects a shorter step."""

from __future__ import annotations

from marft.common.errors import UserError
from marft.config.run import RunSettings
from marft.inference.subprocess_engine.python_environment import environment_folder
from marft.models.device_specs import DRIVER_NAMES, find_device_spec
from marft_lab.planning.changes import find_faster_engine
from marft_lab.planning.plan import PlanRequest, make_plan


def advise_engine(run: RunSettings, device: str) -> list[str]:
    """Return a sentence that suggests vLLM with the seconds per step that it is expected to save, or nothing.

    Args:
        device: name of the run's GPU, reported by its driver.
    """
    installed = (environment_folder("vllm") / "bin" / "python").is_file()
    if run.engine.name != "local" or not installed or device not in DRIVER_NAMES:
        return []
    try:
        plan = make_plan(run, PlanRequest(run.training.ranks, find_device_spec(DRIVER_NAMES[device])))
        faster = find_faster_engine(plan)
    except UserError:
        return []  # no plan is known for these models
    if faster is None:
        return []
    keys = " ".join(f"--{key} {str(value).lower()}" for key, value in faster.keys.items())
    before, after = plan.best.seconds, faster.plan.best.seconds
    return [
        f"vLLM is installed; {keys} is expected to save {_digits(before - after)} of {_digits(before)} seconds per "
        "step (marft plan shows how)"
    ]


def _digits(seconds: float) -> str:
    return f"{seconds:.0f}" if seconds >= 10 else f"{seconds:.1f}"
