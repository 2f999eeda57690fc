"""Session for one puzzle: speakers first, then the answerer."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import TYPE_CHECKING, Any

from marft.agents.answers import extract_answer, graded_text
from marft.common.types import JointAction, Observation, Step, Task
from marft_envs.relay.channel import transmit

if TYPE_CHECKING:
    from marft_envs.relay.environment import Relay

MAX_COST = 0.5  # maximum word costs in an episode, so that success always earns more than failure
NOTHING_TEXT = "(nothing)"


class RelaySession:
    """One attempt at a puzzle."""

    def __init__(self, relay: Relay, task: Task, seed: int) -> None:
        self.relay, self.task, self.random = relay, task, Random(seed)
        self.steps, self.words_sent, self.words_received, self.total_cost = 0, 0, 0, 0.0
        self.inbox: dict[str, list[tuple[str, str]]] = {}  # by receiver: pairs of sender and transmitted text

    async def reset(self) -> Observation:
        """Return the first observation."""
        return self._build_observation()

    async def step(self, actions: JointAction) -> Step:
        """Transmit the messages of the speakers in turn, or grade the answer in the last step."""
        roles = self.relay.turns[self.steps]
        self.steps += 1
        if self.steps == len(self.relay.turns):
            return self._grade(actions)
        costs = {role: self._transmit(role, _message_text(actions, role)) for role in roles}
        is_team_cost = self.relay.paid_by == "team"
        return Step(
            self._build_observation(),
            sum(costs.values()) if is_team_cost else 0.0,
            agent_rewards={} if is_team_cost else costs,
            info={
                "progress": 0.0,
                "hidden": {role: " ".join(self._role_part(role)) for role in roles},
                **self._metrics(),
            },
        )

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _transmit(self, role: str, text: str) -> float:
        """Transmit a message and return its negative cost."""
        relay = self.relay
        replacements = relay.alphabet or relay.speaker_symbols(relay.speakers.index(role))
        received = transmit(
            text,
            self.random,
            relay.words,
            relay.characters,
            relay.alphabet,
            relay.noise,
            relay.noise_effect,
            replacements,
        )
        position = relay.speakers.index(role) + 1
        last = relay.topology == "star" or position == len(relay.speakers)
        self.inbox.setdefault(relay.answerer if last else relay.speakers[position], []).append((role, received))
        words = len(text.split())
        cost = min(relay.word_cost * words, MAX_COST - self.total_cost)
        self.words_sent, self.words_received, self.total_cost = (
            self.words_sent + words,
            self.words_received + len(received.split()),
            self.total_cost + cost,
        )
        return -cost

    def _grade(self, actions: JointAction) -> Step:
        """Grade the answer by its symbols in order; separators are ignored."""
        expected = [symbol.casefold() for symbol in self.task.data["answer"]]
        answer_symbols = (
            extract_answer(graded_text(actions.for_role(self.relay.answerer))).casefold().replace(",", " ").split()
        )
        right = answer_symbols == expected
        correct_share = sum(
            given_symbol == expected_symbol
            for given_symbol, expected_symbol in zip(answer_symbols, expected, strict=False)
        ) / len(expected)
        info = {"progress": 1.0 if right else min(correct_share, 0.99), **self._metrics()}
        return Step(Observation(""), float(right), terminated=True, success=right, info=info)

    def _build_observation(self) -> Observation:
        turn = self.relay.turns[self.steps]
        return Observation(self.task.prompt, {role: self._role_view(role) for role in turn}, turn)

    def _role_view(self, role: str) -> str:
        """Return an agent's private view: its part and the messages it received."""
        lines = [f"Part: {' '.join(self._role_part(role)) if role != self.relay.answerer else self.task.data['own']}"]
        lines += [f"From {sender}: {received or NOTHING_TEXT}" for sender, received in self.inbox.get(role, ())]
        return "\n".join(lines)

    def _role_part(self, role: str) -> list[str]:
        parts: Mapping[str, list[str]] = self.task.data["parts"]
        return parts[role]

    def _metrics(self) -> dict[str, Any]:
        metrics = {
            "words_said": float(self.words_sent),
            "words_passed": float(self.words_received),
            "guessing_rate": self.relay.guess_rate,
        }
        return {"measures": metrics}


def _message_text(actions: JointAction, role: str) -> str:
    action = actions.for_role(role)
    return action.message if action is not None else ""
