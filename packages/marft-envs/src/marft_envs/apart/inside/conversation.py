"""A running ``tool_sandbox`` scenario, with the team as its agent.

The package's execution environment runs the calls. The scenario's milestones score the conversation.
"""

from __future__ import annotations

import copy
import importlib
import random
import re
import signal
from typing import Any

from .calls import called
from .matching import search_once
from .still import Identifiers, hold_still

MOST_CALLS = 4  # maximum calls in one message, because the package tries all their orders
ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]{6,}")


class Sandbox:
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
        search_once(importlib.import_module("tool_sandbox.common.evaluation"))

    def scenarios(self) -> dict[str, Any]:
        """Return all scenarios by name, identical on every machine and at every time."""
        backend = importlib.import_module("tool_sandbox.common.tool_discovery").ToolBackend.DEFAULT
        named = importlib.import_module("tool_sandbox.scenarios").named_scenarios
        hold_still("tool_sandbox")
        random.seed(0)
        found = dict(named(preferred_tool_backend=backend))
        hold_still("tool_sandbox")  # again, for modules imported since
        return found

    def seen(self, role: Any) -> list[Any]:
        """Return the messages of the running conversation visible to a role."""
        return list(role.filter_messages(role.get_messages()))


class Current:
    """Context manager: activate an episode, because the package has one global context."""

    def __init__(self, played: Conversation) -> None:
        self.played = played

    def __enter__(self) -> None:
        self.played.sandbox.contexts.set_current_context(self.played.context)
        Identifiers.random = self.played.random

    def __exit__(self, *error: object) -> None:
        self.played.context = self.played.sandbox.contexts.get_current_context()


