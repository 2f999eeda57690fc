"""What a user wants: goals, each with the facts that the user knows and the calls that serve it, and tasks of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from marft_envs.tool_use.slots import names_all
from marft_envs.tool_use.tables import Base, Tables
from marft_envs.tool_use.toolbox import run

Calls = list[list[Any]]  # each a tool's name and its arguments
ATTEMPTS = 200  # at drawing goals that a made-up database allows for


@dataclass(frozen=True, slots=True)
class Goal:
    """One thing that a user wants.

    Args:
        aim: what is wanted, in a few words that name all that is known of it.
        says: how the user puts it, without what is withheld.
        facts: what the user knows of it, by slot (``order``, ``reason``, …).
        withheld: slots that the user tells only when asked.
        keys: what an offer or a report must name to be about this goal.
        reads: calls that find out what is to be known.
        writes: calls that do it; none where it is against the rules, or only a question.
        outputs: texts that the user must be told.
        offer: a good way of asking for the user's agreement; "" where there is nothing to agree to.
        report: a good way of saying that it is done, why it cannot be, or what was asked for.
    """

    aim: str
    says: str
    facts: Mapping[str, str]
    withheld: Sequence[str]
    keys: Sequence[str]
    reads: Calls
    writes: Calls
    outputs: Sequence[str]
    offer: str
    report: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the user is: facts, those that a service must ask for where the user does not say so, how to look it up."""

    facts: Mapping[str, str] = field(default_factory=dict)
    needs: Sequence[str] = field(default_factory=list)
    reads: Calls = field(default_factory=list)
    says: str = ""  # of itself, at once; "": when asked


@dataclass(slots=True)
class Draft:
    """What goals are drawn with: a database, whose it is, and which of its records are taken."""

    random: Random
    base: Base
    user: Mapping[str, Any]
    volunteers: float  # share of the facts that the user tells at once
    taken: set[str] = field(default_factory=set)

    def told(self) -> bool:
        """Whether the user tells a fact at once."""
        return self.random.random() < self.volunteers

    def one(self, table: str, *statuses: str) -> Mapping[str, Any] | None:
        """A record of the user's, of one of these statuses where some are named, that is not taken yet; it is then."""
        ids = [
            one
            for one in self.user[table]
            if one not in self.taken and (not statuses or self.base[table][one]["status"] in statuses)
        ]
        if not ids:
            return None
        chosen = self.random.choice(ids)
        self.taken.add(chosen)
        record: Mapping[str, Any] = self.base[table][chosen]
        return record


Maker = Callable[[Draft], Goal | None]


@dataclass(frozen=True, slots=True)
class World:
    """A kind of service.

    Args:
        toolbox: the class whose methods are its tools.
        tables: a made-up database, from a seed.
        owner: the name of the table of users.
        makers: of goals; each returns None where the database has nothing for it.
        identity: who a user is, given whether the user says so at once.
        policy: its rules, as agents are told.
    """

    toolbox: type
    tables: Callable[[int], Base]
    makers: Sequence[Maker]
    identity: Callable[[Mapping[str, Any], bool], Identity]
    policy: str


def draw_task(random: Random, world: World, goals: int, volunteers: float, together: float) -> dict[str, Any]:
    """The data of a task of so many goals.

    Args:
        volunteers: share of the facts that the user tells at once.
        together: chance that the user says a goal along with the one before.
    """
    for _ in range(ATTEMPTS):
        seed = random.getrandbits(32)
        base = world.tables(seed)
        user = base["users"][random.choice(sorted(base["users"]))]
        draft = Draft(random, base, user, volunteers)
        identity = world.identity(user, draft.told())
        drawn = [goal for _ in range(20 * goals) if (goal := random.choice(world.makers)(draft)) is not None][:goals]
        if len(drawn) == goals and _serves(world, base, drawn):
            break
    else:
        raise AssertionError(f"no database has {goals} goals for one user")
    batches: list[list[int]] = [[0]]
    for index in range(1, goals):
        if random.random() < together:
            batches[-1].append(index)
        else:
            batches.append([index])
    return {
        "database": seed,
        "identity": asdict(identity),
        "goals": [asdict(goal) for goal in drawn],
        "batches": batches,
        "fewest_steps": fewest_steps(identity, drawn, batches),
    }


def fewest_steps(identity: Identity, goals: Sequence[Goal], batches: Sequence[Sequence[int]]) -> int:
    """Steps in which a task can be solved: for each batch one that asks for what the user has not said, one that
    offers, and one that does it; a question, or what is against the rules, is answered at once."""
    steps, heard = 0, identity.says
    for number, batch in enumerate(batches):
        here = [goals[index] for index in batch]
        heard += "".join(f" {goal.says}" for goal in here)
        asked = [identity.facts[slot] for slot in identity.needs] if number == 0 else []
        asked += [goal.facts[slot] for goal in here for slot in goal.withheld]
        unknown = [fact for fact in asked if not names_all(heard, [fact])]
        heard += "".join(f" {fact}" for fact in unknown)
        steps += bool(unknown) + 1 + any(goal.writes for goal in here)
    return steps


def _serves(world: World, base: Base, goals: Sequence[Goal]) -> bool:
    """Whether the calls of every goal change something, also after those before."""
    tables = Tables(base)
    toolbox = world.toolbox(tables)
    for goal in goals:
        before = tables.digest()
        run(toolbox, goal.writes)
        if bool(goal.writes) != (tables.digest() != before) or toolbox.broken:
            return False
    return True
