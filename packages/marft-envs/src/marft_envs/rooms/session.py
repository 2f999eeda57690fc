"""One attempt at a kitchen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from marft.agents.answers import text_said
from marft.common.types import JointAction, Observation, Step
from marft_envs.rooms.layout import Layout, soup
from marft_envs.rooms.state import FILL, LIFT, TAKE_SOUP, Kitchen, Player
from marft_envs.rooms.words import (
    HELP,
    IN_POT,
    READY,
    TAKEN,
    Answer,
    acts_by_thing,
    answer_of,
    answers_of,
    orders,
    view,
    view_by_thing,
)


@dataclass(frozen=True)
class Rules:
    """How a kitchen is played.

    Args:
        players: their names; each is steered by the agent of that role, or all by ``steered_by``.
        order: whether those who are free decide at once, or the next one knows what came of the last one's act.
        offered: whether agents choose from what is possible, in place of writing.
        time_bonus: share of the reward that is for the time that is left.
        by_progress: whether work pays that is done on the way to a dish, in place of its service alone.
        by_thing: views say of each thing how to get it, and not of each door what is behind it; and who names a thing
            does what is to be done for it.
    """

    players: tuple[str, ...]
    steered_by: str = ""
    order: Literal["together", "one after another"] = "together"
    offered: bool = False
    walk: int = 1
    boil: int = 0
    time_bonus: float = 0.0
    by_progress: bool = False
    by_thing: bool = False


class Shift:
    """A kitchen from its opening to the last dish, or to the deadline."""

    def __init__(self, layout: Layout, deadline: int, rules: Rules) -> None:
        self.rules, self.deadline = rules, deadline
        self.kitchen = Kitchen.opened(layout, rules.players, rules.walk, rules.boil)
        self.words = 0  # how often something was said
        self._acting: list[Player] = []
        self._seen: dict[str, tuple[str, ...]] = {}

    async def reset(self) -> Observation:
        return self.begin()

    async def step(self, actions: JointAction) -> Step:
        return self.take(self._answers(actions))

    def begin(self) -> Observation:
        """Open the kitchen."""
        self._next()
        return self._shown()

    def take(self, answers: Mapping[str, Answer]) -> Step:
        """Carry out what those decided whose turn it was, then let time pass until somebody is free.

        Args:
            answers: by player.
        """
        kitchen, served, before = self.kitchen, 0, self.kitchen.progress()
        for player in self._acting:
            act, said = answers[player.name]
            if self.rules.by_thing:
                act = acts_by_thing(kitchen, player).get(act, act)
            served += kitchen.carry_out(player, act, self._seen[player.name])
            if self.rules.offered:
                said = self._called(player, act)
            if said:
                player.said, self.words = said, self.words + 1
        self._next()
        solved = not kitchen.open
        over = solved or kitchen.time >= self.deadline
        bonus = self.rules.time_bonus
        done = kitchen.progress() - before if self.rules.by_progress else served / len(kitchen.layout.dishes)
        reward = (1 - bonus) * done
        if solved:
            reward += bonus * max(0, self.deadline - kitchen.time) / self.deadline
        return Step(
            Observation("") if over else self._shown(), reward, terminated=over, success=solved,
            info={"progress": kitchen.progress(), "measures": self._measures()},
        )  # fmt: skip

    def _called(self, player: Player, act: str) -> str:
        """What a player calls out by itself, where it cannot say anything."""
        if player.told:
            return ""
        pot = self.kitchen.pot
        if act == FILL:
            return soup(pot) + READY if len(pot) == self.kitchen.size else IN_POT + ", ".join(pot)
        return {TAKE_SOUP: player.holds + TAKEN, LIFT: HELP}.get(act, "")

    async def close(self) -> None: ...

    def _measures(self) -> dict[str, float]:
        kitchen = self.kitchen
        served = len(kitchen.layout.dishes) - len(kitchen.open)
        return {"served": served, "conflicts": kitchen.conflicts, "mistakes": kitchen.mistakes, "words": self.words}

    def _answers(self, actions: JointAction) -> Mapping[str, Answer]:
        """What each player does; one whose agent said nothing does nothing that there is."""
        leader = self.rules.steered_by
        if leader:
            action = actions.of(leader)
            text = text_said(action)
            if len(self._acting) == 1:
                (player,) = self._acting
                named = answers_of(text, [player.name])[player.name]
                return {player.name: named if named.act else answer_of(text)}
            return answers_of(text, [player.name for player in self._acting])
        said = {player.name: actions.of(player.name) for player in self._acting}
        return {name: answer_of(text_said(action)) for name, action in said.items()}

    def _next(self) -> None:
        """Whoever acts next: all that are free, in an order that goes round, or the first of them."""
        kitchen = self.kitchen
        soonest = min(player.free for player in kitchen.players)
        if soonest > kitchen.time or not self._acting:
            kitchen.time = soonest
            kitchen.begin()
        first = kitchen.time % len(kitchen.players)
        rounds = [*kitchen.players[first:], *kitchen.players[:first]]
        free = [player for player in rounds if player.free <= kitchen.time]
        self._acting = free if self.rules.order == "together" else free[:1]
        self._seen = {player.name: tuple(kitchen.possible(player)) for player in self._acting}

    def _shown(self) -> Observation:
        names = [player.name for player in self._acting]
        wanted = orders(self.kitchen, self.deadline)
        seen = {player.name: self._view(player) for player in self._acting}
        leader = self.rules.steered_by
        if leader:
            seen = {leader: "\n".join(f"{name}: {view}" for name, view in seen.items())}
        turn = (leader,) if leader else tuple(sorted(names, key=self.rules.players.index))
        options = {leader or name: self._seen[name] for name in names} if self.rules.offered else {}
        if self.rules.by_thing:
            return Observation("", {name: f"{view}\n{wanted}" for name, view in seen.items()}, turn, options)
        return Observation(wanted, seen, turn, options)

    def _view(self, player: Player) -> str:
        return (view_by_thing if self.rules.by_thing else view)(self.kitchen, player)
