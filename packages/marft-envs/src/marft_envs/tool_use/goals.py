"""User goals with known facts and reference calls, and generation of tasks from goals."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import wraps
from random import Random
from typing import Any

from marft_envs.tool_use.toolbox import Database, EpisodeTables, Record, RecordView, apply_calls

Call = list[Any]  # a tool's name and its arguments
Calls = list[Call]
MAX_ATTEMPTS = 200  # maximum draws until a generated database supports the goals


@dataclass(frozen=True, slots=True, kw_only=True)
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
    withheld: Sequence[str] = field(default_factory=list)
    keys: Sequence[str]
    reads: Calls
    writes: Calls = field(default_factory=list)
    outputs: Sequence[str] = field(default_factory=list)
    offer: str = ""
    report: str


@dataclass(frozen=True, slots=True)
class Identity:
    """Identity facts for a user, with slots that the service must ask for, and lookup calls."""

    facts: Mapping[str, str] = field(default_factory=dict)
    needs: Sequence[str] = field(default_factory=list)
    reads: Calls = field(default_factory=list)
    says: str = ""  # identity stated in the first message; "": stated if asked


@dataclass(slots=True)
class GoalSampler:
    """Random state for drawing goals: a database, its current user, and records already in use."""

    random: Random
    database: Database
    user: RecordView
    explicit_rate: float  # probability that the user states a fact without being asked
    used: set[str] = field(default_factory=set)

    def draw_explicit(self) -> bool:
        """Draw: True if the user states a fact without being asked."""
        return self.random.random() < self.explicit_rate

    def draw_hidden(self, *slots: str) -> list[str]:
        """Draw the slots that the user states only if asked."""
        return [slot for slot in slots if not self.draw_explicit()]

    def draw_record(self, table: str, *statuses: str) -> RecordView | None:
        """Draw an unused record from a user's table and mark it as used; None if no record fits.

        Args:
            table: name of the user's table.
            statuses: accepted statuses; empty accepts every status.
        """
        ids = [
            record_id
            for record_id in self.user[table]
            if record_id not in self.used and (not statuses or self.database[table][record_id]["status"] in statuses)
        ]
        if not ids:
            return None
        chosen = self.random.choice(ids)
        self.used.add(chosen)
        record: RecordView = self.database[table][chosen]
        return record


GoalGenerator = Callable[[GoalSampler], Goal | None]


def about_record(
    table: str, *statuses: str
) -> Callable[[Callable[[GoalSampler, RecordView], Goal | None]], GoalGenerator]:
    """Return a decorator that draws an unused record for a goal; without such a record there is no goal.

    Args:
        table: name of the user's table.
        statuses: accepted statuses; empty accepts every status.
    """

    def decorate(make_goal: Callable[[GoalSampler, RecordView], Goal | None]) -> GoalGenerator:
        @wraps(make_goal)
        def draw_goal(sampler: GoalSampler) -> Goal | None:
            record = sampler.draw_record(table, *statuses)
            return None if record is None else make_goal(sampler, record)

        return draw_goal

    return decorate


def make_call(tool: str, /, **arguments: object) -> Call:
    """Return a reference call: the tool's name and its arguments."""
    return [tool, arguments]


@dataclass(frozen=True, slots=True)
class ServiceWorld:
    """Service world: tools, databases, goals and rules.

    Args:
        toolbox: class with the tool methods.
        generate_tables: generator of a database from a seed.
        goal_generators: generators of goals; each returns None if the database does not support the goal.
        build_identity: builder of the user's identity; its flag is True if the user states it in the first message.
        policy: rules shown to agents.
    """

    toolbox: type
    generate_tables: Callable[[int], Database]
    goal_generators: Sequence[GoalGenerator]
    build_identity: Callable[[RecordView, bool], Identity]
    policy: str


def generate_task_data(
    random: Random, world: ServiceWorld, goals: int, explicit_rate: float, together: float
) -> Record:
    """Generate the data for a task with ``goals`` goals.

    Args:
        random: source of randomness.
        world: world of the task.
        goals: number of goals.
        explicit_rate: probability that the user states a fact without being asked.
        together: probability that a goal is stated together with the previous goal.
    """
    for _ in range(MAX_ATTEMPTS):
        seed = random.getrandbits(32)
        database = world.generate_tables(seed)
        user = database["users"][random.choice(sorted(database["users"]))]
        sampler = GoalSampler(random, database, user, explicit_rate)
        identity = world.build_identity(user, sampler.draw_explicit())
        drawn_goals = [
            goal for _ in range(20 * goals) if (goal := random.choice(world.goal_generators)(sampler)) is not None
        ][:goals]
        if len(drawn_goals) == goals and _is_feasible(world, database, drawn_goals):
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
        "goals": [asdict(goal) for goal in drawn_goals],
        "batches": batches,
        "fewest_steps": count_min_steps(identity, drawn_goals, batches),
    }


def count_min_steps(identity: Identity, goals: Sequence[Goal], batches: Sequence[Sequence[int]]) -> int:
    """Return the minimum number of steps for a task.

    Each batch of goals needs up to three steps: ask for missing facts, offer, and write. A question or a forbidden
    request needs no write step.
    """
    steps, user_text = 0, identity.says
    for number, batch in enumerate(batches):
        batch_goals = [goals[index] for index in batch]
        user_text += "".join(f" {goal.says}" for goal in batch_goals)
        needed_facts = [identity.facts[slot] for slot in identity.needs] if number == 0 else []
        needed_facts += [goal.facts[slot] for goal in batch_goals for slot in goal.withheld]
        unknown = [fact for fact in needed_facts if not contains_all(user_text, [fact])]
        user_text += "".join(f" {fact}" for fact in unknown)
        steps += bool(unknown) + 1 + any(goal.writes for goal in batch_goals)
    return steps


def _is_feasible(world: ServiceWorld, database: Database, goals: Sequence[Goal]) -> bool:
    """Return True if each goal's writes change the database without breaking a rule, in sequence."""
    tables = EpisodeTables(database)
    toolbox = world.toolbox(tables)
    for goal in goals:
        before = tables.digest()
        apply_calls(toolbox, goal.writes)
        if bool(goal.writes) != (tables.digest() != before) or toolbox.violations:
            return False
    return True


def contains_all(text: str, keys: Sequence[str]) -> bool:
    """Return True if a text contains every key as whole words; case is ignored.

    >>> contains_all("cancel w12?", ["W12"]), contains_all("cancel w123?", ["W12"])
    (True, False)
    """
    return all(re.search(rf"(?<!\w){re.escape(key.lower())}(?!\w)", text.lower()) for key in keys)
