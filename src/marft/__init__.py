"""MARFT: multi-agent reinforcement fine-tuning of the language models inside a team of agents.

Everything named here is loaded when it is first used, so that ``import marft`` costs nothing.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from marft.common.pools import wait_briefly
from marft.common.version import __version__ as __version__

if TYPE_CHECKING:
    from marft.agents.agents import Agents
    from marft.agents.environment import tool
    from marft.cli.python.commands import compare, evaluate, load_recipe, load_run, train
    from marft.cli.python.run import Run
    from marft.common.errors import RunError
    from marft.common.observing import Observer
    from marft.common.types import Action, Episode, JointAction, Observation, Step, Task
    from marft.config.parts import CreditPart, EnvironmentPart, ObjectivePart, OrganizationPart, SchedulePart
    from marft.config.plugins import Plugin
    from marft.config.run import RunSettings
    from marft.evaluation.comparison import Comparison
    from marft.evaluation.evaluate import Evaluation
    from marft_envs.api import check_environment
    from marft_lab.python.worth import worth
    from marft_serve.python.gateway import Gateway
    from marft_serve.python.traces import score, sft
    from marft_serve.traces.scores import Scores

wait_briefly(os.environ)  # before torch is imported

__all__ = [
    "Action", "Agents", "Comparison", "CreditPart", "EnvironmentPart", "Episode", "Evaluation", "Gateway",
    "JointAction", "ObjectivePart", "Observation", "Observer", "OrganizationPart", "Plugin", "Run", "RunError",
    "RunSettings", "SchedulePart", "Scores", "Step", "Task", "check_environment", "compare", "evaluate",
    "load_recipe", "load_run", "score", "sft", "tool", "train", "worth",
]  # fmt: skip

_PLACES = {
    "marft.config.parts": ("CreditPart", "EnvironmentPart", "ObjectivePart", "OrganizationPart", "SchedulePart"),
    "marft.config.plugins": ("Plugin",),
    "marft.config.run": ("RunSettings",),
    "marft.common.errors": ("RunError",),
    "marft.evaluation.comparison": ("Comparison",),
    "marft.evaluation.evaluate": ("Evaluation",),
    "marft.agents.agents": ("Agents",),
    "marft.agents.environment": ("tool",),
    "marft.common.observing": ("Observer",),
    "marft.cli.python.commands": ("compare", "evaluate", "load_recipe", "load_run", "train"),
    "marft_envs.api": ("check_environment",),
    "marft_serve.python.gateway": ("Gateway",),
    "marft.cli.python.run": ("Run",),
    "marft_serve.python.traces": ("score", "sft"),
    "marft_lab.python.worth": ("worth",),
    "marft_serve.traces.scores": ("Scores",),
    "marft.common.types": ("Action", "Episode", "JointAction", "Observation", "Step", "Task"),
}


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'marft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
