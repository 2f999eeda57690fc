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

    ``awaited`` is True for a coroutine (``async def``), False for a plain function, None for either.
    """

    arguments: tuple[str, ...] = ()
    awaited: bool | None = False

    def written(self, name: str) -> str:
        """Return the method's signature: ``async def act(self, observation, agents)``."""
        return f"{'async ' if self.awaited else ''}def {name}({', '.join(['self', *self.arguments])})"


@dataclass(frozen=True, slots=True)
class Seam:
    """Specification for one plugin kind.

    Args:
        noun: noun for the plugin, with its article.
        base: required base class, which has the defaults of the attributes.
        methods: required methods.
        attributes: allowed values of each attribute; a type allows all of its values.
        together: optional methods; a class has all of them or none.
    """

    noun: str
    base: str
    methods: Mapping[str, Method]
    attributes: Mapping[str, tuple[object, ...]] = field(default_factory=dict)
    together: Mapping[str, Method] = field(default_factory=dict)


_STATEFUL = {"state_dict": Method(), "load_state_dict": Method(("state",))}
SEAMS: Mapping[str, Seam] = {
    "engines": Seam(
        "an engine", "marft.config.parts.EnginePart", {"open": Method(("run", "models", "policies", "thread"))}
    ),
    "environments": Seam(
        "an environment",
        "marft.config.parts.EnvironmentPart",
        {"tasks": Method(("split",)), "start": Method(("task", "seed"), awaited=None)},
        attributes={
            "one_step": (bool,),
            "graded": (bool,),
            "session": (type, None),
            "says_whose_turn": (bool,),
            "offers_options": (bool,),
            "carries_words": (bool,),
        },
    ),
    "channels": Seam("a channel", "marft.config.plugins.Plugin", {"carry": Method(("messages",))}),
    "organizations": Seam(
        "an organization",
        "marft.config.parts.OrganizationPart",
        {"act": Method(("observation", "agents"), awaited=True)},
        attributes={"each_once": (bool,), "own_timeout": (bool,), "own_words": (bool,), "grades": (bool,)},
        together={"opened": Method(("task", "seed")), "close": Method()},
    ),
    "credits": Seam(
        "a credit",
        "marft.config.parts.CreditPart",
        {"assign": Method(("inputs",))},
        attributes={
            "needs_critic": (bool,),
            "reads_traces": (bool,),
            "grouped_by": ("", "task"),
            "makes_pairs": (bool,),
            "absolute": (bool,),
            "by_agent": (bool,),
        },
        together=_STATEFUL,
    ),
    "rewards": Seam(
        "a reward term",
        "marft.rewards.terms.Term",
        {
            "score": Method(("episode",), awaited=None),
            "opened": Method(("answering",)),
            "counts": Method(),
            "close": Method(),
            "weighed": Method(("value",)),
        },
        attributes={"own_timeout": (bool,)},
    ),
    "filters": Seam("a filter", "marft.config.parts.FilterPart", {"refused": Method(("candidates", "world"))}),
    "checks": Seam("a check", "marft.config.parts.CheckPart", {"found": Method(("deeds",))}),
    "proposers": Seam("a proposer", "marft.config.parts.ProposerPart", {"propose": Method(("asked",))}),
    "combiners": Seam(
        "a combiner",
        "marft.config.parts.CombinerPart",
        {"mixing": Method(("sites", "counts"))},
        attributes={"counted": ("", "episodes", "tokens")},
    ),
    "sinks": Seam(
        "a sink",
        "marft.config.parts.SinkPart",
        {"open": Method(("run",))},
        attributes={"package": (str,), "extra": (str,), "folder": (str,)},
    ),
    "memories": Seam(
        "a memory system",
        "marft.config.parts.MemoryPart",
        {"begin": Method(("count",))},
        attributes={"edits": (bool,)},
    ),
    "world_models": Seam("a world model", "marft.config.parts.WorldModelPart", {"fit": Method(("lived", "seed"))}),
    "tools": Seam("a source of tools", "marft.config.plugins.Plugin", {"connect": Method()}),
    "objectives": Seam(
        "an objective",
        "marft.config.parts.ObjectivePart",
        {"__call__": Method(("inputs",))},
        attributes={"clip_width": (int, float), "reads_pairs": (bool,)},
    ),
    "teammate_weights": Seam(
        "a weight of teammates' text",
        "marft.config.parts.TeammateWeightPart",
        {"weigh": Method(("log_probs", "author", "advantages"))},
    ),
    "schedules": Seam(
        "a schedule",
        "marft.config.parts.SchedulePart",
        {"plan": Method(("progress", "policies", "seed"))},
        attributes={"correction": ("", "product", "preceding"), "ratio_limit": (int, float)},
        together=_STATEFUL,
    ),
}


