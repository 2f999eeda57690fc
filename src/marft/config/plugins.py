"""Plugins: a named part of a run whose fields are its keys in the recipe and whose methods do the work.

An environment, organization, credit, objective or schedule is one class in one file. A recipe names it by its
built-in name, by a name that an installed package registered under the entry-point group ``marft.<kind>``, or by
import path (``my_package.module:Class``). It is held to its seam (:mod:`marft.config.seams`) when the recipe is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from pydantic import (
    BeforeValidator,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
)
from pydantic_core import PydanticCustomError

from marft.config.folders import FOLDER, refuse_namesakes
from marft.config.given import Given
from marft.config.seams import SEAMS, class_problems, refusal, value_problems
from marft.config.settings import Settings, did_you_mean
from marft.faults import described
from marft.user_modules import import_named

BUILT_IN: Mapping[str, Mapping[str, str]] = {
    "engines": {
        "local": "marft.engines.kinds:Local",
        "process": "marft.engines.kinds:Process",
        "vllm": "marft.engines.kinds:Vllm",
    },
    "environments": {
        "code": "marft.envs.code.environment:Code",
        "gaia": "marft.envs.gaia.environment:Gaia",
        "gymnasium": "marft.envs.gyms.gymnasium_game:Gymnasium",
        "instructions": "marft.envs.instructions.environment:Instructions",
        "math": "marft.envs.math:Math",
        "memory": "marft.envs.memory.environment:Memory",
        "mle": "marft.envs.mle.environment:Mle",
        "pettingzoo": "marft.envs.gyms.pettingzoo_game:PettingZoo",
        "plan_path": "marft.envs.plan_path.environment:PlanPath",
        "reasoning_gym": "marft.envs.reasoning_gym:ReasoningGym",
        "relay": "marft.envs.relay.environment:Relay",
        "rooms": "marft.envs.rooms.environment:Rooms",
        "shop": "marft.envs.shop.environment:Shop",
        "sokoban": "marft.envs.sokoban.environment:Sokoban",
        "sudoku": "marft.envs.sudoku.environment:Sudoku",
        "table": "marft.envs.table:Table",
        "textarena": "marft.envs.textarena.environment:TextArena",
        "tool_use": "marft.envs.tool_use.environment:ToolUse",
        "toolsandbox": "marft.envs.toolsandbox.environment:ToolSandbox",
        "verifiers": "marft.envs.verifying.environment:Verifiers",
    },
    "channels": {
        "last": "marft.game.channels.last:Last",
        "raw": "marft.game.channels.raw:Raw",
        "record": "marft.game.channels.record:Record",
        "truncated": "marft.game.channels.truncated:Truncated",
    },
    "organizations": {
        "chain": "marft.game.organizations.chain:Chain",
        "debate": "marft.game.organizations.debate:Debate",
        "flow": "marft.flows.organization:Flow",
        "graph": "marft.game.organizations.graph:Graph",
        "hierarchical": "marft.game.organizations.hierarchical:Hierarchical",
        "mixture-of-agents": "marft.game.organizations.mixture:MixtureOfAgents",
        "orchestrated": "marft.game.organizations.orchestrated:Orchestrated",
        "parallel": "marft.game.organizations.parallel:Parallel",
        "program": "marft.gateway.program:Program",
        "reflective": "marft.game.organizations.reflective:Reflective",
        "turns": "marft.game.organizations.turns:Turns",
    },
    "credits": {
        "agent-group": "marft.learning.credit.agent_group:AgentGroup",
        "batch": "marft.learning.credit.batch:Batch",
        "best": "marft.learning.credit.best:Best",
        "comam": "marft.learning.credit.comam:CoMAM",
        "counterfactual": "marft.learning.credit.counterfactual:Counterfactual",
        "gae": "marft.learning.credit.gae:GAE",
        "grpo": "marft.learning.credit.grpo:GRPO",
        "magrpo": "marft.learning.credit.magrpo:MAGRPO",
        "monte-carlo": "marft.learning.credit.monte_carlo:MonteCarlo",
        "preference": "marft.learning.credit.preference:Preference",
        "preference-tree": "marft.learning.credit.preference_tree:PreferenceTree",
        "rae": "marft.learning.credit.rae:RAE",
        "rloo": "marft.learning.credit.rloo:RLOO",
        "step-gae": "marft.learning.credit.step_gae:StepGAE",
        "tree": "marft.learning.credit.tree:Tree",
    },
    "rewards": {
        "format": "marft.rewards.terms:Format",
        "function": "marft.rewards.terms:Function",
        "judge": "marft.rewards.judge:Judge",
        "message_tokens": "marft.rewards.terms:MessageTokens",
        "outcome": "marft.rewards.terms:Outcome",
        "progress": "marft.rewards.terms:Progress",
        "step_cost": "marft.rewards.terms:StepCost",
        "tool_errors": "marft.rewards.terms:ToolErrors",
        "trajectory": "marft.rewards.terms:Trajectory",
        "trajectory_score": "marft.rewards.terms:TrajectoryScore",
    },
    "checks": {
        "calls": "marft.evaluation.safety.checks.calls:Calls",
        "leaks": "marft.evaluation.safety.checks.leaks:Leaks",
        "says": "marft.evaluation.safety.checks.says:Says",
    },
    "combiners": {
        "alone": "marft.federated.combiners.alone:Alone",
        "average": "marft.federated.combiners.average:Average",
        "gossip": "marft.federated.combiners.gossip:Gossip",
    },
    "filters": {
        "duplicates": "marft.synthesis.filters.duplicates:Duplicates",
        "handoffs": "marft.synthesis.filters.handoffs:Handoffs",
        "leakage": "marft.synthesis.filters.leakage:Leakage",
        "success": "marft.synthesis.filters.success:Success",
    },
    "memories": {
        "hierarchical": "marft.memories.hierarchical:Hierarchical",
        "index": "marft.memories.index:Index",
        "key_value": "marft.memories.key_value:KeyValue",
        "learned": "marft.memories.learned:Learned",
        "log": "marft.memories.log:Log",
        "summary": "marft.memories.summary:Summary",
    },
    "world_models": {
        "counts": "marft.world_models.counts:Counts",
        "regression": "marft.world_models.regression:Regression",
    },
    "proposers": {
        "edits": "marft.profiles.proposers.edits:Edits",
        "evolution": "marft.profiles.proposers.evolution:Evolution",
        "gradient": "marft.profiles.proposers.gradient:Gradient",
    },
    "sinks": {
        "mlflow": "marft.sinks.mlflow:MLflow",
        "tensorboard": "marft.sinks.tensorboard:TensorBoard",
        "trackio": "marft.sinks.trackio:Trackio",
        "wandb": "marft.sinks.wandb:WandB",
    },
    "tools": {
        "function": "marft.tools.functions:Functions",
        "mcp": "marft.tools.mcp:MCP",
        "memory": "marft.tools.memory:Remembering",
        "python": "marft.tools.python:Python",
    },
    "objectives": {
        "cispo": "marft.learning.objectives.cispo:CISPO",
        "dpo": "marft.learning.objectives.dpo:DPO",
        "ppo": "marft.learning.objectives.ppo:PPO",
        "reinforce": "marft.learning.objectives.reinforce:Reinforce",
    },
    "teammate_weights": {
        "bounded": "marft.learning.teammate_weights:Bounded",
        "shaped": "marft.learning.teammate_weights:Shaped",
        "truncated": "marft.learning.teammate_weights:Truncated",
        "unweighted": "marft.learning.teammate_weights:Unweighted",
    },
    "schedules": {
        "a2po": "marft.learning.schedules:A2PO",
        "agent-by-agent": "marft.learning.schedules:AgentByAgent",
        "sequential": "marft.learning.schedules:Sequential",
        "simultaneous": "marft.learning.schedules:Simultaneous",
    },
}
TAGS = {"organizations": "organization", "engines": "kind"}
SINGULAR = {"memories": "memory"}  # of those that do not lose an s alone


class Plugin(Settings):
    """Base of every plugin class. It remembers the name it was asked for by, so that it can be saved again."""

    _kind: str = PrivateAttr(default="")
    _name: str = PrivateAttr(default="")

    @property
    def name(self) -> str:
        return self._name or type(self).__name__

    @classmethod
    def known_values(cls) -> Mapping[str, Sequence[str]]:
        """Keys that take one name of a list, and the list, for whoever asks what there is."""
        return {}

    def problems(self, roles: Sequence[str]) -> Iterable[str]:  # noqa: ARG002
        """What is wrong with it in a team of these roles, each with its remedy."""
        return ()

    @model_serializer(mode="wrap")
    def _with_its_name(self, serialise: SerializerFunctionWrapHandler) -> dict[str, object]:
        return {TAGS.get(self._kind, "name"): self.name, **serialise(self)}


def one_of(kind: str) -> str:
    """What one of a kind is called.

    >>> one_of("credits"), one_of("memories")
    ('credit', 'memory')
    """
    return SINGULAR.get(kind, kind[:-1])


def called(plugin: Plugin) -> str:
    """``credit 'my_package.credits:Median'``, for messages."""
    return f"{one_of(plugin._kind) or 'part'} {plugin.name!r}"


def plugin_names(kind: str) -> list[str]:
    """The names that a recipe may use for ``kind``, built in or registered by installed packages."""
    return sorted({*BUILT_IN[kind], *(point.name for point in entry_points(group=f"marft.{kind}"))})


def find_plugin(kind: str, name: str, context: Mapping[str, object] | None = None) -> type[Plugin]:
    """The class behind ``name``, in a recipe whose folder ``context`` tells.

    Raises:
        ValueError: nothing goes by that name, it cannot be imported, or what does is no plugin of this kind.
    """
    if name in BUILT_IN[kind]:
        found = import_path(BUILT_IN[kind][name])
    elif ":" in name:
        found = import_path(name, context)
    else:
        registered = {point.name: point for point in entry_points(group=f"marft.{kind}")}
        if name not in registered:
            raise ValueError(f"no {one_of(kind)} is called {name!r}{did_you_mean(name, plugin_names(kind))}")
        found = _imported(registered[name].value, registered[name].load)
    if isinstance(found, Plugin):
        found = type(found)
    if not (isinstance(found, type) and issubclass(found, Plugin)):
        raise ValueError(f"{name!r} is not {SEAMS[kind].noun}: its class must derive from {SEAMS[kind].base}")
    problems = class_problems(kind, found)
    if problems:
        raise ValueError(refusal(kind, found, problems))
    return found


def module_in(text: str) -> str:
    """The module that an import path names; "" where a text is none.

    >>> [module_in(text) for text in ("my_package.team:solve", "équipe:résous", "Answer: 5", "my-team:solve")]
    ['my_package.team', 'équipe', '', '']
    """
    module, _, name = text.partition(":")
    return module if all(map(str.isidentifier, (*module.split("."), name))) else ""


def their_module_in(text: str) -> str:
    """The same where it is somebody's own, and not MARFT's."""
    module = module_in(text)
    return "" if module.partition(".")[0] == "marft" else module


def import_path(path: str, context: Mapping[str, object] | None = None) -> Any:
    """What ``"package.module:name"`` names; where a recipe is read, ``context`` tells its folder.

    Raises:
        ValueError: it cannot be imported, or the recipe's folder holds another module of that name.
    """
    if isinstance(path, Given):
        return path.value
    module = module_in(path)
    if not module:
        raise ValueError(f"cannot import {path!r}: it must look like my_package.module:name")
    folder = str((context or {}).get(FOLDER) or "")
    found = _imported(path, lambda: getattr(import_named(module, folder), path.partition(":")[2]))
    refuse_namesakes(path, context)
    return found


def _imported(path: str, load: Callable[[], object]) -> object:
    try:
        return load()
    except (Exception, SystemExit) as error:
        raise ValueError(f"cannot import {path!r}: {described(error)}{_where_to_look(path, error)}") from error


def _where_to_look(path: str, error: BaseException) -> str:
    """What to do where the module itself, and nothing that it imports, is not there."""
    module = path.partition(":")[0]
    if not isinstance(error, ModuleNotFoundError) or not f"{module}.".startswith(f"{error.name}."):
        return ""
    return (
        f"; it is neither installed nor in {Path.cwd()}, nor beside the recipe: run marft from the folder that holds "
        f"{module.split('.')[0]}, or install it"
    )


def resolver(kind: str, optional: bool = False) -> object:
    """Validates a key that holds a part of this kind: from its table, or the part itself; or nothing."""
    tag = TAGS.get(kind, "name")

    def resolve(table: object, info: ValidationInfo) -> object:
        if isinstance(table, Plugin) or (optional and table is None):
            return table
        if not isinstance(table, dict):
            raise PydanticCustomError("plugin_table", "must be a table with a {tag}", {"tag": repr(tag)})
        if not isinstance(table.get(tag), str):
            known = ", ".join(plugin_names(kind))
            raise PydanticCustomError("plugin_tag", "needs {tag}: one of {known}", {"tag": repr(tag), "known": known})
        cls = find_plugin(kind, table[tag], info.context)
        plugin = _made(cls, {key: value for key, value in table.items() if key != tag}, info.context)
        if isinstance(table[tag], Given) and isinstance(table[tag].value, Plugin):
            plugin = _itself(table[tag].value, plugin)
        plugin._kind, plugin._name = kind, table[tag]
        problems = value_problems(kind, plugin)
        if problems:
            raise ValueError(refusal(kind, cls, problems))
        return plugin

    return BeforeValidator(resolve)


def _itself(given: Plugin, made: Plugin) -> Plugin:
    """A copy of the object that was given: what it holds besides its fields, no recipe can say.

    Raises:
        ValueError: the recipe has changed a field of it.
    """
    if any(getattr(given, key) != getattr(made, key) for key in type(given).model_fields):
        raise ValueError(f"{type(given).__name__} was given as an object; change its fields there, or give its class")
    return given.model_copy()


def _made(cls: type[Plugin], table: dict[str, object], context: Mapping[str, object] | None) -> Plugin:
    try:
        return cls.model_validate(table, context=context)
    except (ValidationError, PydanticCustomError):
        raise
    except Exception as error:
        raise ValueError(f"{cls.__module__}.{cls.__qualname__} raised {described(error)}") from error
