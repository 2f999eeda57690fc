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

from marft.agents.environment import TOOL_ATTRIBUTE, Session
from marft.agents.tool_sources import ToolSession, ToolSource
from marft.agents.tools.results import check_return_type, result_text
from marft.common.texts import format_error
from marft.common.types import Task, Tool
from marft.config.plugins import Plugin, import_object
from marft.config.python_objects import ImportPath


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
        _find_functions(import_object(call, info.context))
        return call

    def connect(self) -> FunctionSource:
        """Return the tool source for the run."""
        return FunctionSource(import_object(self.call))


@dataclass(frozen=True, slots=True, eq=False)
class Function:
    """Function with a model that validates its arguments."""

    tool: Tool
    arguments: type[BaseModel]
    parameters: Sequence[str]

    @staticmethod
    def from_function(function: Callable[..., object], method: bool = False) -> Function:
        """Read a function's signature.

        Raises:
            ValueError: an argument has no type hint, a type without a JSON schema, or takes any number of values; or
                the return type never has a JSON form.
        """
        try:
            return Function._from_signature(function, method)
        except (NameError, TypeError, PydanticUserError) as error:
            name = getattr(function, "__name__", repr(function))
            raise ValueError(
                f"tool {name!r}: its type hints say nothing that JSON can: {format_error(error)}"
            ) from error

    @staticmethod
    def _from_signature(function: Callable[..., object], method: bool) -> Function:
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
        _check_return(name, hints.get("return", Any))
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        parameters = model.model_json_schema(by_alias=True)
        parameters.pop("title", None)
        tool = Tool(name, inspect.getdoc(function) or "", {"type": "object", "properties": {}, **parameters})
        return Function(tool, model, tuple(fields))

    def bind_arguments(self, arguments: Mapping[str, object]) -> dict[str, object]:
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

    target: Callable[..., object]
    functions: dict[str, Function] = field(init=False)

    def __post_init__(self) -> None:
        self.functions = _find_functions(self.target)

    @property
    def tools(self) -> Sequence[Tool]:
        """Tool descriptions from signatures and docstrings."""
        return [function.tool for function in self.functions.values()]

    @property
    def stateful(self) -> bool:
        """True for methods of an object created per episode."""
        return isinstance(self.target, type)

    def open(self, task: Task, seed: int) -> FunctionSession:
        """Open a session; for a class, create the episode's object."""
        if not isinstance(self.target, type):
            return FunctionSession(self.functions, {self.target.__name__: self.target})
        instance = self.target(task, seed)
        return FunctionSession(self.functions, {name: getattr(instance, name) for name in self.functions}, instance)


@dataclass(frozen=True, slots=True, eq=False)
class FunctionSession:
    """Function tools in one episode."""

    functions: Mapping[str, Function]
    bodies: Mapping[str, Callable[..., object]]
    owner: object = None

    async def call(self, tool: str, arguments: Mapping[str, object]) -> str:
        """Call a function and return its result as text (:mod:`.results`); errors go to the agent."""
        return await result_text(self.bodies[tool](**self.functions[tool].bind_arguments(arguments)))

    async def end(self) -> None:
        """Call the episode object's ``close`` method, if present."""
        close = getattr(self.owner, "close", None)
        result = close() if callable(close) else None
        if isinstance(result, Awaitable):
            await result


class SessionSource(ToolSource):
    """Tool source for an environment session: its methods marked as tools.

    Raises:
        ValueError: no method is marked.
    """

    def __init__(self, session: type) -> None:
        marked = [m for _, m in inspect.getmembers(session, inspect.isfunction) if hasattr(m, TOOL_ATTRIBUTE)]
        if not marked:
            raise ValueError(f"{session.__name__} has no methods that are marked with @tool")
        self.functions = {method.__name__: Function.from_function(method, method=True) for method in marked}

    @property
    def tools(self) -> Sequence[Tool]:
        """Tool descriptions from the session class."""
        return [function.tool for function in self.functions.values()]

    def open(self, task: Task, seed: int) -> ToolSession:
        """Raise an error: the environment opens the session; see :meth:`bind_session`."""
        raise AssertionError(f"the session of {task.id} (seed {seed}) has not begun")

    def bind_session(self, session: Session) -> ToolSession:
        """Return a session for the methods of the environment's session, or of its ``toolbox``."""
        owner = getattr(session, "toolbox", session)
        return FunctionSession(self.functions, {name: getattr(owner, name) for name in self.functions})


def _find_functions(target: Callable[..., object]) -> dict[str, Function]:
    if not isinstance(target, type):
        if not inspect.isfunction(target):
            raise ValueError(f"{target!r} is neither a function nor a class")
        return {target.__name__: Function.from_function(target)}
    methods = {name: method for name, method in inspect.getmembers(target, inspect.isfunction) if _is_tool(name)}
    if not methods:
        raise ValueError(f"{target.__name__} has no public methods that could be tools")
    try:
        inspect.signature(target).bind(None, 0)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{target.__name__}(task, seed) is how an object of it is made, but: {error}") from error
    return {
        name: Function.from_function(method, not isinstance(inspect.getattr_static(target, name), staticmethod))
        for name, method in methods.items()
    }


def _check_return(name: str, annotation: object) -> None:
    try:
        check_return_type(annotation)
    except ValueError as error:
        raise ValueError(f"tool {name!r}: {error}") from error


def _is_tool(name: str) -> bool:
    return not name.startswith("_") and name != "close"
