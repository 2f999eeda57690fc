"""Python functions as tools, described to agents by their signature and docstring."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticUserError,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
)

from marft.agents.environment import OFFERED, Session
from marft.agents.tool_sources import ToolSession, ToolSource
from marft.agents.tools.results import refuse_return, text_of
from marft.common.texts import raised
from marft.common.types import Task, Tool
from marft.config.given import ImportPath
from marft.config.plugins import Plugin, import_path


class Functions(Plugin):
    """Tool from a function, or tools from a class's public methods; ``call`` is its import path.

    Every episode creates an object of the class from its task and a seed, so the object may keep state within the
    episode.

    ::

        [tools.search]
        name = "function"
        call = "my_package.tools:search"
    """

    call: ImportPath  # import path of a function or a class

    @field_validator("call")
    @classmethod
    def _is_callable(cls, call: str, info: ValidationInfo) -> str:
        _functions(import_path(call, info.context))
        return call

    def connect(self) -> FunctionSource:
        """Return the tool source for the run."""
        return FunctionSource(import_path(self.call))


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """Function with a model that validates its arguments."""

    tool: Tool
    arguments: type[BaseModel]
    parameters: Sequence[str]

    @staticmethod
    def of(function: Callable[..., object], method: bool = False) -> Function:
        """Read a function's signature.

        Raises:
            ValueError: an argument has no type hint, a type without a JSON schema, or takes any number of values; or
                the return type never has a JSON form.
        """
        try:
            return Function._read(function, method)
        except (NameError, TypeError, PydanticUserError) as error:
            name = getattr(function, "__name__", repr(function))
            raise ValueError(f"tool {name!r}: its type hints say nothing that JSON can: {raised(error)}") from error

    @staticmethod
    def _read(function: Callable[..., object], method: bool) -> Function:
        name = function.__name__
        hints = get_type_hints(function, include_extras=True)
        fields: dict[str, Any] = {}
        for parameter in list(inspect.signature(function).parameters.values())[int(method) :]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise ValueError(f"tool {name!r}: every argument needs a name; {parameter} has none")
            if parameter.name not in hints:
                raise ValueError(f"tool {name!r}: its argument {parameter.name!r} needs a type hint")
            default = ... if parameter.default is parameter.empty else parameter.default
            # an argument name must not shadow an attribute of pydantic models
            fields[f"argument_{parameter.name}"] = (hints[parameter.name], Field(default, alias=parameter.name))
        _refuse_return(name, hints.get("return", Any))
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        parameters = model.model_json_schema(by_alias=True)
        parameters.pop("title", None)
        tool = Tool(name, inspect.getdoc(function) or "", {"type": "object", "properties": {}, **parameters})
        return Function(tool, model, tuple(fields))

    def bind(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Return validated arguments for the function.

        Raises:
            ValueError: the arguments are invalid; the message is for the agent.
        """
        try:
            bound = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, p['loc'])) or 'arguments'}: {p['msg']}" for p in error.errors())
            raise ValueError(problems) from None
        return {name.removeprefix("argument_"): getattr(bound, name) for name in self.parameters}


@dataclass(eq=False)
class FunctionSource(ToolSource):
    """Tool source for a function or a class."""

    found: Callable[..., object]
    functions: dict[str, Function] = field(init=False)

    def __post_init__(self) -> None:
        self.functions = _functions(self.found)

    @property
    def tools(self) -> Sequence[Tool]:
        """Tool descriptions from signatures and docstrings."""
        return [function.tool for function in self.functions.values()]

    @property
    def stateful(self) -> bool:
        """True for methods of an object created per episode."""
        return isinstance(self.found, type)

    def open(self, task: Task, seed: int) -> FunctionSession:
        """Open a session; for a class, create the episode's object."""
        if not isinstance(self.found, type):
            return FunctionSession(self.functions, {self.found.__name__: self.found})
        made = self.found(task, seed)
        return FunctionSession(self.functions, {name: getattr(made, name) for name in self.functions}, made)


@dataclass(frozen=True, slots=True, eq=False)
class FunctionSession:
    """Function tools in one episode."""

    functions: Mapping[str, Function]
    bodies: Mapping[str, Callable[..., object]]
    owner: object = None

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Call a function and return its result as text (:mod:`.results`); errors go to the agent."""
        return await text_of(self.bodies[tool](**self.functions[tool].bind(arguments)))

    async def end(self) -> None:
        """Call the episode object's ``close`` method, if present."""
        close = getattr(self.owner, "close", None)
        done = close() if callable(close) else None
        if isinstance(done, Awaitable):
            await done


class SessionSource(ToolSource):
    """Tool source for an environment session: its methods marked as tools.

    Raises:
        ValueError: no method is marked.
    """

    def __init__(self, session: type) -> None:
        marked = [m for _, m in inspect.getmembers(session, inspect.isfunction) if hasattr(m, OFFERED)]
        if not marked:
            raise ValueError(f"{session.__name__} has no methods that are marked with @tool")
        self.functions = {method.__name__: Function.of(method, method=True) for method in marked}

    @property
    def tools(self) -> Sequence[Tool]:
        """Tool descriptions from the session class."""
        return [function.tool for function in self.functions.values()]

    def open(self, task: Task, seed: int) -> ToolSession:
        """Raise an error: the environment opens the session; see :meth:`joined`."""
        raise AssertionError(f"the session of {task.id} (seed {seed}) has not begun")

    def joined(self, session: Session) -> ToolSession:
        """Return a session for the methods of the environment's session, or of its ``toolbox``."""
        owner = getattr(session, "toolbox", session)
        return FunctionSession(self.functions, {name: getattr(owner, name) for name in self.functions})


def _functions(found: Callable[..., object]) -> dict[str, Function]:
    if not isinstance(found, type):
        if not inspect.isfunction(found):
            raise ValueError(f"{found!r} is neither a function nor a class")
        return {found.__name__: Function.of(found)}
    methods = {name: method for name, method in inspect.getmembers(found, inspect.isfunction) if _is_tool(name)}
    if not methods:
        raise ValueError(f"{found.__name__} has no public methods that could be tools")
    try:
        inspect.signature(found).bind(None, 0)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{found.__name__}(task, seed) is how an object of it is made, but: {error}") from error
    return {
        name: Function.of(method, not isinstance(inspect.getattr_static(found, name), staticmethod))
        for name, method in methods.items()
    }


def _refuse_return(name: str, annotation: object) -> None:
    try:
        refuse_return(annotation)
    except ValueError as error:
        raise ValueError(f"tool {name!r}: {error}") from error


def _is_tool(name: str) -> bool:
    return not name.startswith("_") and name != "close"
