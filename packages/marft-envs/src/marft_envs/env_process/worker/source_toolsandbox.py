"""Source of ``tool_sandbox`` scenarios, by name, with the team as their agent.

The package's execution environment runs the calls. The scenario's milestones score the conversation.

The package gets a fixed clock and deterministic UUIDs. Its scenarios depend on their creation time. An hour later, a
scenario's request could no longer be fulfilled. An episode replayed from its seed would also differ.
"""

from __future__ import annotations

import copy
import datetime
import importlib
import inspect
import os
import random
import re
import signal
import sys
import time
import uuid
from types import SimpleNamespace
from typing import Any

from .milestone_search import install_search
from .server import JsonObject, split_tool_calls


class FixedDatetime(datetime.datetime):
    """A clock that always returns the same time."""

    @classmethod
    def now(cls, tz: Any = None) -> Any:
        """Return the fixed time, in UTC without a timezone or in ``tz``."""
        fixed = cls(2024, 5, 15, 10, 30, tzinfo=datetime.timezone.utc)  # noqa: UP017  Python 3.9
        return fixed.astimezone(tz) if tz else fixed.replace(tzinfo=None)  # UTC in this process


class DeterministicUuids:
    """Deterministic replacement for ``uuid.uuid4``."""

    random = random.Random(0)  # random stream of the active episode

    @classmethod
    def uuid4(cls) -> uuid.UUID:
        """Return a UUID from the active episode's random stream."""
        return uuid.UUID(int=cls.random.getrandbits(128), version=4)


def install_fixed_clock(package: str) -> None:
    """Install the fixed clock and UUIDs in all imported modules from a package."""
    fixed_datetime = SimpleNamespace(**{**vars(datetime), "datetime": FixedDatetime})
    for name, module in list(sys.modules.items()):
        if name.split(".")[0] == package:
            if getattr(module, "datetime", None) is datetime:
                module.datetime = fixed_datetime  # type: ignore[attr-defined]
            if getattr(module, "uuid4", None) is uuid.uuid4:
                module.uuid4 = DeterministicUuids.uuid4  # type: ignore[attr-defined]


MAX_CALLS = 4  # maximum calls in one message, because the package tries all their orders
ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]{6,}")


class ToolSandboxPackage:
    """Objects imported from the package.

    Args:
        seconds: timeout of a tool call.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.contexts = importlib.import_module("tool_sandbox.common.execution_context")
        self.message = importlib.import_module("tool_sandbox.common.message_conversion").Message
        self.schemas = importlib.import_module("tool_sandbox.common.tool_conversion").convert_to_openai_tools
        self.roles = self.contexts.RoleType
        base = importlib.import_module("tool_sandbox.roles.base_role").BaseRole
        self.agent: Any = type("Agent", (base,), {"role_type": self.roles.AGENT})
        self.user: Any = type("User", (base,), {"role_type": self.roles.USER})
        self.console = importlib.import_module("tool_sandbox.roles.execution_environment").ExecutionEnvironment()
        install_search(importlib.import_module("tool_sandbox.common.evaluation"))

    def load_scenarios(self) -> JsonObject:
        """Return all scenarios by name, identical on every machine and at every time."""
        backend = importlib.import_module("tool_sandbox.common.tool_discovery").ToolBackend.DEFAULT
        named = importlib.import_module("tool_sandbox.scenarios").named_scenarios
        install_fixed_clock("tool_sandbox")
        random.seed(0)
        scenarios = dict(named(preferred_tool_backend=backend))
        install_fixed_clock("tool_sandbox")  # again, for modules imported since
        return scenarios

    def visible_messages(self, role: Any) -> list[Any]:
        """Return the messages of the running conversation visible to a role."""
        return list(role.filter_messages(role.get_messages()))


class ActiveContext:
    """Context manager: activate an episode, because the package has one global context."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation

    def __enter__(self) -> None:
        self.conversation.sandbox.contexts.set_current_context(self.conversation.context)
        DeterministicUuids.random = self.conversation.random

    def __exit__(self, *error: object) -> None:
        self.conversation.context = self.conversation.sandbox.contexts.get_current_context()


