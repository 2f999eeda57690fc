"""Plugin specifications: required methods and attributes for each kind.

A class that does not match is rejected when the recipe is loaded. The specifications consist of names and import no
protocols (docs: architecture, seams), because the modules of the protocols may import torch.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

MISSING = object()


@dataclass(frozen=True, slots=True)
class Method:
    """Required method: its arguments, and sync or async.

    ``is_async`` is True for a coroutine (``async def``), False for a plain function, None for either.
    """

    arguments: tuple[str, ...] = ()
    is_async: bool | None = False

    def signature(self, name: str) -> str:
        """Return the method's signature: ``async def act(self, observation, agents)``."""
        return f"{'async ' if self.is_async else ''}def {name}({', '.join(['self', *self.arguments])})"


@dataclass(frozen=True, slots=True)
class PluginSpec:
    """Specification for one plugin kind.

    Args:
        label: noun for the plugin, with its article.
        base: required base class, which has the defaults of the attributes.
        methods: required methods.
        attributes: allowed values of each attribute; a type allows all of its values.
        optional_methods: optional methods; a class has all of them or none.
    """

    label: str
    base: str
    methods: Mapping[str, Method]
    attributes: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    optional_methods: Mapping[str, Method] = field(default_factory=dict)


_STATEFUL = {"state_dict": Method(), "load_state_dict": Method(("state",))}
PLUGIN_SPECS: Mapping[str, PluginSpec] = {
    "engines": PluginSpec(
        "an engine", "marft.config.plugin_types.EnginePart", {"open": Method(("run", "models", "policies", "thread"))}
    ),
    "environments": PluginSpec(
        "an environment",
        "marft.config.plugin_types.EnvironmentPart",
        {"tasks": Method(("split",)), "start": Method(("task", "seed"), is_async=None)},
        attributes={
            "one_step": (bool,),
            "grades_answers": (bool,),
            "session": (type, None),
            "controls_turns": (bool,),
            "offers_options": (bool,),
            "relays_messages": (bool,),
        },
    ),
    "channels": PluginSpec("a channel", "marft.config.plugins.Plugin", {"carry": Method(("messages",))}),
    "organizations": PluginSpec(
        "an organization",
        "marft.config.plugin_types.OrganizationPart",
        {"act": Method(("observation", "agents"), is_async=True)},
        attributes={
            "single_action_each": (bool,),
            "own_timeout": (bool,),
            "writes_prompts": (bool,),
            "grades_answers": (bool,),
        },
        optional_methods={"open": Method(("task", "seed")), "close": Method()},
    ),
    "credits": PluginSpec(
        "a credit",
        "marft.config.plugin_types.CreditPart",
        {"assign": Method(("inputs",))},
        attributes={
            "needs_critic": (bool,),
            "supports_a2po": (bool,),
            "comparison_group": ("", "task"),
            "makes_pairs": (bool,),
            "absolute_weights": (bool,),
            "per_agent": (bool,),
        },
        optional_methods=_STATEFUL,
    ),
    "rewards": PluginSpec(
        "a reward term",
        "marft.rewards.terms.Term",
        {
            "score": Method(("episode",), is_async=None),
            "open": Method(("answer_roles",)),
            "counts": Method(),
            "close": Method(),
            "apply_weight": Method(("value",)),
        },
        attributes={"own_timeout": (bool,)},
    ),
    "filters": PluginSpec(
        "a filter", "marft.config.plugin_types.FilterPart", {"reject": Method(("candidates", "context"))}
    ),
    "checks": PluginSpec("a check", "marft.config.plugin_types.CheckPart", {"find_violations": Method(("outputs",))}),
    "proposers": PluginSpec("a proposer", "marft.config.plugin_types.ProposerPart", {"propose": Method(("request",))}),
    "combiners": PluginSpec(
        "a combiner",
        "marft.config.plugin_types.CombinerPart",
        {"mixing_weights": Method(("sites", "counts"))},
        attributes={"count_unit": ("", "episodes", "tokens")},
    ),
    "callbacks": PluginSpec("a callback", "marft.config.plugin_types.CallbackPart", {}),
    "sinks": PluginSpec(
        "a sink",
        "marft.config.plugin_types.SinkPart",
        {"open": Method(("run",))},
        attributes={"package": (str,), "extra": (str,), "folder": (str,)},
    ),
    "memories": PluginSpec(
        "a memory system",
        "marft.config.plugin_types.MemoryPart",
        {"begin": Method(("count",))},
        attributes={"stores_edits": (bool,)},
    ),
    "world_models": PluginSpec(
        "a world model", "marft.config.plugin_types.WorldModelPart", {"fit": Method(("transitions", "seed"))}
    ),
    "tools": PluginSpec("a source of tools", "marft.config.plugins.Plugin", {"connect": Method()}),
    "objectives": PluginSpec(
        "an objective",
        "marft.config.plugin_types.ObjectivePart",
        {"__call__": Method(("inputs",))},
        attributes={"clip_width": (int, float), "reads_pairs": (bool,)},
    ),
    "teammate_weights": PluginSpec(
        "a weight of teammates' text",
        "marft.config.plugin_types.TeammateWeightPart",
        {"compute_weights": Method(("log_probs", "author", "advantages"))},
    ),
    "schedules": PluginSpec(
        "a schedule",
        "marft.config.plugin_types.SchedulePart",
        {"plan": Method(("progress", "policies", "seed"))},
        attributes={"correction": ("", "product", "preceding"), "ratio_limit": (int, float)},
        optional_methods=_STATEFUL,
    ),
}


