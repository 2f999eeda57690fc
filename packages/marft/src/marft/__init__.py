"""MARFT: multi-agent reinforcement fine-tuning for teams of language-model agents.

Each public name is imported on first use, so ``import marft`` stays cheap.
"""

from typing import TYPE_CHECKING

from marft.common.lazy_imports import lazy_exports
from marft.common.version import __version__ as __version__

if TYPE_CHECKING:
    from marft.cli.python.commands import compare, evaluate, load_recipe, load_run, train
    from marft.cli.python.run import Run
    from marft.common.callbacks import Callback
    from marft.common.errors import RunError
    from marft.common.types import Action, Episode, JointAction, Observation, Step, Task
    from marft.config.interfaces.callback import CallbackPlugin
    from marft.config.interfaces.credit import Credit
    from marft.config.interfaces.environment import Environment, tool
    from marft.config.interfaces.objective import Objective
    from marft.config.interfaces.organization import Agents, Organization
    from marft.config.interfaces.schedule import UpdateSchedule
    from marft.config.plugins import Plugin
    from marft.config.run import RunSettings
    from marft.evaluation.evaluate import Evaluation
    from marft.evaluation.metric_changes import Comparison

__all__ = [
    "Action",
    "Agents",
    "Callback",
    "CallbackPlugin",
    "Comparison",
    "Credit",
    "Environment",
    "Episode",
    "Evaluation",
    "JointAction",
    "Objective",
    "Observation",
    "Organization",
    "Plugin",
    "Run",
    "RunError",
    "RunSettings",
    "Step",
    "Task",
    "UpdateSchedule",
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
        "marft.config.interfaces.callback": ("CallbackPlugin",),
        "marft.config.interfaces.credit": ("Credit",),
        "marft.config.interfaces.environment": ("Environment", "tool"),
        "marft.config.interfaces.objective": ("Objective",),
        "marft.config.interfaces.organization": ("Agents", "Organization"),
        "marft.config.interfaces.schedule": ("UpdateSchedule",),
        "marft.config.plugins": ("Plugin",),
        "marft.config.run": ("RunSettings",),
        "marft.common.errors": ("RunError",),
        "marft.evaluation.metric_changes": ("Comparison",),
        "marft.evaluation.evaluate": ("Evaluation",),
        "marft.common.callbacks": ("Callback",),
        "marft.cli.python.commands": ("compare", "evaluate", "load_recipe", "load_run", "train"),
        "marft.cli.python.run": ("Run",),
        "marft.common.types": ("Action", "Episode", "JointAction", "Observation", "Step", "Task"),
    },
)
