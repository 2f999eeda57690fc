"""Players for environment checks: the environment's scripted policy, answer players and nonsense players.

Nonsense players use odd texts and tool calls, like those from weak models.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import cast

from marft.agents.loop_threads import UserCodeError, run_user_code
from marft.agents.prompt_messages import build_messages
from marft.agents.task_copies import copy_task
from marft.common.seeds import derive_seed
from marft.common.types import AgentProfile, Observation, Task, Tool, ToolCall
from marft.config.interfaces.channel import Message
from marft.config.interfaces.environment import Environment
from marft.config.settings import MAX_DEPTH
from marft.envs.scripted_policy import PolicyInput, ScriptedPolicy, ScriptedReply
from marft_envs.env_check.records import AgentReply
from marft_envs.env_check.target import CheckTarget

ODD_TEXTS: Mapping[str, str] = {
    "an empty text": "",
    "spaces": " \n\t ",
    "a megabyte": "word " * 200_000,
    "a megabyte without a space": "9" * 1_000_000,
    "a number of 5,000 digits": r"\boxed{" + "7" * 5000 + "}",
    "no number": "nan",
    "infinity": "-inf",
    "a negative number": "-1",
    "a float for a whole number": "1e400",
    "unicode": "Żółć 漢字 🦜 \u202eodd\u0000 ١٢٣ ½ ²",
    "lone digits of other scripts": "²",
    "open brackets": "[" * 5000,
    "open braces": '{"a":' * 5000,
    "an empty box": r"\boxed{}",
    "an open box": r"\boxed{",
    "JSON that is no object": "[1, null, {}]",
    "a format string": "{0} %s {answer!r} $x",
    "markup": "</answer><answer><|im_end|>",
    "one letter": "x",
    "lines": "\n".join(map(str, range(2000))),
}
_ODD_VALUES: Mapping[str, Sequence[object]] = {
    "string": ("", "x" * 100_000, "漢\u0000"),
    "integer": (-1, 10**12, 0),
    "number": (-1.0, 1e308, 0),
    "boolean": (True,),
    "array": ([], [None]),
    "object": ({},),
}


def odd_calls(tool: Tool) -> Iterator[ToolCall]:
    """Yield odd calls: without arguments, with unknown arguments, with invalid JSON, and with extreme values."""
    import json

    yield ToolCall(tool.name, "{}")
    yield ToolCall(tool.name, '{"nobody": [1, 2], "knows": null}')
    yield ToolCall(tool.name, '"text"')
    yield ToolCall(tool.name, "{")
    properties = tool.parameters.get("properties", {})
    for turn in range(max(map(len, _ODD_VALUES.values()))):
        values = {
            name: (choices := _ODD_VALUES.get(schema.get("type", "string"), ("",)))[turn % len(choices)]
            for name, schema in properties.items()
        }
        yield ToolCall(tool.name, json.dumps(values))


MAX_ROUNDS = 8  # maximum rounds of tool calls per turn
# keys that may hold answers
ANSWER_KEY = re.compile(r"answer|solution|target|number|result|label|goal|expected", re.IGNORECASE)
MAX_WORDS = 5
PERFECT_PLAYER = "its script of skill 1"
ODD_PLAYERS = {f"somebody who says {name}": text for name, text in ODD_TEXTS.items()}
NONSENSE_PLAYERS = {"somebody who says 'x'": "x", **ODD_PLAYERS}  # texts of players that do not try
FEW_VALUES = 3  # number of answer players, each with another first value


@dataclass(frozen=True, slots=True)
class StepInput:
    """Input for a player in each step."""

    observation: Observation
    step: int
    roles: Sequence[str]  # roles in turn
    call: Callable[[ToolCall], Awaitable[ToolCall]]  # function that calls a tool of the session


Player = Callable[[StepInput], Awaitable[Mapping[str, AgentReply]]]


class ScriptPlayer:
    """Scripted policy for every role in a team, with the messages that the team's organization delivers.

    Args:
        script: scripted policy.
        target: environment with its team.
        tools: available tools.
        task: task of the episode.
        seed: seed of the script's randomness.
    """

    def __init__(
        self, script: ScriptedPolicy, target: CheckTarget, tools: tuple[Tool, ...], task: Task, seed: int
    ) -> None:
        self.script, self.target, self.tools, self.task, self.seed = script, target, tools, task, seed
        self.profiles = {profile.role: profile for profile in target.profiles}
        self.chat_histories: dict[str, list[Mapping[str, object]]] = {}
        self.history: list[Message] = []  # all messages, in order
        self.last_messages: list[Message] = []  # messages of the previous step
        self.seen_counts: dict[str, int] = {}  # by role: number of messages at its last action

    async def __call__(self, step_input: StepInput) -> Mapping[str, AgentReply]:
        received = list[Message]()
        replies = dict[str, AgentReply]()
        earlier = {role: self._earlier_messages(role) for role in step_input.roles}
        for role in step_input.roles:
            prompt = build_messages(
                self._profile(role), step_input.observation.for_role(role), [*earlier[role], *received]
            )
            before = self.chat_histories.get(role, []) if self.has_memory(role) else []
            self.chat_histories[role] = [
                *before,
                *(message for message in prompt if not before or message["role"] != "system"),
            ]
            replies[role] = await self._take_turn(role, step_input)
            if not self.target.no_step_messages and (self.profiles or not step_input.observation.turn):
                received.append(Message(role, replies[role].text))
        self.last_messages = [Message(role, reply.text) for role, reply in replies.items()]
        self.history += self.last_messages
        self.seen_counts |= dict.fromkeys(step_input.roles, len(self.history))
        return replies

    def has_memory(self, role: str) -> bool:
        """Return True if a role remembers earlier messages. In a team without profiles, every role does."""
        return role in self.target.memory_roles or not self.profiles

    def _earlier_messages(self, role: str) -> list[Message]:
        """Return the messages from earlier steps that a role receives."""
        since = self.history[self.seen_counts.get(role, 0) :]
        messages = {"last": self.last_messages, "since_own_action": since}.get(self.target.visible, [])
        return [message for message in messages if message.role != role]

    async def _take_turn(self, role: str, step_input: StepInput) -> AgentReply:
        chat, calls = self.chat_histories[role], list[ToolCall]()
        options = tuple(step_input.observation.options.get(role, ()))
        random = Random(derive_seed(self.seed, "script", role, step_input.step))
        for _ in range(MAX_ROUNDS):
            cue = PolicyInput(copy_task(self.task), role, step_input.step, tuple(chat), random, options, self.tools)
            output: object = await run_user_code(self.script, (cue,), UserCodeError)
            if not isinstance(output, str | ScriptedReply):
                raise UserCodeError(f"TypeError: it says a {type(output).__name__}, not a text or a ScriptedReply", "")
            line = output if isinstance(output, ScriptedReply) else ScriptedReply(output)
            chat.append({"role": "assistant", "content": line.text})
            if not line.calls:
                return AgentReply(line.text, tuple(calls))
            results = [await step_input.call(call) for call in line.calls]
            calls += results
            chat += [{"role": "tool", "content": call.output} for call in results]
        return AgentReply(line.text, tuple(calls))

    def _profile(self, role: str) -> AgentProfile:
        return self.profiles.get(role, AgentProfile(role))


async def load_script(environment: Environment, skill: float) -> ScriptedPolicy | None:
    """Return the environment's scripted policy; None if absent.

    If its creation fails, return a script that raises the error.
    """
    try:
        return cast("ScriptedPolicy | None", await run_user_code(environment.script, (skill,), ()))
    except UserCodeError as error:
        stored_error = error

        def raise_error(cue: PolicyInput) -> str:  # noqa: ARG001
            """Raise the error from the script's creation."""
            raise stored_error

        return raise_error


