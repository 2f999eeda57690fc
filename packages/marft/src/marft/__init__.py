"""MARFT: multi-agent reinforcement fine-tuning for teams of language-model agents.

Each public name is imported on first use, so ``import marft`` stays cheap.
"""

from typing import TYPE_CHECKING

from marft.common.lazy_imports import lazy_exports
from marft.common.version import __version__ as __version__

if TYPE_CHECKING:
    from marft.agents.agents import Agents
    from marft.agents.environment import tool
    from marft.cli.python.commands import compare, evaluate, load_recipe, load_run, train
    from marft.cli.python.run import Run
    from marft.common.callbacks import Callback
    from marft.common.errors import RunError
    from marft.common.types import Action, Episode, JointAction, Observation, Step, Task
    from marft.config.plugin_types import (
        CallbackPart,
        CreditPart,
        EnvironmentPart,
        ObjectivePart,
        OrganizationPart,
        SchedulePart,
    )
    from marft.config.plugins import Plugin
    from marft.config.run import RunSettings
    from marft.evaluation.comparison import Comparison
    from marft.evaluation.evaluate import Evaluation

__all__ = [
    "Action",
    "Agents",
    "Callback",
    "CallbackPart",
    "Comparison",
    "CreditPart",
    "EnvironmentPart",
    "Episode",
    "Evaluation",
    "JointAction",
    "ObjectivePart",
    "Observation",
    "OrganizationPart",
    "Plugin",
    "Run",
    "RunError",
    "RunSettings",
    "SchedulePart",
    "Step",
    "Task",
    "compare",
    "evaluate",
    "load_recipe",
    "load_run",
    "tool",
    "train",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "marft.config.plugin_types": (
            "CallbackPart",
            "CreditPart",
            "EnvironmentPart",
            "ObjectivePart",
            "OrganizationPart",
            "SchedulePart",
        ),
        "marft.config.plugins": ("Plugin",),
        "marft.config.run": ("RunSettings",),
        "marft.common.errors": ("RunError",),
        "marft.evaluation.comparison": ("Comparison",),
        "marft.evaluation.evaluate": ("Evaluation",),
        "marft.agents.agents": ("Agents",),
        "marft.agents.environment": ("tool",),
        "marft.common.callbacks": ("Callback",),
        "marft.cli.python.commands": ("compare", "evaluate", "load_recipe", "load_run", "train"),
        "marft.cli.python.run": ("Run",),
        "marft.common.types": ("Action", "Episode", "JointAction", "Observation", "Step", "Task"),
    },
)
