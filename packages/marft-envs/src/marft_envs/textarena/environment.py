"""Multiplayer text games: cooperative, in self-play, against other agents, or against a scripted player."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Annotated, ClassVar, Literal, Protocol

from pydantic import Field, Strict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import graded_text
from marft.common.errors import UserError
from marft.common.types import JointAction, Observation, Step, Task
from marft.config.settings import Fraction, Names, NonEmptyString, NonNegativeCount, PlainTable, did_you_mean
from marft.envs.scripted_policy import PolicyInput
from marft_envs.generated import GeneratedEnvironment, GeneratedTask, describe_unknown_roles
from marft_envs.textarena import package
from marft_envs.textarena.games import GameRules, Hints, Match, Nim, normalize_move
from marft_envs.textarena.kuhn import Kuhn, compute_exploitability, estimate_strategy


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
        is_draw = not self.match.is_over and bool(self.max_turns) and self._total_moves >= self.max_turns
        if not self.match.is_over and not is_draw:
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
        while not self.match.is_over and not self.assignment.roles_of_player(self.match.current_player):
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
            UserError: players of a game declared as cooperative earned different payoffs.
        """
        assignment = self.assignment
        if assignment.cooperative and max(payoffs) - min(payoffs) > 1e-9:
            raise UserError(
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


BUILT_IN_GAMES: Mapping[str, type[GameRules]] = {"hints": Hints, "kuhn": Kuhn, "nim": Nim}
AGENT_OPPONENTS = ("self", "frozen", "pool")  # opponents played by agents in the team


class TextArena(GeneratedEnvironment):
    """Text games: the built-in games ``hints``, ``kuhn`` and ``nim``, and TextArena's games by id.

    The starting side is drawn for each task. All attempts at a task start from the same side.
    """

    stream: ClassVar[str] = "TextArena"
    controls_turns: ClassVar[bool] = True
    game: NonEmptyString = Field(
        default="kuhn", description="hints, kuhn, nim, or a TextArena id such as ConnectFour-v0"
    )
    params: PlainTable = Field(default={}, description="parameters of the game")
    seats: Annotated[tuple[Names, ...], Strict(False), Field(min_length=1, max_length=16)] = Field(
        default=(("north",), ("south",)),
        description="sides, each a list of roles for one player; the last role moves, and the roles before it advise",
    )
    opponent: Literal["self", "frozen", "pool", "random", "perfect"] = Field(
        default="self",
        description=(
            "opponent of the first side; self: each side learns; frozen, pool: frozen policies, or past versions of "
            "the learner; random, perfect: scripted player"
        ),
    )
    opponent_skill: Fraction = Field(
        default=1.0, description="fraction of perfect moves of a perfect opponent; other moves are random"
    )
    first_move: Literal["random", "first"] = Field(
        default="random", description="side with the first move: drawn for each task, or always the first side"
    )
    cooperative: bool = Field(
        default=False,
        description="treat a TextArena game as cooperative: equal rewards for the players, counted once for the team",
    )
    max_turns: NonNegativeCount = Field(
        default=0, description="moves after which a match is a draw; 0: only the game's own limit"
    )
    data: str = Field(default="", description="folder of word lists for TextArena games that need them (nltk_data)")

    @model_validator(mode="after")
    def _check_settings(self) -> TextArena:
        for problem in self._find_problems():
            raise PydanticCustomError("game", "{problem}", {"problem": problem})
        return self

    def _find_problems(self) -> Iterable[str]:
        empty = [side for side in self.seats if not side]
        roles = [role for side in self.seats for role in side]
        duplicate = next((role for role in roles if roles.count(role) > 1), "")
        if empty:
            yield "seats: a side has no role; name who plays it, or leave the side out"
        if duplicate:
            yield f"seats: {duplicate!r} has two seats; every role plays one player"
        if self.opponent in ("frozen", "pool") and len(self.seats) < 2:
            yield f"opponent: {self.opponent!r} is a side of its own; add its roles to seats"
        if self.opponent not in AGENT_OPPONENTS and len(self.seats) > 1:
            yield f"opponent: {self.opponent!r} is no agent, so seats has one side alone; remove the others"
        if self.opponent not in AGENT_OPPONENTS and self._built_in is None:
            yield f"opponent: TextArena lists no moves, so {self.opponent!r} cannot play {self.game}; use 'frozen'"
        try:
            players = self._player_count
            rules = self.rules
            if rules is None:
                package.check_game(self.game, self.params, players, self.data)
        except ValidationError as error:
            yield from (
                ".".join(map(str, ("params", *validation_error["loc"]))) + f": {validation_error['msg']}"
                for validation_error in error.errors()
            )
            return
        except ValueError as error:
            yield str(error)
            return
        if rules and players != rules.players:
            yield f"seats: {self.game} is for {rules.players} players, and {players} would play; name a side for each"
        if self.is_cooperative and self.opponent != "self":
            yield f"opponent: {self.game} is played together, so nobody plays against it; set opponent = 'self'"

    @property
    def _built_in(self) -> type[GameRules] | None:
        """Rules class for a built-in game; None for a TextArena game."""
        return BUILT_IN_GAMES.get(self.game)

    @cached_property
    def rules(self) -> GameRules | None:
        """Rules for a built-in game; None for a TextArena game.

        Raises:
            UserError: the name has no version suffix, but is not a built-in game.
        """
        if self._built_in is None and "-" not in self.game:
            hint = did_you_mean(self.game, BUILT_IN_GAMES)
            raise UserError(f"there is no game {self.game!r}{hint}; those of TextArena end in a version, as Nim-v0")
        return self._built_in.model_validate(self.params) if self._built_in else None

    @property
    def _player_count(self) -> int:
        return len(self.seats) + (self.opponent not in AGENT_OPPONENTS)

    @property
    def is_cooperative(self) -> bool:
        """True if all players earn the same."""
        return self.rules.cooperative if self.rules else self.cooperative

    @property
    def relays_messages(self) -> bool:  # type: ignore[override]
        """True if the game itself passes the agents' words on, as in ``hints``."""
        return self.game == "hints"

    @property
    def opposing_sides(self) -> tuple[tuple[str, ...], ...]:
        """Learning sides in competition with each other."""
        has_one_side = self.is_cooperative or self.opponent != "self" or len(self.seats) == 1
        return () if has_one_side else self.seats

    @property
    def opponent_roles(self) -> tuple[str, ...]:
        """Roles for opponents without learning."""
        return tuple(role for side in self.seats[1:] for role in side) if self.opponent in ("frozen", "pool") else ()

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each role without an agent, and for each agent without a side."""
        seated_roles = [role for side in self.seats for role in side]
        yield from describe_unknown_roles({"seats": seated_roles}, roles)
        for role in roles:
            if role not in seated_roles:
                yield f"environment.seats: {role!r} has no seat, and would never act; give it one or remove the agent"

    def generate_task(self, random: Random) -> GeneratedTask:
        """Generate a start position, and each side's player number."""
        if self.rules:
            content, start = self.rules.draw_start(random)
        else:
            seed = random.getrandbits(31)
            content, start = f"{self.game} {seed}", {"seed": seed}
        players = list(range(self._player_count))
        shift = random.randrange(self._player_count) if self.first_move == "random" and not self.is_cooperative else 0
        players = players[shift:] + players[:shift]
        begins = next((" and ".join(s) for s, player in zip(self.seats, players, strict=False) if player == 0), "")
        prompt = f"A match of {self.game}{f', which {begins} begins' if begins else ''}."
        return GeneratedTask(content, prompt, {"start": start, "players": players, "begins": begins})

    def start(self, task: Task, seed: int) -> TextArenaSession:
        """Start a match from the task's start position.

        Randomness in the game comes from the task, so attempts at a task differ only in the moves of agents and
        opponents.
        """
        players = tuple(task.data["players"])[: len(self.seats)]
        assignment = SideAssignment(
            self.seats, players, shared=not self.opposing_sides, cooperative=self.is_cooperative
        )
        match = self._start_match(task)
        return TextArenaSession(match, assignment, Random(seed), self.rules, self._make_opponent(), self.max_turns)

    def _start_match(self, task: Task) -> Match:
        start = task.data["start"]
        if self.rules:
            return self.rules.start_match(start)
        return package.TextArenaMatch(self.game, self.params, self._player_count, int(start["seed"]), self.data)

    def _make_opponent(self) -> Opponent | None:
        rules = self.rules
        if rules is None or self.opponent in AGENT_OPPONENTS:
            return None
        skill = self.opponent_skill if self.opponent == "perfect" else 0.0

        def choose_move(match: Match, random: Random) -> str:
            """Return the scripted player's move."""
            return scripted_move(rules, match.player_text(match.current_player), match.options(), random, skill)

        return choose_move

    def exploitability(self, decisions: Iterable[tuple[str, Sequence[float]]]) -> float | None:
        """Return a strategy's exploitability in Kuhn poker; None for another game or without decisions.

        It is the best opponent's advantage over its fair share.

        Args:
            decisions: for each decision, the observation and the probability of each option.
        """
        if self.game != "kuhn":
            return None
        strategy = estimate_strategy((text, probabilities[1]) for text, probabilities in decisions)
        return compute_exploitability(strategy) if strategy else None

    def script(self, skill: float = 1.0) -> Callable[[PolicyInput], str] | None:
        """Return a scripted policy for a built-in game, which plays perfectly with probability ``skill``, otherwise at
        random.

        TextArena's games have none.
        """
        rules = self.rules
        return (lambda cue: scripted_move(rules, cue.last_message, cue.options, cue.random, skill)) if rules else None

    @classmethod
    def known_values(cls) -> Mapping[str, Sequence[str]]:
        """Return the built-in games; TextArena's documentation lists the others."""
        return {"game": sorted(BUILT_IN_GAMES)}


def scripted_move(rules: GameRules, text: str, options: Sequence[str], random: Random, skill: float) -> str:
    """Return a perfect player's move with probability ``skill``, otherwise a random move."""
    return rules.perfect_move(text, options, random) if random.random() < skill else random.choice(list(options))