class CallTimeout:
    """Context manager: raise TimeoutError in calls beyond the timeout.

    The timer repeats, so each later slow call is interrupted too. Without it, a tool call such as 9**9**9**9 would
    block all episodes.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._raise_timeout)
        signal.setitimer(signal.ITIMER_REAL, self.seconds, self.seconds)

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _raise_timeout(self, *_: object) -> None:
        raise TimeoutError(f"this takes more than {self.seconds:g} seconds")


class Conversation:
    """A running scenario; each turn runs within ``ActiveContext``."""

    def __init__(self, sandbox: ToolSandboxPackage, scenario: Any, seed: int) -> None:
        self.sandbox, self.scenario = sandbox, scenario
        self.random = random.Random(seed)
        self.context = copy.deepcopy(scenario.starting_context)
        self.last_index = (
            self.context.max_sandbox_message_index + scenario.max_messages
        )  # index of the last allowed message
        self.shown_counts = {"agent": 0, "user": 0}  # number of messages already shown to each
        self.ended = False

    def start(self) -> JsonObject:
        """Run the setup code of the system in the console, and return the first turn and the user's instructions."""
        with ActiveContext(self):
            console, roles = self.sandbox.console, self.sandbox.roles
            for index, message in enumerate(console.get_messages()):
                if message.recipient == roles.EXECUTION_ENVIRONMENT and message.sender == roles.SYSTEM:
                    console.respond(ending_index=index)
            user_prompt, visible_count = user_instructions(
                self.sandbox.visible_messages(self.sandbox.user), roles.SYSTEM
            )
            self.shown_counts["user"] = visible_count
            return {**self._next_turn(), "tools": self._tool_schemas(), "brief": user_prompt}

    def add_message(self, role: str, text: str, has_user: bool) -> JsonObject:
        """Add a message and return the next turn or the final reward.

        Args:
            role: "agent" or "user".
            text: the speaker's text. Tool calls are read from the agent's text only.
            has_user: True if a user answers the agent. If False, the first message to the user ends the conversation.
        """
        with ActiveContext(self):
            roles, text = self.sandbox.roles, text.encode("utf-8", "replace").decode()
            words, calls = split_tool_calls(text) if role == "agent" else (text, [])
            if calls:
                self._add_messages(*(self._to_message(number, call) for number, call in enumerate(calls[:MAX_CALLS])))
                with CallTimeout(self.sandbox.seconds):
                    self.sandbox.console.respond()
            else:
                self.shown_counts[role] += 1  # the speaker's own message
                sender, recipient = (roles.AGENT, roles.USER) if role == "agent" else (roles.USER, roles.AGENT)
                self._add_messages(self.sandbox.message(sender=sender, recipient=recipient, content=words.strip()))
                if not has_user:
                    return self._end()
            return self._compute_reward() if self._message_index() >= self.last_index else self._next_turn()

    def end_by_user(self) -> JsonObject:
        """End the conversation as the user and return the final reward."""
        with ActiveContext(self):
            return self._end()

    def _to_message(self, number: int, call: JsonObject) -> Any:
        """Convert a call to code in the package's form; an invalid call becomes code that raises the reason."""
        roles, name, arguments = self.sandbox.roles, call["name"], call["arguments"]
        call_id = f"call_{self._message_index()}_{number}"
        code = f"raise NameError({f'there is no tool {name!r}'!r})"
        if name in self.sandbox.agent.get_available_tools():
            real = self.context.get_execution_facing_tool_name(name)
            code = (
                f"{call_id}_parameters = {arguments!r}\n{call_id}_response = {real}(**{call_id}_parameters)\n"
                f"print(repr({call_id}_response))"
            )
            if not isinstance(arguments, dict) or not is_compilable(code):
                code = f"raise TypeError({f'the arguments of {name} cannot be read'!r})"
        return self.sandbox.message(
            sender=roles.AGENT,
            recipient=roles.EXECUTION_ENVIRONMENT,
            content=code,
            openai_tool_call_id=call_id,
            openai_function_name=name,
        )

    def _add_messages(self, *messages: Any) -> None:
        self.sandbox.agent.add_messages(list(messages))

    def _message_index(self) -> int:
        return int(self.sandbox.contexts.get_current_context().max_sandbox_message_index)

    def _next_turn(self) -> JsonObject:
        """Return the next role in turn, and its new messages, tool results included."""
        roles = self.sandbox.roles
        recipient = self.sandbox.agent.get_messages()[-1].recipient
        turn, role = ("user", self.sandbox.user) if recipient == roles.USER else ("agent", self.sandbox.agent)
        visible = self.sandbox.visible_messages(role)
        new, self.shown_counts[turn] = visible[self.shown_counts[turn] :], len(visible)
        return {
            "turn": turn,
            "messages": [
                message_to_dict(message) for message in new if message.recipient != roles.EXECUTION_ENVIRONMENT
            ],
        }

    def _tool_schemas(self) -> list[JsonObject]:
        available = self.sandbox.agent.get_available_tools()
        return [schema["function"] for schema in self.sandbox.schemas(available)]

    def _end(self) -> JsonObject:
        roles = self.sandbox.roles
        content = "end_conversation()"
        self._add_messages(
            self.sandbox.message(sender=roles.USER, recipient=roles.EXECUTION_ENVIRONMENT, content=content)
        )
        self.sandbox.console.respond()
        self.ended = True
        return self._compute_reward()

    def _compute_reward(self) -> JsonObject:
        context = self.sandbox.contexts.get_current_context()
        evaluation, max_turns = self.scenario.evaluation, self.scenario.max_messages
        with CallTimeout(self.sandbox.seconds):
            result = evaluation.evaluate(execution_context=context, max_turn_count=max_turns)
        metrics = {
            "milestones": float(result.milestone_similarity),
            "minefields": float(result.minefield_similarity),
            "turns": float(result.turn_count),
        }
        return {"done": {"reward": float(result.similarity), "ended": self.ended, "metrics": metrics}}