class Hurried:
    """Context manager: raise TimeoutError in calls beyond the timeout.

    The timer repeats, so each later slow call is interrupted too. Without it, a tool call such as 9**9**9**9 would
    block all episodes.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    def __enter__(self) -> None:
        signal.signal(signal.SIGALRM, self._late)
        signal.setitimer(signal.ITIMER_REAL, self.seconds, self.seconds)

    def __exit__(self, *error: object) -> None:
        signal.setitimer(signal.ITIMER_REAL, 0)

    def _late(self, *_: object) -> None:
        raise TimeoutError(f"this takes more than {self.seconds:g} seconds")


class Conversation:
    """A running scenario; each turn runs within ``Current``."""

    def __init__(self, sandbox: Sandbox, scenario: Any, seed: int) -> None:
        self.sandbox, self.scenario = sandbox, scenario
        self.random = random.Random(seed)
        self.context = copy.deepcopy(scenario.starting_context)
        self.last = self.context.max_sandbox_message_index + scenario.max_messages  # index of the last allowed message
        self.shown = {"agent": 0, "user": 0}  # number of messages already shown to each
        self.over = False

    def begin(self) -> dict[str, Any]:
        """Run the setup code of the system in the console, and return the first turn and the user's instructions."""
        with Current(self):
            console, roles = self.sandbox.console, self.sandbox.roles
            for index, message in enumerate(console.get_messages()):
                if message.recipient == roles.EXECUTION_ENVIRONMENT and message.sender == roles.SYSTEM:
                    console.respond(ending_index=index)
            brief, known = told(self.sandbox.seen(self.sandbox.user), roles.SYSTEM)
            self.shown["user"] = known
            return {**self._next(), "tools": self._tools(), "brief": brief}

    def say(self, speaker: str, text: str, answered: bool) -> dict[str, Any]:
        """Add a message and return the next turn or the final reward.

        Args:
            speaker: "agent" or "user".
            text: the speaker's text. Tool calls are read from the agent's text only.
            answered: True if a user answers the agent. If False, the first message to the user ends the conversation.
        """
        with Current(self):
            roles, text = self.sandbox.roles, text.encode("utf-8", "replace").decode()
            words, calls = called(text) if speaker == "agent" else (text, [])
            if calls:
                self._add(*(self._call(number, call) for number, call in enumerate(calls[:MOST_CALLS])))
                with Hurried(self.sandbox.seconds):
                    self.sandbox.console.respond()
            else:
                self.shown[speaker] += 1  # the speaker's own message
                own, other = (roles.AGENT, roles.USER) if speaker == "agent" else (roles.USER, roles.AGENT)
                self._add(self.sandbox.message(sender=own, recipient=other, content=words.strip()))
                if not answered:
                    return self._ended()
            return self._score() if self._index() >= self.last else self._next()

    def end(self) -> dict[str, Any]:
        """End the conversation as the user and return the final reward."""
        with Current(self):
            return self._ended()

    def _call(self, number: int, call: dict[str, Any]) -> Any:
        """Convert a call to code in the package's form; an invalid call becomes code that raises the reason."""
        roles, name, arguments = self.sandbox.roles, call["name"], call["arguments"]
        made = f"call_{self._index()}_{number}"
        code = f"raise NameError({f'there is no tool {name!r}'!r})"
        if name in self.sandbox.agent.get_available_tools():
            real = self.context.get_execution_facing_tool_name(name)
            code = (
                f"{made}_parameters = {arguments!r}\n{made}_response = {real}(**{made}_parameters)\n"
                f"print(repr({made}_response))"
            )
            if not isinstance(arguments, dict) or not compiles(code):
                code = f"raise TypeError({f'the arguments of {name} cannot be read'!r})"
        return self.sandbox.message(
            sender=roles.AGENT, recipient=roles.EXECUTION_ENVIRONMENT, content=code, openai_tool_call_id=made,
            openai_function_name=name,
        )  # fmt: skip

    def _add(self, *messages: Any) -> None:
        self.sandbox.agent.add_messages(list(messages))

    def _index(self) -> int:
        return int(self.sandbox.contexts.get_current_context().max_sandbox_message_index)

    def _next(self) -> dict[str, Any]:
        """Return the next role in turn, and its new messages, tool results included."""
        roles = self.sandbox.roles
        asked = self.sandbox.agent.get_messages()[-1].recipient
        turn, role = ("user", self.sandbox.user) if asked == roles.USER else ("agent", self.sandbox.agent)
        seen = self.sandbox.seen(role)
        new, self.shown[turn] = seen[self.shown[turn] :], len(seen)
        return {
            "turn": turn,
            "messages": [plain(message) for message in new if message.recipient != roles.EXECUTION_ENVIRONMENT],
        }

    def _tools(self) -> list[dict[str, Any]]:
        known = self.sandbox.agent.get_available_tools()
        return [schema["function"] for schema in self.sandbox.schemas(known)]

    def _ended(self) -> dict[str, Any]:
        roles = self.sandbox.roles
        content = "end_conversation()"
        self._add(self.sandbox.message(sender=roles.USER, recipient=roles.EXECUTION_ENVIRONMENT, content=content))
        self.sandbox.console.respond()
        self.over = True
        return self._score()

    def _score(self) -> dict[str, Any]:
        context = self.sandbox.contexts.get_current_context()
        evaluation, most = self.scenario.evaluation, self.scenario.max_messages
        with Hurried(self.sandbox.seconds):
            result = evaluation.evaluate(execution_context=context, max_turn_count=most)
        metrics = {
            "milestones": float(result.milestone_similarity), "minefields": float(result.minefield_similarity),
            "turns": float(result.turn_count),
        }  # fmt: skip
        return {"done": {"reward": float(result.similarity), "ended": self.over, "metrics": metrics}}


def compiles(code: str) -> bool:
    """Return True if code compiles; tables with too much depth or size do not."""
    try:
        compile(code, "call", "exec")
    except (SyntaxError, ValueError, OverflowError, MemoryError, RecursionError):
        return False
    return True


def told(seen: list[Any], system: Any) -> tuple[str, int]:
    """Return the user's instructions, and the number of seen messages that belong to them.

    The package's example conversations come first, each once.
    """
    begins = [index for index, message in enumerate(seen) if message.sender == system]
    if not begins:
        return "", 0
    blocks = [seen[begin:end] for begin, end in zip(begins, begins[1:])]  # noqa: B905, RUF007  Python 3.9
    examples = dict.fromkeys(
        "\n".join(
            one.content if one.sender == system else f"{one.sender.value.title()}: {one.content}" for one in block
        )
        for block in blocks
    )
    parts = [f"An example.\n{example}" for example in examples]
    return "\n\n".join([*parts, seen[begins[-1]].content]), begins[-1] + 1


def plain(message: Any) -> dict[str, str]:
    """Convert a message to its role and text, with memory addresses masked because they vary."""
    return {"role": str(message.sender.value).lower(), "content": ADDRESS.sub(" at 0x…", message.content)}
