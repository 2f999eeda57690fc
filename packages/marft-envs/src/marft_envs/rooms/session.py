"""Session for one kitchen."""

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
    """Rules of play.

    Args:
        players: names of the players. Each is controlled by the agent of that role, or all by ``steered_by``.
        steered_by: role that controls all players; "" for none.
        order: turn order: all free players decide at once, or each sees the result of the previous action.
        offered: True if agents choose a possible action instead of writing.
        walk: time steps to go through a door.
        boil: time steps to cook a full pot.
        time_bonus: fraction of the reward for the time left at the end.
        by_progress: True to reward each part of the work instead of served dishes only.
        by_thing: True if views list the way to each thing instead of the things behind each door. A player then acts
            by naming a thing.
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
    """A kitchen from opening until the last dish or the deadline."""

    def __init__(self, layout: Layout, deadline: int, rules: Rules) -> None:
        self.rules, self.deadline = rules, deadline
        self.kitchen = Kitchen.opened(layout, rules.players, rules.walk, rules.boil)
        self.words = 0  # number of messages
        self._acting: list[Player] = []
        self._seen: dict[str, tuple[str, ...]] = {}

    async def reset(self) -> Observation:
        """Open the kitchen and return the first observation."""
        return self.begin()

    async def step(self, actions: JointAction) -> Step:
        """Apply the agents' actions."""
        return self.take(self._answers(actions))

    def begin(self) -> Observation:
        """Open the kitchen and return the first observation."""
        self._next()
        return self._shown()

    def take(self, answers: Mapping[str, Answer]) -> Step:
        """Apply the actions of the players in turn, then advance time until a player is free.

        Args:
            answers: action by player.
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
        """Return a player's automatic message if players cannot write; "" for none."""
        if player.told:
            return ""
        pot = self.kitchen.pot
        if act == FILL:
            return soup(pot) + READY if len(pot) == self.kitchen.size else IN_POT + ", ".join(pot)
        return {TAKE_SOUP: player.holds + TAKEN, LIFT: HELP}.get(act, "")

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _measures(self) -> dict[str, float]:
        kitchen = self.kitchen
        served = len(kitchen.layout.dishes) - len(kitchen.open)
        return {"served": served, "conflicts": kitchen.conflicts, "mistakes": kitchen.mistakes, "words": self.words}

    def _answers(self, actions: JointAction) -> Mapping[str, Answer]:
        """Return each player's action; a missing text counts as an invalid action."""
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
        """Select the next players in turn: all free players, in rotating order, or only the first."""
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
