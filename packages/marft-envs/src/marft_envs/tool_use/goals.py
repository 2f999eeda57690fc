"""User goals with known facts and reference calls, and generation of tasks from goals."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from random import Random
from typing import Any

from marft_envs.tool_use.slots import names_all
from marft_envs.tool_use.tables import Base, Tables
from marft_envs.tool_use.toolbox import run

Calls = list[list[Any]]  # each a tool's name and its arguments
ATTEMPTS = 200  # maximum draws until a generated database supports the goals


@dataclass(frozen=True, slots=True)
class Goal:
    """Single request from a user.

    Args:
        aim: short description of the goal, with every known fact.
        says: the user's statement of the goal, without withheld facts.
        facts: known facts by slot (``order``, ``reason``, …).
        withheld: slots that the user states only if asked.
        keys: words that an offer or a report must contain to refer to this goal.
        reads: calls that look up the necessary information.
        writes: calls that fulfill the goal; empty if the rules forbid it, or for a question.
        outputs: texts that the user must receive.
        offer: example of a request for the user's agreement; "" if no agreement is needed.
        report: example of the final answer: the result, the reason for a refusal, or the requested information.
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
    """Identity facts for a user, with slots that the service must ask for, and lookup calls."""

    facts: Mapping[str, str] = field(default_factory=dict)
    needs: Sequence[str] = field(default_factory=list)
    reads: Calls = field(default_factory=list)
    says: str = ""  # identity stated in the first message; "": stated if asked


@dataclass(slots=True)
class Draft:
    """Random state for drawing goals: a database, its current user, and records already in use."""

    random: Random
    base: Base
    user: Mapping[str, Any]
    volunteers: float  # probability that the user states a fact without being asked
    taken: set[str] = field(default_factory=set)

    def told(self) -> bool:
        """Draw: True if the user states a fact without being asked."""
        return self.random.random() < self.volunteers

    def one(self, table: str, *statuses: str) -> Mapping[str, Any] | None:
        """Draw an unused record from a user's table and mark it as used; None if no record fits.

        Args:
            table: name of the user's table.
            statuses: accepted statuses; empty accepts every status.
        """
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
    """Service world: tools, databases, goals and rules.

    Args:
        toolbox: class with the tool methods.
        tables: generator of a database from a seed.
        makers: generators of goals; each returns None if the database does not support the goal.
        identity: builder of the user's identity; its flag is True if the user states it in the first message.
        policy: rules shown to agents.
    """

    toolbox: type
    tables: Callable[[int], Base]
    makers: Sequence[Maker]
    identity: Callable[[Mapping[str, Any], bool], Identity]
    policy: str


def draw_task(random: Random, world: World, goals: int, volunteers: float, together: float) -> dict[str, Any]:
    """Generate the data for a task with ``goals`` goals.

    Args:
        random: source of randomness.
        world: world of the task.
        goals: number of goals.
        volunteers: probability that the user states a fact without being asked.
        together: probability that a goal is stated together with the previous goal.
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
    """Return the minimum number of steps for a task.

    Each batch of goals needs up to three steps: ask for missing facts, offer, and write. A question or a forbidden
    request needs no write step.
    """
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
    """Return True if each goal's writes change the database without breaking a rule, in sequence."""
    tables = Tables(base)
    toolbox = world.toolbox(tables)
    for goal in goals:
        before = tables.digest()
        run(toolbox, goal.writes)
        if bool(goal.writes) != (tables.digest() != before) or toolbox.broken:
            return False
    return True