def is_compilable(code: str) -> bool:
    """Return True if code compiles; tables with too much depth or size do not."""
    try:
        compile(code, "call", "exec")
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return False
    return True


def user_instructions(messages: list[Any], system: Any) -> tuple[str, int]:
    """Return the user's instructions, and the number of seen messages that belong to them.

    The package's example conversations come first, each once.
    """
    begins = [index for index, message in enumerate(messages) if message.sender == system]
    if not begins:
        return "", 0
    blocks = [messages[begin:end] for begin, end in zip(begins, begins[1:])]  # noqa: B905, RUF007  Python 3.9
    examples = dict.fromkeys(
        "\n".join(
            item.content if item.sender == system else f"{item.sender.value.title()}: {item.content}" for item in block
        )
        for block in blocks
    )
    parts = [f"An example.\n{example}" for example in examples]
    return "\n\n".join([*parts, messages[begins[-1]].content]), begins[-1] + 1


def message_to_dict(message: Any) -> dict[str, str]:
    """Convert a message to its role and text, with memory addresses masked because they vary."""
    return {"role": str(message.sender.value).lower(), "content": ADDRESS.sub(" at 0x…", message.content)}


WEB_MODULE = "rapid_api_search_tools"  # module with the tools that call a web service
KEY_VARIABLE = "RAPID_API_KEY"  # environment variable with the key of the service


class ScenarioSource:
    """All scenarios, and the running conversations."""

    def __init__(self, web: bool, seconds: float) -> None:
        if not web:
            os.environ.pop(
                KEY_VARIABLE, None
            )  # a call to the service then fails with a message that the key is missing
        self.sandbox = ToolSandboxPackage(seconds)
        self.scenarios = self.sandbox.load_scenarios()
        self.episodes: dict[str, Conversation] = {}

    def list_rows(self, request: JsonObject) -> list[JsonObject]:  # noqa: ARG002  there is one list
        """Return one row per scenario: its first messages, the user's goal and the base scenario.

        The base is the shortest scenario name that the scenario's own name begins with. The scenario is a variation
        of it.
        """
        return [self._row(name, scenario) for name, scenario in self.scenarios.items()]

    def _row(self, name: str, scenario: Any) -> JsonObject:
        sandbox = self.sandbox
        sandbox.contexts.set_current_context(scenario.starting_context)
        instructions = [
            message.content
            for message in sandbox.visible_messages(sandbox.user)
            if message.sender == sandbox.roles.SYSTEM
        ]
        base = min((name_prefix for name_prefix in self.scenarios if f"{name}_".startswith(f"{name_prefix}_")), key=len)
        needed = set(self.scenarios[base].starting_context.tool_allow_list or ())
        return {
            "name": name,
            "base": base,
            "wants": instructions[-1] if instructions else "",
            "messages": [
                message_to_dict(message)
                for message in sandbox.visible_messages(sandbox.agent)
                if message.sender != sandbox.roles.SYSTEM
            ],
            "categories": [str(category.value).lower() for category in scenario.categories],
            "web": bool(needed & self._web_tools(scenario.starting_context.name_to_tool)),
        }

    def _web_tools(self, tools: JsonObject) -> set[str]:
        modules = {name: inspect.getmodule(inspect.unwrap(tool)) for name, tool in tools.items()}
        return {name for name, module in modules.items() if module and module.__name__.endswith(WEB_MODULE)}

    async def start_episode(self, episode: str, request: JsonObject) -> JsonObject:
        """Start the scenario named in the request."""
        conversation = Conversation(self.sandbox, self.scenarios[request["name"]], request["seed"])
        self.episodes[episode] = conversation
        return conversation.start()

    async def send_text(self, episode: str, request: JsonObject) -> JsonObject:
        """Add a message from the agent or user, or end the conversation as the user."""
        conversation = self.episodes[episode]
        return (
            conversation.end_by_user()
            if request["ends"]
            else conversation.add_message(request["speaker"], request["text"], request["answered"])
        )

    def drop_episode(self, episode: str) -> None:
        """Drop a conversation."""
        self.episodes.pop(episode, None)


def open_source(settings: JsonObject) -> ScenarioSource:
    """Return all scenarios in the package.

    Args:
        settings: ``web``, True if tools may call the web service with the key from the environment; ``seconds``,
            timeout of a tool call.
    """
    os.environ["TZ"] = "UTC"
    time.tzset()
    return ScenarioSource(settings["web"], settings["seconds"])
