"""One match, between sides of a team and whoever else plays: whose turn it is, who sees what, who earns what."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from marft.agents.answers import text_said
from marft.common.types import JointAction, Observation, Step
from marft_envs.textarena.games import Match, Rules, plain


class Opponent(Protocol):
    """Plays without an agent."""

    def __call__(self, match: Match, random: Random) -> str: ...


@dataclass(frozen=True, slots=True)
class Seating:
    """Who plays which player, and who is paid.

    >>> Seating((("planner", "mover"), ("rival",)), players=(1, 0)).side_of(0)
    ('rival',)
    """

    sides: tuple[tuple[str, ...], ...]  # roles; the last one of a side makes its move, those before it advise it
    players: tuple[int, ...]  # the player that each side plays
    shared: bool = False  # the team earns what the first side does, or in a game played together what all do
    cooperative: bool = False

    def side_of(self, player: int) -> tuple[str, ...]:
        """The roles that play a player; () where no agent does."""
        return next((side for side, of in zip(self.sides, self.players, strict=True) if of == player), ())


class GameSession:
    """
    Args:
        rules: of a game of our own: it knows which moves are sound.
        opponent: plays the players that no side plays.
        max_turns: after as many moves the match is a draw; 0: it goes on.
    """

    def __init__(
        self, match: Match, seating: Seating, random: Random, rules: Rules | None = None,
        opponent: Opponent | None = None, max_turns: int = 0,
    ) -> None:  # fmt: skip
        self.match, self.seating, self.rules, self.opponent = match, seating, rules, opponent
        self.max_turns, self._random = max_turns, random
        self._moves = self._sound = self._turns = 0  # of the team's learning sides; of all

    async def reset(self) -> Observation:
        self._others()
        return self._shown()

    async def step(self, actions: JointAction) -> Step:
        """Make the move of the side whose turn it is, and then those that no agent makes."""
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

    async def close(self) -> None: ...

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
        """The moves of players that no agent plays."""
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
        """What the team earns, and what single agents do.

        Raises:
            ValueError: players of a game that is said to be played together earned differently.
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
        """Whether the learning side won, or all that play together earned anything; between sides that all learn nobody
        can say."""
        shared = self.seating.shared or self.seating.cooperative
        return paid[self.seating.players[0]] > 0 if shared else None

    def _measures(self) -> dict[str, float]:
        """Of the moves so far."""
        found = {"turns": float(self._turns)}
        if self._moves:
            mine = [player for player in range(len(self.match.illegal)) if self._learns(player)]
            found["illegal_moves"] = sum(self.match.illegal[player] for player in mine) / self._moves
            if self.rules:
                found["sound_moves"] = self._sound / self._moves
        return found
