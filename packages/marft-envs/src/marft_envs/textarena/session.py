"""Session for one match between a team's sides and further players: turns, views and rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Protocol

from marft.agents.answers import graded_text
from marft.common.types import JointAction, Observation, Step
from marft_envs.textarena.games import GameRules, Match, normalize_move


class Opponent(Protocol):
    """Scripted player without an agent."""

    def __call__(self, match: Match, random: Random) -> str: ...


@dataclass(frozen=True, slots=True)
class SideAssignment:
    """Assignment of players to sides, and the rules for rewards.

    >>> SideAssignment((("planner", "mover"), ("rival",)), players=(1, 0)).roles_of_player(0)
    ('rival',)
    """

    sides: tuple[tuple[str, ...], ...]  # roles by side; the last role moves, and the roles before it advise
    players: tuple[int, ...]  # player of each side
    shared: bool = False  # team reward: the first side's payoff, or in a cooperative game the common payoff
    cooperative: bool = False

    def roles_of_player(self, player: int) -> tuple[str, ...]:
        """Return the roles of a player; () for a player without an agent."""
        return next(
            (side for side, assigned_player in zip(self.sides, self.players, strict=True) if assigned_player == player),
            (),
        )


class TextArenaSession:
    """One match.

    Args:
        match: the match.
        assignment: assignment of players to sides.
        random: random generator for the opponent.
        rules: rules of a built-in game, which know the optimal moves; None for others.
        opponent: scripted player for players without a side.
        max_turns: moves after which the match is a draw; 0 for no limit.
    """

    def __init__(
        self,
        match: Match,
        assignment: SideAssignment,
        random: Random,
        rules: GameRules | None = None,
        opponent: Opponent | None = None,
        max_turns: int = 0,
    ) -> None:
        self.match, self.assignment, self.rules, self.opponent = match, assignment, rules, opponent
        self.max_turns, self._random = max_turns, random
        # moves and optimal moves of the learning sides; moves of all players
        self._learner_moves = self._optimal_moves = self._total_moves = 0

    async def reset(self) -> Observation:
        """Play the scripted player's first moves and return the observation."""
        self._play_opponents()
        return self._build_observation()

    async def step(self, actions: JointAction) -> Step:
        """Play the move of the side in turn, then the moves of players without an agent."""
        action = actions.for_role(self.assignment.roles_of_player(self.match.current_player)[-1])
        self._play_move(graded_text(action), learning=self._is_learning(self.match.current_player))
        self._play_opponents()
        is_draw = not self.match.over and bool(self.max_turns) and self._total_moves >= self.max_turns
        if not self.match.over and not is_draw:
            return Step(self._build_observation(), 0.0, info={"measures": self._metrics()})
        payoffs = (0.0,) * len(self.match.illegal_counts) if is_draw else self.match.payoffs()
        team, agent_rewards = self._compute_rewards(payoffs)
        return Step(
            self._final_observation(payoffs),
            team,
            terminated=True,
            agent_rewards=agent_rewards,
            success=self._is_success(payoffs),
            info={"measures": self._metrics()},
        )

    async def close(self) -> None:
        """No-op: no resources are held."""

    def _is_learning(self, player: int) -> bool:
        assignment = self.assignment
        return bool(assignment.roles_of_player(player)) and (
            assignment.cooperative or not assignment.shared or player == assignment.players[0]
        )

    def _play_move(self, text: str, learning: bool) -> None:
        match, options = self.match, self.match.options()
        if learning:
            self._learner_moves += 1
            optimal = self.rules.optimal_moves(match.player_text(match.current_player), options) if self.rules else ()
            earlier_illegal = sum(match.illegal_counts)
        match.play_move(text)
        if learning and self.rules and sum(match.illegal_counts) == earlier_illegal:
            self._optimal_moves += bool({normalize_move(text)} & set(map(normalize_move, optimal)))
        self._total_moves += 1

    def _play_opponents(self) -> None:
        """Play the moves of players without an agent."""
        while not self.match.over and not self.assignment.roles_of_player(self.match.current_player):
            assert self.opponent is not None, "every player has a side, or an opponent"
            self._play_move(self.opponent(self.match, self._random), learning=False)

    def _build_observation(self) -> Observation:
        side = self.assignment.roles_of_player(self.match.current_player)
        text, options = self.match.player_text(self.match.current_player), self.match.options()
        return Observation(
            "", views=dict.fromkeys(side, text), turn=side, options={side[-1]: options} if options else {}
        )

    def _final_observation(self, payoffs: Sequence[float]) -> Observation:
        results = [
            f"{' and '.join(side)}: {payoffs[player]:+g}"
            for side, player in zip(self.assignment.sides, self.assignment.players, strict=True)
        ]
        return Observation(f"The match is over. {', '.join(results)}.")

    def _compute_rewards(self, payoffs: Sequence[float]) -> tuple[float, Mapping[str, float]]:
        """Return the team's reward and the rewards of single agents.

        Raises:
            ValueError: players of a game declared as cooperative earned different payoffs.
        """
        assignment = self.assignment
        if assignment.cooperative and max(payoffs) - min(payoffs) > 1e-9:
            raise ValueError(
                "the players of a game that is played together (cooperative = true) earned "
                f"{', '.join(map(str, payoffs))}; they play against each other: set cooperative = false"
            )
        if assignment.shared or assignment.cooperative:
            return payoffs[assignment.players[0]], {}
        return 0.0, {
            role: payoffs[player]
            for side, player in zip(assignment.sides, assignment.players, strict=True)
            for role in side
        }

    def _is_success(self, payoffs: Sequence[float]) -> bool | None:
        """Return True if the learning side won, or in a cooperative game if the payoff is positive.

        None means that several sides learn, so success is undefined.
        """
        shared = self.assignment.shared or self.assignment.cooperative
        return payoffs[self.assignment.players[0]] > 0 if shared else None

    def _metrics(self) -> dict[str, float]:
        """Return the metrics so far."""
        metrics = {"turns": float(self._total_moves)}
        if self._learner_moves:
            learning_players = [player for player in range(len(self.match.illegal_counts)) if self._is_learning(player)]
            metrics["illegal_moves"] = (
                sum(self.match.illegal_counts[player] for player in learning_players) / self._learner_moves
            )
            if self.rules:
                metrics["sound_moves"] = self._optimal_moves / self._learner_moves
        return metrics
