"""Players for environment checks: the environment's scripted policy, answer players and nonsense players."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from random import Random
from typing import cast

from marft.agents.loop_threads import RaisedError, in_words
from marft.agents.rendering import Message, compose
from marft.agents.tasks import own_copy
from marft.common.seeds import derive_seed
from marft.common.types import Observation, Profile, Task, Tool, ToolCall
from marft.config.parts import EnvironmentPart
from marft.config.settings import DEEPEST
from marft.envs.scripts import Cue, Line, Script
from marft_envs.vetting import odd
from marft_envs.vetting.plays import Said
from marft_envs.vetting.subject import Subject

ROUNDS = 8  # maximum rounds of tool calls per turn
# keys that may hold answers
TELLING = re.compile(r"answer|solution|target|number|result|label|goal|expected", re.IGNORECASE)
MOST_WORDS = 5
FLAWLESS = "its script of skill 1"
ODD = {f"somebody who says {name}": text for name, text in odd.TEXTS.items()}
NONSENSE = {"somebody who says 'x'": "x", **ODD}  # texts of players that do not try
FEW_VALUES = 3  # number of answer players, each with another first value


@dataclass(frozen=True, slots=True)
class Moment:
    """Input for a player in each step."""

    observation: Observation
    step: int
    roles: Sequence[str]  # roles in turn
    call: Callable[[ToolCall], Awaitable[ToolCall]]  # function that calls a tool of the session


Player = Callable[[Moment], Awaitable[Mapping[str, Said]]]


class Performer:
    """Scripted policy for every role in a team, with the messages that the team's organization delivers.

    Args:
        script: scripted policy.
        subject: environment with its team.
        tools: available tools.
        task: task of the episode.
        seed: seed of the script's randomness.
    """

    def __init__(self, script: Script, subject: Subject, tools: tuple[Tool, ...], task: Task, seed: int) -> None:
        self.script, self.subject, self.tools, self.task, self.seed = script, subject, tools, task, seed
        self.profiles = {profile.role: profile for profile in subject.profiles}
        self.chats: dict[str, list[Mapping[str, object]]] = {}
        self.told: list[Message] = []  # all messages, in order
        self.last: list[Message] = []  # messages of the previous step
        self.known: dict[str, int] = {}  # by role: number of messages at its last action

    async def __call__(self, moment: Moment) -> Mapping[str, Said]:
        heard = list[Message]()
        done = dict[str, Said]()
        given = {role: self._earlier(role) for role in moment.roles}
        for role in moment.roles:
            asked = compose(self._profile(role), moment.observation.seen_by(role), [*given[role], *heard])
            before = self.chats.get(role, []) if self.remembers(role) else []
            self.chats[role] = [*before, *(one for one in asked if not before or one["role"] != "system")]
            done[role] = await self._turn(role, moment)
            if not self.subject.unheard and (self.profiles or not moment.observation.turn):
                heard.append(Message(role, done[role].text))
        self.last = [Message(role, said.text) for role, said in done.items()]
        self.told += self.last
        self.known |= dict.fromkeys(moment.roles, len(self.told))
        return done

    def remembers(self, role: str) -> bool:
        """Return True if a role remembers earlier messages. In a team without profiles, every role does."""
        return role in self.subject.remembering or not self.profiles

    def _earlier(self, role: str) -> list[Message]:
        """Return the messages from earlier steps that a role receives."""
        since = self.told[self.known.get(role, 0) :]
        given = {"last": self.last, "since": since}.get(self.subject.sees, [])
        return [message for message in given if message.role != role]

    async def _turn(self, role: str, moment: Moment) -> Said:
        chat, calls = self.chats[role], list[ToolCall]()
        options = tuple(moment.observation.options.get(role, ()))
        random = Random(derive_seed(self.seed, "script", role, moment.step))
        for _ in range(ROUNDS):
            cue = Cue(own_copy(self.task), role, moment.step, tuple(chat), random, options, self.tools)
            said: object = await in_words(self.script, (cue,), RaisedError)
            if not isinstance(said, str | Line):
                raise RaisedError(f"TypeError: it says a {type(said).__name__}, not a text or a Line", "")
            line = said if isinstance(said, Line) else Line(said)
            chat.append({"role": "assistant", "content": line.text})
            if not line.calls:
                return Said(line.text, tuple(calls))
            made = [await moment.call(call) for call in line.calls]
            calls += made
            chat += [{"role": "tool", "content": call.output} for call in made]
        return Said(line.text, tuple(calls))

    def _profile(self, role: str) -> Profile:
        return self.profiles.get(role, Profile(role))


async def scripted(environment: EnvironmentPart, skill: float) -> Script | None:
    """Return the environment's scripted policy; None if absent.

    If its creation fails, return a script that raises the error.
    """
    try:
        return cast("Script | None", await in_words(environment.script, (skill,), ()))
    except RaisedError as error:
        said = error

        def raising(cue: Cue) -> str:  # noqa: ARG001
            """Raise the error from the script's creation."""
            raise said

        return raising


def wandering(seed: int) -> Player:
    """Return a player that chooses random options, or else random words from the observation."""

    async def play(moment: Moment) -> Mapping[str, Said]:
        done = {}
        for role in moment.roles:
            random = Random(derive_seed(seed, "wandering", role, moment.step))
            options = moment.observation.options.get(role, ())
            words = moment.observation.seen_by(role).split() or ["nothing"]
            text = " ".join(random.choices(words, k=random.randint(1, MOST_WORDS)))
            done[role] = Said(random.choice(list(options)) if options else text)
        return done

    return play


def knowing(task: Task, first: int) -> Player:
    """Return a player that says values from the task's data, one per step, likely answers first."""
    values = list(islice(_leaves(task.data), 1000))
    values.sort(key=lambda leaf: TELLING.search(leaf[0]) is None)

    async def play(moment: Moment) -> Mapping[str, Said]:
        value = values[(first + moment.step) % len(values)][1] if values else ""
        options = {role: moment.observation.options.get(role, ()) for role in moment.roles}
        return {
            role: Said(value if not given or value in given else given[(first + moment.step) % len(given)])
            for role, given in options.items()
        }

    return play


def saying(texts: Sequence[str]) -> Player:
    """Return a player that cycles through fixed texts."""

    async def play(moment: Moment) -> Mapping[str, Said]:
        return {role: Said(texts[moment.step % len(texts)]) for role in moment.roles}

    return play


async def silent(moment: Moment) -> Mapping[str, Said]:  # noqa: ARG001
    """Return no actions: the team stays silent."""
    return {}


def repeating(said: Sequence[Mapping[str, Said]]) -> Player:
    """Return a player that repeats recorded replies with their tool calls; silent after the last."""

    async def play(moment: Moment) -> Mapping[str, Said]:
        done = {}
        for role, one in (said[moment.step] if moment.step < len(said) else {}).items():
            done[role] = Said(one.text, tuple([await moment.call(call) for call in one.calls]))
        return done

    return play


def _leaves(value: object, key: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """Yield texts and numbers in plain data, with their keys. Each also comes as a boxed answer."""
    if depth > DEEPEST:
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
