"""Python functions as tools, described to agents by their signature and docstring."""

from __future__ import annotations

import inspect
import json
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import dataclass, field
from itertools import islice
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
)
from pydantic.errors import PydanticSchemaGenerationError
from pydantic_core import PydanticSerializationError, to_jsonable_python

from marft.common.errors import UserError
from marft.common.texts import format_error
from marft.common.types import Task, Tool
from marft.config.interfaces.environment import TOOL_ATTRIBUTE, Session
from marft.config.interfaces.tools import ToolProvider, ToolSession, ToolSource
from marft.config.plugins import import_object
from marft.config.python_objects import ImportPath

MAX_ITEMS = 100_000  # maximum items read from a generator
WRAPPERS = (Awaitable, Coroutine, AsyncGenerator, AsyncIterable, AsyncIterator)
TYPES_WITHOUT_JSON = (Callable, type)  # pydantic has a schema for these types, but no JSON form
RETURN_HINT = "return text, numbers, lists, dictionaries, a dataclass or a pydantic model"


class Functions(ToolProvider):
    """Tool from a function, or tools from a class's public methods; ``call`` is its import path.

    Every episode creates an object of the class from its task and a seed, so the object may keep state within the
    episode.

    ::

        [tools.search]
        name = "function"
        call = "my_package.tools:search"
    """

    call: ImportPath = Field(description="import path of a function or a class")

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
            UserError: an argument has no type hint, a type without a JSON schema, or takes any number of values; or
                the return type never has a JSON form.
        """
        try:
            return Function._from_signature(function, method)
        except (NameError, TypeError, PydanticUserError) as error:
            name = getattr(function, "__name__", repr(function))
            problem = f"tool {name!r}: its type hints say nothing that JSON can: {format_error(error)}"
            raise UserError(problem) from error

    @staticmethod
    def _from_signature(function: Callable[..., object], method: bool) -> Function:
        name = function.__name__
        hints = get_type_hints(function, include_extras=True)
        fields: dict[str, Any] = {}
        for parameter in list(inspect.signature(function).parameters.values())[int(method) :]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
                raise UserError(f"tool {name!r}: every argument needs a name; {parameter} has none")
            if parameter.name not in hints:
                raise UserError(f"tool {name!r}: its argument {parameter.name!r} needs a type hint")
            default = ... if parameter.default is parameter.empty else parameter.default
            # an argument name must not shadow an attribute of pydantic models
            fields[f"argument_{parameter.name}"] = (hints[parameter.name], Field(default, alias=parameter.name))
        returned = hints.get("return", Any)
        if not _has_json_form(returned):
            type_name = returned.__name__ if isinstance(returned, type) else str(returned)
            raise UserError(f"tool {name!r}: it returns {type_name}, which cannot be written as JSON; {RETURN_HINT}")
        model = create_model(name, __config__=ConfigDict(extra="forbid"), **fields)
        parameters = model.model_json_schema(by_alias=True)
        parameters.pop("title", None)
        tool = Tool(name, inspect.getdoc(function) or "", {"type": "object", "properties": {}, **parameters})
        return Function(tool, model, tuple(fields))

    def bind_arguments(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Return validated arguments for the function.

        Raises:
            UserError: the arguments are invalid; the message is for the agent.
        """
        try:
            bound = self.arguments.model_validate(dict(arguments))
        except ValidationError as error:
            problems = "; ".join(f"{'.'.join(map(str, p['loc'])) or 'arguments'}: {p['msg']}" for p in error.errors())
            raise UserError(problems) from None
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
        UserError: no method is marked.
    """

    def __init__(self, session: type) -> None:
        marked = [m for _, m in inspect.getmembers(session, inspect.isfunction) if hasattr(m, TOOL_ATTRIBUTE)]
        if not marked:
            raise UserError(f"{session.__name__} has no methods that are marked with @tool")
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
            raise UserError(f"{target!r} is neither a function nor a class")
        return {target.__name__: Function.from_function(target)}
    methods = {name: method for name, method in inspect.getmembers(target, inspect.isfunction) if _is_tool(name)}
    if not methods:
        raise UserError(f"{target.__name__} has no public methods that could be tools")
    try:
        inspect.signature(target).bind(None, 0)
    except (TypeError, ValueError) as error:
        raise UserError(f"{target.__name__}(task, seed) is how an object of it is made, but: {error}") from error
    return {
        name: Function.from_function(method, not isinstance(inspect.getattr_static(target, name), staticmethod))
        for name, method in methods.items()
    }


def _is_tool(name: str) -> bool:
    return not name.startswith("_") and name != "close"


async def result_text(result: object) -> str:
    """Return a result as text. Awaitables are awaited, generators are collected.

    Raises:
        UserError: the result has no JSON form, or yields more than ``MAX_ITEMS`` items.
    """
    if isinstance(result, Awaitable):
        result = await result
    if isinstance(result, AsyncIterable):
        items: list[object] = []
        async for item in result:
            items.append(_check_count(item, len(items)))
        result = items
    if isinstance(result, Iterator):
        result = _to_python(result)  # up to MAX_ITEMS items
    if isinstance(result, str):
        return result if type(result) is str else str(to_jsonable_python(result))
    try:
        return json.dumps(to_jsonable_python(result, fallback=_to_python), ensure_ascii=False)
    except (PydanticSerializationError, UnicodeDecodeError, TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"the tool returned a {type(result).__name__} that is no JSON ({error}); {RETURN_HINT}"
        ) from error


def _has_json_form(annotation: Any) -> bool:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _has_json_form(arguments[0])
    if origin in (Union, UnionType):
        return any(map(_has_json_form, arguments))
    if origin in WRAPPERS:
        return all(map(_has_json_form, arguments[-1:] if origin is Coroutine else arguments[:1]))
    if annotation in TYPES_WITHOUT_JSON or origin in TYPES_WITHOUT_JSON:
        return False
    try:
        TypeAdapter(annotation)
    except (PydanticSchemaGenerationError, PydanticUserError):
        if origin is not None:
            item_types = [item for item in arguments if item is not Ellipsis and not isinstance(item, list)]
            return _is_list_like(origin) and (hasattr(origin, "tolist") or all(map(_has_json_form, item_types)))
        return not isinstance(annotation, type) or _is_list_like(annotation) or _is_interface(annotation)
    return True


def _is_list_like(kind: object) -> bool:
    """Return true if values of a type become lists: arrays and iterables."""
    return hasattr(kind, "tolist") or (isinstance(kind, type) and issubclass(kind, Iterable))


def _is_interface(kind: type) -> bool:
    """Return true if a type only describes an interface: abstract classes and protocols."""
    return inspect.isabstract(kind) or bool(getattr(kind, "_is_protocol", False))


def _to_python(value: object) -> object:
    """Convert a value unknown to pydantic.

    NumPy scalars and arrays, pandas columns (missing values become None) and other iterables become Python values.

    Raises:
        TypeError: the value has no JSON form.
        UserError: an iterable yields more than ``MAX_ITEMS`` items.
    """
    to_list, is_missing = getattr(value, "tolist", None), getattr(value, "isna", None)
    if callable(to_list) and not isinstance(value, type):
        if not callable(is_missing):
            return to_list()
        return [None if missing else item for item, missing in zip(to_list(), is_missing().tolist(), strict=True)]
    if isinstance(value, Iterable) and not isinstance(value, type):
        items = value.items() if hasattr(value, "items") else value
        checked_items = [_check_count(item, place) for place, item in enumerate(islice(iter(items), MAX_ITEMS + 1))]
        return dict(checked_items) if hasattr(value, "items") else checked_items
    raise TypeError(f"a {type(value).__name__} has no form in JSON")


def _check_count(item: Any, place: int) -> Any:
    if place >= MAX_ITEMS:
        raise UserError(f"it yields more than {MAX_ITEMS:,} items")
    return item