def class_problems(kind: str, cls: type) -> list[str]:
    """Return reasons why a class does not fit a plugin kind; empty if valid."""
    spec = PLUGIN_SPECS[kind]
    defined = [name for name in spec.optional_methods if _find_attribute(cls, name) is not MISSING]
    methods = {**spec.methods, **(spec.optional_methods if defined else {})}
    problems = [problem for name, method in methods.items() for problem in _method_problems(cls, name, method)]
    has_no_method = len(problems) == len(methods)
    has_base = _has_base(cls, spec)
    problems += [f"no attribute {name}" for name in spec.attributes if has_base and not _declares(cls, name)]
    problems += _misspelled_attributes(cls, spec) if has_base else [] if problems else ["it has another base"]
    if problems and has_no_method:
        matching = [
            candidate.label
            for candidate_kind, candidate in PLUGIN_SPECS.items()
            if candidate_kind != kind and candidate.methods and _matches_kind(candidate_kind, cls)
        ]
        problems += [f"it looks like {matching[0]}"] if matching else []
    return problems


def value_problems(kind: str, plugin: object) -> list[str]:
    """Return invalid attribute values on a plugin; empty if valid."""
    problems = []
    for name, allowed in PLUGIN_SPECS[kind].attributes.items():
        value = getattr(plugin, name, MISSING)
        types = tuple(item for item in allowed if isinstance(item, type))
        values = tuple(item for item in allowed if not isinstance(item, type))
        fits = isinstance(value, types) and (bool in types or not isinstance(value, bool)) if types else False
        if value is not MISSING and not fits and not any(value is item or value == item for item in values):
            choices = [item.__name__ if isinstance(item, type) else repr(item) for item in allowed]
            problems.append(f"its {name} is {value!r}, not {' or '.join(choices)}")
    return problems


def mismatch_message(kind: str, cls: type, problems: Iterable[str]) -> str:
    """Return an error message for a class that does not fit a plugin kind."""
    spec = PLUGIN_SPECS[kind]
    hint = "" if _has_base(cls, spec) else f"; derive it from {spec.base}"
    return f"{cls.__module__}.{cls.__qualname__} is not {spec.label}: {', '.join(problems)}{hint}"


def _has_base(cls: type, spec: PluginSpec) -> bool:
    return any(f"{parent.__module__}.{parent.__qualname__}" == spec.base for parent in cls.__mro__)


def _misspelled_attributes(cls: type, spec: PluginSpec) -> list[str]:
    """Return messages for unknown attributes with names close to known ones."""
    at = next(n for n, parent in enumerate(cls.__mro__) if f"{parent.__module__}.{parent.__qualname__}" == spec.base)
    base = cls.__mro__[at]
    known_names = {name for name in (*vars(base), *spec.attributes, *spec.optional_methods) if not name.startswith("_")}
    new_names = {
        name for parent in cls.__mro__[:at] for name in (*vars(parent), *vars(parent).get("__annotations__", ()))
    }
    return [
        f"it says {name}, which nobody reads; is {close[0]} meant?"
        for name in sorted(new_names - known_names - {*dir(base), *spec.methods})
        if not name.startswith("_") and (close := get_close_matches(name, known_names, n=1, cutoff=0.85))
    ]


def _matches_kind(kind: str, cls: type) -> bool:
    return not any(list(_method_problems(cls, name, method)) for name, method in PLUGIN_SPECS[kind].methods.items())


def _method_problems(cls: type, name: str, method: Method) -> Iterable[str]:
    attribute = _find_attribute(cls, name)
    if attribute is MISSING or not callable(getattr(attribute, "__func__", attribute)):
        yield f"no method {method.signature(name)}"
        return
    if getattr(attribute, "__isabstractmethod__", False):
        yield f"{name} is abstract; write {method.signature(name)}"
        return
    function = inspect.unwrap(getattr(attribute, "__func__", attribute))
    bound = not inspect.isfunction(attribute) and not isinstance(attribute, classmethod)
    try:
        inspect.signature(function).bind(*[None] * (len(method.arguments) + (not bound)))
    except TypeError:
        yield f"{name} does not take the arguments of {method.signature(name)}"
    except ValueError:  # a builtin without a signature
        pass
    coroutine = inspect.iscoroutinefunction(function)
    if method.is_async and not coroutine:
        yield f"{name} is no coroutine; write {method.signature(name)}"
    if method.is_async is False and (coroutine or inspect.isasyncgenfunction(function)):
        yield f"{name} is a coroutine, which nobody would await; write {method.signature(name)}"


def _find_attribute(cls: type, name: str) -> Any:
    """Return the attribute from the class or a base class, without its metaclass; MISSING if absent."""
    return next((vars(parent)[name] for parent in cls.__mro__[:-1] if name in vars(parent)), MISSING)


def _declares(cls: type, name: str) -> bool:
    return _find_attribute(cls, name) is not MISSING or name in getattr(cls, "model_fields", {})
