"""Session for one match between a team's sides and further players: turns, views and rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from marft.agents.answers import text_said
from marft.common.types import JointAction, Observation, Step
from marft_envs.textarena.games import Match, Rules, plain


class Opponent(Protocol):
    """Scripted player without an agent."""

    def __call__(self, match: Match, random: Random) -> str: ...


@dataclass(frozen=True, slots=True)
class Seating:
    """Assignment of players to sides, and the rules for rewards.

    >>> Seating((("planner", "mover"), ("rival",)), players=(1, 0)).side_of(0)
    ('rival',)
    """

    sides: tuple[tuple[str, ...], ...]  # roles by side; the last role moves, and the roles before it advise
    players: tuple[int, ...]  # player of each side
    shared: bool = False  # team reward: the first side's payoff, or in a cooperative game the common payoff
    cooperative: bool = False

    def side_of(self, player: int) -> tuple[str, ...]:
        """Return the roles of a player; () for a player without an agent."""
        return next((side for side, of in zip(self.sides, self.players, strict=True) if of == player), ())


class GameSession:
    """One match.

    Args:
        match: the match.
        seating: assignment of players to sides.
        random: random generator for the opponent.
        rules: rules of a built-in game, which know the optimal moves; None for others.
        opponent: scripted player for players without a side.
        max_turns: moves after which the match is a draw; 0 for no limit.
    """

    def __init__(
        self, match: Match, seating: Seating, random: Random, rules: Rules | None = None,
        opponent: Opponent | None = None, max_turns: int = 0,
    ) -> None:  # fmt: skip
        self.match, self.seating, self.rules, self.opponent = match, seating, rules, opponent
        self.max_turns, self._random = max_turns, random
        # moves and optimal moves of the learning sides; moves of all players
        self._moves = self._sound = self._turns = 0

    async def reset(self) -> Observation:
        """Play the scripted player's first moves and return the observation."""
        self._others()
        return self._shown()

    async def step(self, actions: JointAction) -> Step:
        """Play the move of the side in turn, then the moves of players without an agent."""
        action = actions.of(self.seating.side_of(self.match.mover)[-1])
        self._move(text_said(action), learning=self._learns(self.match.mover))
        self._others()
        drawn = not self.match.over and bool(self.max_turns) and self._turns >= self.max_turns
        if not self.match.over and not drawn:
            return Step(self._shown(), 0.0, info={"measures": self._measures()})
        paid = (0.0,) * len(self.match.illegal) if drawn else self.match.paid()
        team, own = self._earned(paid)
        return Step(
            self._ended(paid), team, terminated=True, agent_rewards=own, success=self._success(paid),
            info={"measures": self._measures()},
        )  # fmt: skip

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _learns(self, player: int) -> bool:
        seating = self.seating
        return bool(seating.side_of(player)) and (
            seating.cooperative or not seating.shared or player == seating.players[0]
        )

    def _move(self, text: str, learning: bool) -> None:
        match, options = self.match, self.match.options()
        if learning:
            self._moves += 1
            sound = self.rules.sound(match.shown(match.mover), options) if self.rules else ()
            before = sum(match.illegal)
        match.play(text)
        if learning and self.rules and sum(match.illegal) == before:
            self._sound += bool({plain(text)} & set(map(plain, sound)))
        self._turns += 1

    def _others(self) -> None:
        """Play the moves of players without an agent."""
        while not self.match.over and not self.seating.side_of(self.match.mover):
            assert self.opponent is not None, "every player has a side, or an opponent"
            self._move(self.opponent(self.match, self._random), learning=False)

    def _shown(self) -> Observation:
        side = self.seating.side_of(self.match.mover)
        text, options = self.match.shown(self.match.mover), self.match.options()
        return Observation(
            "", views=dict.fromkeys(side, text), turn=side, options={side[-1]: options} if options else {}
        )

    def _ended(self, paid: Sequence[float]) -> Observation:
        results = [
            f"{' and '.join(side)}: {paid[player]:+g}"
            for side, player in zip(self.seating.sides, self.seating.players, strict=True)
        ]
        return Observation(f"The match is over. {', '.join(results)}.")

    def _earned(self, paid: Sequence[float]) -> tuple[float, Mapping[str, float]]:
        """Return the team's reward and the rewards of single agents.

        Raises:
            ValueError: players of a game declared as cooperative earned different payoffs.
        """
        seating = self.seating
        if seating.cooperative and max(paid) - min(paid) > 1e-9:
            raise ValueError(
                f"the players of a game that is played together (cooperative = true) earned {', '.join(map(str, paid))}"
                "; they play against each other: set cooperative = false"
            )
        if seating.shared or seating.cooperative:
            return paid[seating.players[0]], {}
        return 0.0, {
            role: paid[player]
            for side, player in zip(seating.sides, seating.players, strict=True)
            for role in side
        }  # fmt: skip

    def _success(self, paid: Sequence[float]) -> bool | None:
        """Return True if the learning side won, or in a cooperative game if the payoff is positive.

        None means that several sides learn, so success is undefined.
        """
        shared = self.seating.shared or self.seating.cooperative
        return paid[self.seating.players[0]] > 0 if shared else None

    def _measures(self) -> dict[str, float]:
        """Return the metrics so far."""
        found = {"turns": float(self._turns)}
        if self._moves:
            mine = [player for player in range(len(self.match.illegal)) if self._learns(player)]
            found["illegal_moves"] = sum(self.match.illegal[player] for player in mine) / self._moves
            if self.rules:
                found["sound_moves"] = self._sound / self._moves
        return found