def random_player(seed: int) -> Player:
    """Return a player that chooses random options, or else random words from the observation."""

    async def act(step_input: StepInput) -> Mapping[str, AgentReply]:
        replies = {}
        for role in step_input.roles:
            random = Random(derive_seed(seed, "wandering", role, step_input.step))
            options = step_input.observation.options.get(role, ())
            words = step_input.observation.for_role(role).split() or ["nothing"]
            text = " ".join(random.choices(words, k=random.randint(1, MAX_WORDS)))
            replies[role] = AgentReply(random.choice(list(options)) if options else text)
        return replies

    return act


def task_data_player(task: Task, offset: int) -> Player:
    """Return a player that says values from the task's data, one per step, likely answers first."""
    values = list(islice(_leaves(task.data), 1000))
    values.sort(key=lambda leaf: ANSWER_KEY.search(leaf[0]) is None)

    async def act(step_input: StepInput) -> Mapping[str, AgentReply]:
        value = values[(offset + step_input.step) % len(values)][1] if values else ""
        options = {role: step_input.observation.options.get(role, ()) for role in step_input.roles}
        return {
            role: AgentReply(
                value if not choices or value in choices else choices[(offset + step_input.step) % len(choices)]
            )
            for role, choices in options.items()
        }

    return act


def fixed_player(texts: Sequence[str]) -> Player:
    """Return a player that cycles through fixed texts."""

    async def act(step_input: StepInput) -> Mapping[str, AgentReply]:
        return {role: AgentReply(texts[step_input.step % len(texts)]) for role in step_input.roles}

    return act


async def silent_player(step_input: StepInput) -> Mapping[str, AgentReply]:  # noqa: ARG001
    """Return no actions: the team stays silent."""
    return {}


def replay_player(replies: Sequence[Mapping[str, AgentReply]]) -> Player:
    """Return a player that repeats recorded replies with their tool calls; silent after the last."""

    async def act(step_input: StepInput) -> Mapping[str, AgentReply]:
        turn_replies = {}
        for role, reply in (replies[step_input.step] if step_input.step < len(replies) else {}).items():
            turn_replies[role] = AgentReply(reply.text, tuple([await step_input.call(call) for call in reply.calls]))
        return turn_replies

    return act


def _leaves(value: object, key: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield texts and numbers in plain data, with their keys. Each also comes as a boxed answer."""
    if depth > MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _leaves(inner, str(name), depth + 1)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _leaves(inner, key, depth + 1)
    elif isinstance(value, str | int | float):
        yield key, str(value)
        yield key, rf"\boxed{{{value}}}"
