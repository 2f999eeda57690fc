"""MARFT: multi-agent reinforcement fine-tuning of the language models inside a team of agents.

Everything named here is loaded when it is first used, so that ``import marft`` costs nothing.
"""

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

from marft.pools import wait_briefly
from marft.version import __version__ as __version__

if TYPE_CHECKING:
    from marft.config.parts import CreditPart, EnvironmentPart, ObjectivePart, OrganizationPart, SchedulePart
    from marft.config.plugins import Plugin
    from marft.config.run import RunSettings
    from marft.errors import RunError
    from marft.evaluation.comparison import Comparison
    from marft.evaluation.evaluate import Evaluation
    from marft.game.agents import Agents
    from marft.game.environment import tool
    from marft.observing import Observer
    from marft.python.commands import compare, evaluate, load_recipe, load_run, train
    from marft.python.environments import check_environment
    from marft.python.gateway import Gateway
    from marft.python.run import Run
    from marft.python.traces import score, sft
    from marft.python.worth import worth
    from marft.traces.scores import Scores
    from marft.types import Action, Episode, JointAction, Observation, Step, Task

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
    "marft.errors": ("RunError",),
    "marft.evaluation.comparison": ("Comparison",),
    "marft.evaluation.evaluate": ("Evaluation",),
    "marft.game.agents": ("Agents",),
    "marft.game.environment": ("tool",),
    "marft.observing": ("Observer",),
    "marft.python.commands": ("compare", "evaluate", "load_recipe", "load_run", "train"),
    "marft.python.environments": ("check_environment",),
    "marft.python.gateway": ("Gateway",),
    "marft.python.run": ("Run",),
    "marft.python.traces": ("score", "sft"),
    "marft.python.worth": ("worth",),
    "marft.traces.scores": ("Scores",),
    "marft.types": ("Action", "Episode", "JointAction", "Observation", "Step", "Task"),
}


def __getattr__(name: str) -> Any:
    for module, names in _PLACES.items():
        if name in names:
            return getattr(import_module(module), name)
    raise AttributeError(f"module 'marft' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
