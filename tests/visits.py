"""Sessions of worlds played by hand or by a script, without models and templates."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from marft.agents.prompt_messages import format_message
from marft.common.seeds import derive_seed
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.interfaces.channel import Message
from marft.envs.scripted_policy import PolicyInput
from tests.episodes import make_action


@dataclass
class Visit:
    """An episode: what was shown, said and returned."""

    observations: list[Observation] = field(default_factory=list)
    said: list[Mapping[str, str]] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)

    @property
    def last(self) -> Step:
        return self.steps[-1]

    @property
    def reward(self) -> float:
        return sum(step.reward for step in self.steps)

    def earned(self, role: str) -> float:
        return sum(step.agent_rewards.get(role, 0.0) for step in self.steps)


def joint(texts: Mapping[str, str]) -> JointAction:
    """What a team does whose agents say this, the last one the answer."""
    actions = tuple(make_action(agent=role, text=text) for role, text in texts.items())
    return JointAction(actions[-1] if actions else None, actions)


def visit(environment: Any, task: Task, says: Callable[..., str], roles: Sequence[str], most: int = 500) -> Visit:
    """Play an episode; whose turn it is act one after another, and see those before them."""

    async def attempt() -> Visit:
        session = environment.start(task, seed=0)
        shown, done = await session.reset(), Visit()
        for _ in range(most):
            texts: dict[str, str] = {}
            for role in shown.turn or roles:
                texts[role] = says(role, shown, dict(texts), len(done.steps))
            done.observations.append(shown)
            done.said.append(texts)
            done.steps.append(await session.step(joint(texts)))
            shown = done.last.observation
            if done.last.terminated or done.last.truncated:
                await session.close()
                return done
        raise AssertionError("it does not end")

    return asyncio.run(attempt())


def by_script(environment: Any, task: Task, roles: Sequence[str], skill: float = 1.0, memory: bool = False) -> Visit:
    """Play an episode by the world's script; with ``memory`` agents are shown all that they were told and said."""
    script = environment.script(skill)
    chats: dict[str, list[dict[str, str]]] = {role: [] for role in roles}

    def says(role: str, shown: Observation, before: Mapping[str, str], step: int) -> str:
        heard = (format_message(Message(other, text)) for other, text in before.items())
        chat = [*chats[role], {"role": "user", "content": "\n\n".join((shown.for_role(role), *heard))}]
        random = Random(derive_seed(0, task.id, role, step))
        text = str(script(PolicyInput(task, role, step, chat, random, shown.options.get(role, ()))))
        if memory:
            chats[role] = [*chat, {"role": "assistant", "content": text}]
        return text

    return visit(environment, task, says, roles)


def by_texts(environment: Any, task: Task, texts: Sequence[str], role: str) -> Visit:
    """Play an episode in which one agent says these, and then nothing."""
    waiting: Iterator[str] = iter(texts)
    return visit(environment, task, lambda *_: next(waiting, ""), [role])
