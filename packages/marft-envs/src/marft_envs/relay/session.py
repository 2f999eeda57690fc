"""Session for one puzzle: speakers first, then the answerer."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from marft.agents.answers import stated_answer, text_said
from marft.common.types import JointAction, Observation, Step, Task
from marft_envs.relay.passing import passed

if TYPE_CHECKING:
    from marft_envs.relay.environment import Relay

MOST_PAID = 0.5  # maximum word costs in an episode, so that success always earns more than failure
NOTHING = "(nothing)"


class RelaySession:
    """One attempt at a puzzle."""

    def __init__(self, relay: Relay, task: Task, seed: int) -> None:
        self.relay, self.task, self.random = relay, task, Random(seed)
        self.steps, self.said, self.came, self.paid = 0, 0, 0, 0.0
        self.heard: dict[str, list[tuple[str, str]]] = {}  # by receiver: pairs of sender and transmitted text

    async def reset(self) -> Observation:
        """Return the first observation."""
        return self._shown()

    async def step(self, actions: JointAction) -> Step:
        """Transmit the messages of the speakers in turn, or grade the answer in the last step."""
        roles = self.relay.turns[self.steps]
        self.steps += 1
        if self.steps == len(self.relay.turns):
            return self._graded(actions)
        own = {role: self._told(role, _text(actions, role)) for role in roles}
        to_team = self.relay.paid_by == "team"
        return Step(
            self._shown(), sum(own.values()) if to_team else 0.0, agent_rewards={} if to_team else own,
            info={"progress": 0.0, "hidden": {role: " ".join(self._part(role)) for role in roles}, **self._measures()},
        )  # fmt: skip

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _told(self, role: str, text: str) -> float:
        """Transmit a message and return its negative cost."""
        relay = self.relay
        others = relay.alphabet or relay.known(relay.speakers.index(role))
        came = passed(
            text, self.random, relay.words, relay.characters, relay.alphabet, relay.noise, relay.hit, others
        )  # fmt: skip
        place = relay.speakers.index(role) + 1
        last = relay.path == "star" or place == len(relay.speakers)
        self.heard.setdefault(relay.answerer if last else relay.speakers[place], []).append((role, came))
        words = len(text.split())
        price = min(relay.price * words, MOST_PAID - self.paid)
        self.said, self.came, self.paid = self.said + words, self.came + len(came.split()), self.paid + price
        return -price

    def _graded(self, actions: JointAction) -> Step:
        """Grade the answer by its symbols in order; separators are ignored."""
        wanted = [symbol.casefold() for symbol in self.task.data["answer"]]
        given = stated_answer(text_said(actions.of(self.relay.answerer))).casefold().replace(",", " ").split()
        right = given == wanted
        share = sum(one == other for one, other in zip(given, wanted, strict=False)) / len(wanted)
        info = {"progress": 1.0 if right else min(share, 0.99), **self._measures()}
        return Step(Observation(""), float(right), terminated=True, success=right, info=info)

    def _shown(self) -> Observation:
        turn = self.relay.turns[self.steps]
        return Observation(self.task.prompt, {role: self._view(role) for role in turn}, turn)

    def _view(self, role: str) -> str:
        """Return an agent's private view: its part and the messages it received."""
        lines = [f"Part: {' '.join(self._part(role)) if role != self.relay.answerer else self.task.data['own']}"]
        lines += [f"From {sender}: {came or NOTHING}" for sender, came in self.heard.get(role, ())]
        return "\n".join(lines)

    def _part(self, role: str) -> list[str]:
        parts: Mapping[str, list[str]] = self.task.data["parts"]
        return parts[role]

    def _measures(self) -> dict[str, Any]:
        measures = {
            "words_said": float(self.said),
            "words_passed": float(self.came),
            "guessing_rate": self.relay.guessing,
        }
        return {"measures": measures}


def _text(actions: JointAction, role: str) -> str:
    action = actions.of(role)
    return action.message if action is not None else ""
