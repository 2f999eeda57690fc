"""Multiplayer text games: cooperative, in self-play, against other agents, or against a scripted player."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property
from random import Random
from typing import Annotated, ClassVar, Literal

from pydantic import Field, Strict, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from marft.common.types import Task
from marft.config.settings import CountOrNone, Filled, Fraction, Names, Plain, did_you_mean
from marft.envs.scripts import Cue
from marft_envs.drawn import Drawing, Drawn
from marft_envs.textarena import package
from marft_envs.textarena.games import Match, Rules
from marft_envs.textarena.hints import Hints
from marft_envs.textarena.kuhn import Kuhn
from marft_envs.textarena.kuhn_value import exploitability, strategy_of
from marft_envs.textarena.nim import Nim
from marft_envs.textarena.session import GameSession, Opponent, Seating

OWN: Mapping[str, type[Rules]] = {"hints": Hints, "kuhn": Kuhn, "nim": Nim}
AGENTS = ("self", "frozen", "pool")  # opponents played by agents in the team


class TextArena(Drawn):
    """Text games: the built-in games ``hints``, ``kuhn`` and ``nim``, and TextArena's games by id.

    The starting side is drawn for each task. All attempts at a task start from the same side.
    """

    stream: ClassVar[str] = "TextArena"
    says_whose_turn: ClassVar[bool] = True
    game: Filled = "kuhn"  # hints, kuhn, nim, or a TextArena id such as ConnectFour-v0
    params: Plain = {}  # parameters of the game
    # sides, each a list of roles for one player; the last role moves, and the roles before it advise
    seats: Annotated[tuple[Names, ...], Strict(False), Field(min_length=1, max_length=16)] = (("north",), ("south",))
    # opponent of the first side; self: all sides learn; frozen, pool: sides with frozen policies, or with past versions
    # of the learner; random, perfect: a scripted player
    opponent: Literal["self", "frozen", "pool", "random", "perfect"] = "self"
    opponent_skill: Fraction = 1.0  # fraction of well-played moves of a perfect opponent; the others are random
    # side with the first move: drawn for each task, or always the first side
    begins: Literal["alternate", "first"] = "alternate"
    # treat a TextArena game as cooperative: all players earn the same, and the team earns it once
    cooperative: bool = False
    max_turns: CountOrNone = 0  # moves after which a match is a draw; 0: only the game's own limit
    data: str = ""  # folder of word lists for TextArena games that need them (nltk_data)

    @model_validator(mode="after")
    def _fits(self) -> TextArena:
        for problem in self._misfits():
            raise PydanticCustomError("game", "{problem}", {"problem": problem})
        return self

    def _misfits(self) -> Iterable[str]:
        empty = [side for side in self.seats if not side]
        roles = [role for side in self.seats for role in side]
        twice = next((role for role in roles if roles.count(role) > 1), "")
        if empty:
            yield "seats: a side has no role; name who plays it, or leave the side out"
        if twice:
            yield f"seats: {twice!r} has two seats; every role plays one player"
        if self.opponent in ("frozen", "pool") and len(self.seats) < 2:
            yield f"opponent: {self.opponent!r} is a side of its own; add its roles to seats"
        if self.opponent not in AGENTS and len(self.seats) > 1:
            yield f"opponent: {self.opponent!r} is no agent, so seats has one side alone; remove the others"
        if self.opponent not in AGENTS and self._own is None:
            yield f"opponent: TextArena lists no moves, so {self.opponent!r} cannot play {self.game}; use 'frozen'"
        try:
            players = self._players
            rules = self.rules
            if rules is None:
                package.check(self.game, self.params, players, self.data)
        except ValidationError as error:
            yield from (".".join(map(str, ("params", *each["loc"]))) + f": {each['msg']}" for each in error.errors())
            return
        except ValueError as error:
            yield str(error)
            return
        if rules and players != rules.players:
            yield f"seats: {self.game} is for {rules.players} players, and {players} would play; name a side for each"
        if self.together and self.opponent != "self":
            yield f"opponent: {self.game} is played together, so nobody plays against it; set opponent = 'self'"

    @property
    def _own(self) -> type[Rules] | None:
        """Rules class for a built-in game; None for a TextArena game."""
        return OWN.get(self.game)

    @cached_property
    def rules(self) -> Rules | None:
        """Rules for a built-in game; None for a TextArena game.

        Raises:
            ValueError: the name has no version suffix, but is not a built-in game.
        """
        if self._own is None and "-" not in self.game:
            hint = did_you_mean(self.game, OWN)
            raise ValueError(f"there is no game {self.game!r}{hint}; those of TextArena end in a version, as Nim-v0")
        return self._own.model_validate(self.params) if self._own else None

    @property
    def _players(self) -> int:
        return len(self.seats) + (self.opponent not in AGENTS)

    @property
    def together(self) -> bool:
        """True if all players earn the same."""
        return self.rules.cooperative if self.rules else self.cooperative

    @property
    def carries_words(self) -> bool:  # type: ignore[override]
        """True if the game itself passes the agents' words on, as in ``hints``."""
        return self.game == "hints"

    @property
    def opposed(self) -> tuple[tuple[str, ...], ...]:
        """Learning sides in competition with each other."""
        alone = self.together or self.opponent != "self" or len(self.seats) == 1
        return () if alone else self.seats

    @property
    def against(self) -> tuple[str, ...]:
        """Roles for opponents without learning."""
        return tuple(role for side in self.seats[1:] for role in side) if self.opponent in ("frozen", "pool") else ()

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield an error for each role without an agent, and for each agent without a side."""
        seated = [role for side in self.seats for role in side]
        for role in seated:
            if role not in roles:
                yield f"environment.seats: no agent is called {role!r}{did_you_mean(role, roles)}"
        for role in roles:
            if role not in seated:
                yield f"environment.seats: {role!r} has no seat, and would never act; give it one or remove the agent"

    def draw(self, random: Random) -> Drawing:
        """Generate a start position, and each side's player number."""
        if self.rules:
            content, start = self.rules.draw(random)
        else:
            seed = random.getrandbits(31)
            content, start = f"{self.game} {seed}", {"seed": seed}
        players = list(range(self._players))
        shift = random.randrange(self._players) if self.begins == "alternate" and not self.together else 0
        players = players[shift:] + players[:shift]
        begins = next((" and ".join(s) for s, player in zip(self.seats, players, strict=False) if player == 0), "")
        prompt = f"A match of {self.game}{f', which {begins} begins' if begins else ''}."
        return Drawing(content, prompt, {"start": start, "players": players, "begins": begins})

    def start(self, task: Task, seed: int) -> GameSession:
        """Start a match from the task's start position.

        Randomness in the game comes from the task, so attempts at a task differ only in the moves of agents and
        opponents.
        """
        players = tuple(task.data["players"])[: len(self.seats)]
        seating = Seating(self.seats, players, shared=not self.opposed, cooperative=self.together)
        match = self._match(task)
        return GameSession(match, seating, Random(seed), self.rules, self._opponent(), self.max_turns)

    def _match(self, task: Task) -> Match:
        start = task.data["start"]
        if self.rules:
            return self.rules.begin(start)
        return package.Played(self.game, self.params, self._players, int(start["seed"]), self.data)

    def _opponent(self) -> Opponent | None:
        rules = self.rules
        if rules is None or self.opponent in AGENTS:
            return None
        skill = self.opponent_skill if self.opponent == "perfect" else 0.0

        def move(match: Match, random: Random) -> str:
            """Return the scripted player's move."""
            return played(rules, match.shown(match.mover), match.options(), random, skill)

        return move

    def exploitability(self, decisions: Iterable[tuple[str, Sequence[float]]]) -> float | None:
        """Return a strategy's exploitability in Kuhn poker; None for another game or without decisions.

        It is the best opponent's advantage over its fair share.

        Args:
            decisions: for each decision, the observation and the probability of each option.
        """
        if self.game != "kuhn":
            return None
        strategy = strategy_of((shown, chances[1]) for shown, chances in decisions)
        return exploitability(strategy) if strategy else None

    def script(self, skill: float = 1.0) -> Callable[[Cue], str] | None:
        """Return a scripted policy for a built-in game, which plays perfectly with probability ``skill``, otherwise at
        random.

        TextArena's games have none.
        """
        rules = self.rules
        return (lambda cue: played(rules, cue.shown, cue.options, cue.random, skill)) if rules else None

    @classmethod
    def known_values(cls) -> Mapping[str, Sequence[str]]:
        """Return the built-in games; TextArena's documentation lists the others."""
        return {"game": sorted(OWN)}


def played(rules: Rules, shown: str, options: Sequence[str], random: Random, skill: float) -> str:
    """Return a perfect player's move with probability ``skill``, otherwise a random move."""
    return rules.perfect(shown, options, random) if random.random() < skill else random.choice(list(options))
