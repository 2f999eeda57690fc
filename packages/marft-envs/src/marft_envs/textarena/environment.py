"""Multiplayer text games: cooperative, in self-play, against other agents, or against a scripted player."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, Strict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from marft.common.types import Task
from marft.config.settings import Fraction, Names, NonEmptyString, NonNegativeCount, PlainTable, did_you_mean
from marft.envs.scripted_policy import PolicyInput
from marft_envs.generated import GeneratedEnvironment, GeneratedTask
from marft_envs.textarena import package
from marft_envs.textarena.games import GameRules, Match
from marft_envs.textarena.hints import Hints
from marft_envs.textarena.kuhn import Kuhn
from marft_envs.textarena.kuhn_value import compute_exploitability, estimate_strategy
from marft_envs.textarena.nim import Nim
from marft_envs.textarena.session import Opponent, SideAssignment, TextArenaSession

BUILT_IN_GAMES: Mapping[str, type[GameRules]] = {"hints": Hints, "kuhn": Kuhn, "nim": Nim}
AGENT_OPPONENTS = ("self", "frozen", "pool")  # opponents played by agents in the team


class TextArena(GeneratedEnvironment):
    """Text games: the built-in games ``hints``, ``kuhn`` and ``nim``, and TextArena's games by id.

    The starting side is drawn for each task. All attempts at a task start from the same side.
    """

    stream: ClassVar[str] = "TextArena"
    controls_turns: ClassVar[bool] = True
    game: NonEmptyString = "kuhn"  # hints, kuhn, nim, or a TextArena id such as ConnectFour-v0
    params: PlainTable = {}  # parameters of the game
    # sides, each a list of roles for one player; the last role moves, and the roles before it advise
    seats: Annotated[tuple[Names, ...], Strict(False), Field(min_length=1, max_length=16)] = (("north",), ("south",))
    # opponent of the first side; self: all sides learn; frozen, pool: sides with frozen policies, or with past versions
    # of the learner; random, perfect: a scripted player
    opponent: Literal["self", "frozen", "pool", "random", "perfect"] = "self"
    opponent_skill: Fraction = 1.0  # fraction of well-played moves of a perfect opponent; the others are random
    # side with the first move: drawn for each task, or always the first side
    first_move: Literal["alternate", "first"] = "alternate"
    # treat a TextArena game as cooperative: all players earn the same, and the team earns it once
    cooperative: bool = False
    max_turns: NonNegativeCount = 0  # moves after which a match is a draw; 0: only the game's own limit
    data: str = ""  # folder of word lists for TextArena games that need them (nltk_data)

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
            ValueError: the name has no version suffix, but is not a built-in game.
        """
        if self._built_in is None and "-" not in self.game:
            hint = did_you_mean(self.game, BUILT_IN_GAMES)
            raise ValueError(f"there is no game {self.game!r}{hint}; those of TextArena end in a version, as Nim-v0")
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
        for role in seated_roles:
            if role not in roles:
                yield f"environment.seats: no agent is called {role!r}{did_you_mean(role, roles)}"
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
        shift = (
            random.randrange(self._player_count) if self.first_move == "alternate" and not self.is_cooperative else 0
        )
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