def class_problems(kind: str, cls: type) -> list[str]:
    """Return reasons why a class does not fit a plugin kind; empty if valid."""
    seam = SEAMS[kind]
    given = [name for name in seam.together if _found(cls, name) is not MISSING]
    methods = {**seam.methods, **(seam.together if given else {})}
    problems = [problem for name, method in methods.items() for problem in _method_problems(cls, name, method)]
    stranger = len(problems) == len(methods)
    based = _is_based(cls, seam)
    problems += [f"no attribute {name}" for name in seam.attributes if based and not _declares(cls, name)]
    problems += _misspelt(cls, seam) if based else [] if problems else ["it has another base"]
    if problems and stranger:
        fits = [other.noun for other_kind, other in SEAMS.items() if other_kind != kind and _is_one(other_kind, cls)]
        problems += [f"it looks like {fits[0]}"] if fits else []
    return problems


def value_problems(kind: str, plugin: object) -> list[str]:
    """Return invalid attribute values on a plugin; empty if valid."""
    problems = []
    for name, allowed in SEAMS[kind].attributes.items():
        value = getattr(plugin, name, MISSING)
        types = tuple(item for item in allowed if isinstance(item, type))
        values = tuple(item for item in allowed if not isinstance(item, type))
        fits = isinstance(value, types) and (bool in types or not isinstance(value, bool)) if types else False
        if value is not MISSING and not fits and not any(value is item or value == item for item in values):
            known = [item.__name__ if isinstance(item, type) else repr(item) for item in allowed]
            problems.append(f"its {name} is {value!r}, not {' or '.join(known)}")
    return problems


def refusal(kind: str, cls: type, problems: Iterable[str]) -> str:
    """Return an error message for a class that does not fit a plugin kind."""
    seam = SEAMS[kind]
    remedy = "" if _is_based(cls, seam) else f"; derive it from {seam.base}"
    return f"{cls.__module__}.{cls.__qualname__} is not {seam.noun}: {', '.join(problems)}{remedy}"


def _is_based(cls: type, seam: Seam) -> bool:
    return any(f"{one.__module__}.{one.__qualname__}" == seam.base for one in cls.__mro__)


def _misspelt(cls: type, seam: Seam) -> list[str]:
    """Return messages for unknown attributes with names close to known ones."""
    at = next(n for n, one in enumerate(cls.__mro__) if f"{one.__module__}.{one.__qualname__}" == seam.base)
    base = cls.__mro__[at]
    known = {name for name in (*vars(base), *seam.attributes, *seam.together) if not name.startswith("_")}
    own = {name for one in cls.__mro__[:at] for name in (*vars(one), *vars(one).get("__annotations__", ()))}
    return [
        f"it says {name}, which nobody reads; is {close[0]} meant?"
        for name in sorted(own - known - {*dir(base), *seam.methods})
        if not name.startswith("_") and (close := get_close_matches(name, known, n=1, cutoff=0.85))
    ]


def _is_one(kind: str, cls: type) -> bool:
    return not any(list(_method_problems(cls, name, method)) for name, method in SEAMS[kind].methods.items())


def _method_problems(cls: type, name: str, method: Method) -> Iterable[str]:
    found = _found(cls, name)
    if found is MISSING or not callable(getattr(found, "__func__", found)):
        yield f"no method {method.written(name)}"
        return
    if getattr(found, "__isabstractmethod__", False):
        yield f"{name} is abstract; write {method.written(name)}"
        return
    function = inspect.unwrap(getattr(found, "__func__", found))
    bound = not inspect.isfunction(found) and not isinstance(found, classmethod)
    try:
        inspect.signature(function).bind(*[None] * (len(method.arguments) + (not bound)))
    except TypeError:
        yield f"{name} does not take the arguments of {method.written(name)}"
    except ValueError:  # a builtin without a signature
        pass
    coroutine = inspect.iscoroutinefunction(function)
    if method.awaited and not coroutine:
        yield f"{name} is no coroutine; write {method.written(name)}"
    if method.awaited is False and (coroutine or inspect.isasyncgenfunction(function)):
        yield f"{name} is a coroutine, which nobody would await; write {method.written(name)}"


def _found(cls: type, name: str) -> Any:
    """Return the attribute from the class or a base class, without its metaclass; MISSING if absent."""
    return next((vars(one)[name] for one in cls.__mro__[:-1] if name in vars(one)), MISSING)


def _declares(cls: type, name: str) -> bool:
    return _found(cls, name) is not MISSING or name in getattr(cls, "model_fields", {})
