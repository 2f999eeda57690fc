"""Games of several players as an environment: played together, against oneself, against others, or against chance."""

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
AGENTS = ("self", "frozen", "pool")  # opponents that are agents of the team


class TextArena(Drawn):
    """Text games: ``hints``, ``kuhn`` and ``nim``, which are here, and those of the package TextArena, by id.

    Which side begins alternates from task to task, so that all attempts at a task are played from the same seat.
    """

    stream: ClassVar[str] = "TextArena"
    says_whose_turn: ClassVar[bool] = True
    game: Filled = "kuhn"  # hints, kuhn, nim, or an id of TextArena's, such as ConnectFour-v0
    params: Plain = {}  # of the game
    # sides, each a list of the roles that play one player: the last one moves, those before it advise it
    seats: Annotated[tuple[Names, ...], Strict(False), Field(min_length=1, max_length=16)] = (("north",), ("south",))
    # who plays against the first side: "self": all sides learn; "frozen", "pool": sides whose policies are frozen, or
    # past versions of the learner; "random", "perfect": no agent
    opponent: Literal["self", "frozen", "pool", "random", "perfect"] = "self"
    opponent_skill: Fraction = 1.0  # share of its moves that a perfect opponent makes well; others are random
    begins: Literal["alternate", "first"] = "alternate"  # which side begins: by turns, or always the first
    cooperative: bool = False  # a game of TextArena's is played together: all earn the same, and the team earns it once
    max_turns: CountOrNone = 0  # moves after which a match is a draw; 0: none but the game's own limit
    data: str = ""  # a folder of word lists for the games of TextArena's that need some (nltk_data)

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
        """The rules of a game that is here.

        Raises:
            ValueError: the name looks like one of ours, and is none.
        """
        return OWN.get(self.game)

    @cached_property
    def rules(self) -> Rules | None:
        """Of a game of our own; None of one of the package's."""
        if self._own is None and "-" not in self.game:
            hint = did_you_mean(self.game, OWN)
            raise ValueError(f"there is no game {self.game!r}{hint}; those of TextArena end in a version, as Nim-v0")
        return self._own.model_validate(self.params) if self._own else None

    @property
    def _players(self) -> int:
        return len(self.seats) + (self.opponent not in AGENTS)

    @property
    def together(self) -> bool:
        """Whether all players earn the same."""
        return self.rules.cooperative if self.rules else self.cooperative

    @property
    def carries_words(self) -> bool:  # type: ignore[override]
        """A hint is what the other gets."""
        return self.game == "hints"

    @property
    def opposed(self) -> tuple[tuple[str, ...], ...]:
        """Sides that all learn, and play against each other."""
        alone = self.together or self.opponent != "self" or len(self.seats) == 1
        return () if alone else self.seats

    @property
    def against(self) -> tuple[str, ...]:
        """Roles of opponents that do not learn."""
        return tuple(role for side in self.seats[1:] for role in side) if self.opponent in ("frozen", "pool") else ()

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Seats without an agent, and agents without a seat."""
        seated = [role for side in self.seats for role in side]
        for role in seated:
            if role not in roles:
                yield f"environment.seats: no agent is called {role!r}{did_you_mean(role, roles)}"
        for role in roles:
            if role not in seated:
                yield f"environment.seats: {role!r} has no seat, and would never act; give it one or remove the agent"

    def draw(self, random: Random) -> Drawing:
        """A start, and which player each side is."""
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
        """A match from the task's start. Chance in it is the task's, so that attempts at a task are alike but for what
        agents and opponents do."""
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
            return played(rules, match.shown(match.mover), match.options(), random, skill)

        return move

    def exploitability(self, decisions: Iterable[tuple[str, Sequence[float]]]) -> float | None:
        """How much more than its share the best opponent earns of somebody, at most, where that can be worked out: in
        Kuhn poker.

        Args:
            decisions: what was shown, and the chance of each option.
        """
        if self.game != "kuhn":
            return None
        strategy = strategy_of((shown, chances[1]) for shown, chances in decisions)
        return exploitability(strategy) if strategy else None

    def script(self, skill: float = 1.0) -> Callable[[Cue], str] | None:
        """Plays a game of our own perfectly, or else at random."""
        rules = self.rules
        return (lambda cue: played(rules, cue.shown, cue.options, cue.random, skill)) if rules else None

    @classmethod
    def known_values(cls) -> Mapping[str, Sequence[str]]:
        """Games that are here; those of the package are listed in its own documentation."""
        return {"game": sorted(OWN)}


def played(rules: Rules, shown: str, options: Sequence[str], random: Random, skill: float) -> str:
    """A perfect player's move with probability ``skill``, else any."""
    return rules.perfect(shown, options, random) if random.random() < skill else random.choice(list(options))
