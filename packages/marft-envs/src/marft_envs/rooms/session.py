"""Session for one kitchen."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from marft.agents.answers import graded_text
from marft.common.types import JointAction, Observation, Step
from marft_envs.rooms.kitchen import LIFT, PUT_IN_POT, TAKE_SOUP, Kitchen, KitchenLayout, Player, soup_name
from marft_envs.rooms.views import (
    HELP_REQUEST,
    POT_PREFIX,
    READY_SUFFIX,
    TAKEN_SUFFIX,
    PlayerAction,
    actions_by_item,
    format_orders,
    format_view_by_door,
    format_view_by_item,
    parse_action,
    parse_actions,
)

if TYPE_CHECKING:
    from marft_envs.rooms.environment import Rooms


class RoomsSession:
    """A kitchen from opening until the last dish or the deadline."""

    def __init__(self, layout: KitchenLayout, deadline: int, settings: Rooms) -> None:
        self.settings, self.deadline = settings, deadline
        self.kitchen = Kitchen.from_layout(layout, settings.players, settings.walk, settings.boil)
        self.message_count = 0  # number of messages
        self._players_in_turn: list[Player] = []
        self._possible_actions: dict[str, tuple[str, ...]] = {}

    async def reset(self) -> Observation:
        """Open the kitchen and return the first observation."""
        return self.reset_sync()

    async def step(self, actions: JointAction) -> Step:
        """Apply the agents' actions."""
        return self.step_sync(self._parse_actions(actions))

    def reset_sync(self) -> Observation:
        """Open the kitchen and return the first observation."""
        self._select_players()
        return self._build_observation()

    def step_sync(self, answers: Mapping[str, PlayerAction]) -> Step:
        """Apply the actions of the players in turn, then advance time until a player is free.

        Args:
            answers: action by player.
        """
        kitchen, served_count, before = self.kitchen, 0, self.kitchen.progress()
        for player in self._players_in_turn:
            action, message = answers[player.name]
            if self.settings.by_item:
                action = actions_by_item(kitchen, player).get(action, action)
            served_count += kitchen.apply_action(player, action, self._possible_actions[player.name])
            if self.settings.offers_options:
                message = self._automatic_message(player, action)
            if message:
                player.message, self.message_count = message, self.message_count + 1
        self._select_players()
        solved = not kitchen.open_orders
        over = solved or kitchen.time >= self.deadline
        bonus, by_progress = self.settings.time_bonus, self.settings.reward == "progress"
        share = kitchen.progress() - before if by_progress else served_count / len(kitchen.layout.dishes)
        reward = (1 - bonus) * share
        if solved:
            reward += bonus * max(0, self.deadline - kitchen.time) / self.deadline
        return Step(
            Observation("") if over else self._build_observation(),
            reward,
            terminated=over,
            success=solved,
            info={"progress": kitchen.progress(), "measures": self._metrics()},
        )

    def _automatic_message(self, player: Player, action: str) -> str:
        """Return a player's automatic message if players cannot write; "" for none."""
        if player.feedback:
            return ""
        pot = self.kitchen.pot
        if action == PUT_IN_POT:
            return soup_name(pot) + READY_SUFFIX if len(pot) == self.kitchen.size else POT_PREFIX + ", ".join(pot)
        return {TAKE_SOUP: player.holds + TAKEN_SUFFIX, LIFT: HELP_REQUEST}.get(action, "")

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _metrics(self) -> dict[str, float]:
        kitchen = self.kitchen
        served = len(kitchen.layout.dishes) - len(kitchen.open_orders)
        return {
            "served": served,
            "conflicts": kitchen.conflicts,
            "mistakes": kitchen.invalid_actions,
            "words": self.message_count,
        }

    def _parse_actions(self, actions: JointAction) -> Mapping[str, PlayerAction]:
        """Return each player's action; a missing text counts as an invalid action."""
        leader = self.settings.controller
        if leader:
            action = actions.for_role(leader)
            text = graded_text(action)
            if len(self._players_in_turn) == 1:
                (player,) = self._players_in_turn
                named_action = parse_actions(text, [player.name])[player.name]
                return {player.name: named_action if named_action.action else parse_action(text)}
            return parse_actions(text, [player.name for player in self._players_in_turn])
        role_actions = {player.name: actions.for_role(player.name) for player in self._players_in_turn}
        return {name: parse_action(graded_text(action)) for name, action in role_actions.items()}

    def _select_players(self) -> None:
        """Select the next players in turn: all free players, in rotating order, or only the first."""
        kitchen = self.kitchen
        next_time = min(player.free_at for player in kitchen.players)
        if next_time > kitchen.time or not self._players_in_turn:
            kitchen.time = next_time
            kitchen.start_time_step()
        first = kitchen.time % len(kitchen.players)
        turn_order = [*kitchen.players[first:], *kitchen.players[:first]]
        free_players = [player for player in turn_order if player.free_at <= kitchen.time]
        self._players_in_turn = free_players if self.settings.order == "simultaneous" else free_players[:1]
        self._possible_actions = {
            player.name: tuple(kitchen.possible_actions(player)) for player in self._players_in_turn
        }

    def _build_observation(self) -> Observation:
        names = [player.name for player in self._players_in_turn]
        order_text = format_orders(self.kitchen, self.deadline)
        views = {player.name: self._format_player_view(player) for player in self._players_in_turn}
        leader = self.settings.controller
        if leader:
            views = {leader: "\n".join(f"{name}: {view}" for name, view in views.items())}
        turn = (leader,) if leader else tuple(sorted(names, key=self.settings.players.index))
        options = (
            {leader or name: self._possible_actions[name] for name in names} if self.settings.offers_options else {}
        )
        if self.settings.by_item:
            return Observation("", {name: f"{view}\n{order_text}" for name, view in views.items()}, turn, options)
        return Observation(order_text, views, turn, options)

    def _format_player_view(self, player: Player) -> str:
        return (format_view_by_item if self.settings.by_item else format_view_by_door)(self.kitchen, player)
