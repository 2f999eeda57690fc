"""Planted world for flow networks: each kind of task needs three of twelve steps, in order.

An agent that does a step may slip, and advice can prevent the slip. Three steps add nothing, and one spoils the result.
The best path is known, so results can be compared with it.
"""

from __future__ import annotations

from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from random import Random

import numpy as np

from marft.agents.agents import Agent, Request, TeamAgents
from marft.agents.game import Attempt
from marft.agents.prompt_messages import build_messages, split_messages
from marft.agents.team import open_organization
from marft.common.seeds import derive_seed
from marft.common.types import (
    Action,
    AgentProfile,
    Choice,
    Episode,
    JointAction,
    Observation,
    Step,
    Task,
    Transition,
)
from marft.config.interfaces.channel import Message
from marft.config.interfaces.environment import Environment, Split
from marft.config.interfaces.organization import Organization
from marft.config.load import parse_recipe
from marft.config.run import RunSettings
from marft.envs.scripted_policy import PolicyInput, ScriptedPolicy
from marft_lab.flows.growth import INSTRUCTION_PREFIX
from marft_lab.flows.network import Node
from marft_lab.prompt_optimization.prompts import AttemptTranscript

EACH_ALONE = ((1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1))  # one kind at a time
NO_IDS, NO_MARKS, NO_LOG_PROBS = np.zeros(0, np.int32), np.zeros(0, np.uint8), np.zeros(0, np.float32)

SEATS = {  # steps by agent
    "analyst": ("plan", "lookup", "compare"),
    "maker": ("compute", "convert", "draft"),
    "writer": ("report", "translate", "guess"),
    "editor": ("restate", "check", "polish"),
}
STEPS = tuple(step for steps in SEATS.values() for step in steps)
SEAT_OF = {step: seat for seat, steps in SEATS.items() for step in steps}
FILLERS, SPOILS = SEATS["editor"], "guess"
NEEDS: Mapping[str, tuple[str, str, str]] = {  # steps that each kind of task needs, in order: the best path
    "sums": ("plan", "compute", "report"),
    "prices": ("lookup", "convert", "report"),
    "letters": ("plan", "draft", "translate"),
    "sizes": ("lookup", "compare", "translate"),
}
PROMPTS = {
    "sums": ("Add up the numbers {a} and {b}.", "Add the numbers {a}, {b} and {a} up."),
    "prices": ("What does the basket {a} cost in euros?", "What would basket {b} cost, in euros?"),
    "letters": ("Write a letter in French to client {a}.", "Write to client {b} a French letter."),
    "sizes": ("Which of the rivers {a} and {b} is longer?", "Which is the longer of rivers {b} and {a}?"),
}
TEXTS = {  # texts of each step; a text contains its step's name and no other
    "plan": ("The plan: first the parts {a}, later the rest.", "A plan of parts: {a} comes first, the rest later."),
    "lookup": ("By lookup in the table, entry {a} was found.", "Found by lookup: the entry {a} of the table."),
    "compare": ("To compare the two: {a} is above {b}.", "When I compare the two, {b} is above {a}."),
    "compute": ("I compute {a} times {b} digit by digit.", "Digit by digit I compute {b} times {a}."),
    "convert": ("Now convert {a} dollars to euros.", "Here I convert to euros: {a} dollars."),
    "draft": ("A draft of the letter, {a} lines long.", "Here is my draft of the letter: {a} lines."),
    "report": ("I report the outcome {a} to the client.", "To the client I report {a} as the outcome."),
    "translate": ("Let me translate line {a} into French.", "Into French I translate lines {a} and {b}."),
    "guess": ("My guess would be {a}, who knows.", "Who knows, a guess: {a}."),
    "restate": ("To restate the question asked: number {a}.", "I restate the question: {a} is asked."),
    "check": ("A check of what came so far: item {a} holds.", "What came so far, a check: item {b} holds."),
    "polish": ("Some polish on style: phrase {a} is smooth.", "With polish the style of phrase {b} is smooth."),
}
ADVICE = {step: f"Mind the trap of {step}." for step in (*SEATS["analyst"], *SEATS["maker"], "report", "translate")}
HURRY = "Hurry up."  # harmful advice
SLIP = "(it slipped)"  # mark of a step that slipped
OFTEN, ADVISED, HURRIED = 0.3, 0.02, 0.6  # probability of a slip: without advice, with advice, with harmful advice
LUCK = 0.5  # probability that a spoiled path succeeds


class Workshop(Environment):
    """Environment whose tasks need three steps in order, without a slip.

    Validation has as many tasks of each kind as skips need at a tolerance of one point. Half of the test tasks have the
    mix of the training tasks, and the rest another mix.
    """

    one_step = True
    count: int = 800  # training tasks, and test tasks
    judges: int = 1280  # validation tasks
    mix: tuple[float, ...] = (0.4, 0.3, 0.2, 0.1)  # shares of the kinds, in order
    other_mix: tuple[float, ...] = (0.1, 0.2, 0.3, 0.4)

    def tasks(self, split: Split) -> list[Task]:
        place = ("train", "validation", "test").index(split)
        mixes = {"train": (self.mix,), "validation": EACH_ALONE, "test": (self.mix, self.other_mix)}[split]
        number = self.judges if split == "validation" else self.count
        numbers = range(place, 3 * number, 3)
        return [_task(number, count % len(mixes), mixes) for count, number in enumerate(numbers)]

    def start(self, task: Task, seed: int) -> WorkshopSession:
        return WorkshopSession(task, seed)


def _task(number: int, which: int, mixes: Sequence[Sequence[float]]) -> Task:
    random = Random(derive_seed(number, "workshop"))
    kind = random.choices(tuple(NEEDS), mixes[which])[0]
    words = {"a": random.randrange(10, 99), "b": random.randrange(10, 99)}
    return Task(f"workshop/{number}", random.choice(PROMPTS[kind]).format(**words), {"kind": kind, "mix": which})


@dataclass(slots=True)
class WorkshopSession:
    task: Task
    seed: int

    async def reset(self) -> Observation:
        return Observation(self.task.prompt)

    async def step(self, actions: JointAction) -> Step:
        said = [action.text for action in actions.actions if action.choice is None]
        solved = solves(self.task.data["kind"], said, Random(derive_seed(self.seed, "luck")).random())
        return Step(Observation("done"), float(solved), terminated=True, success=solved)

    async def close(self) -> None:
        return None


def step_of(text: str) -> str:
    """Return the step that a text performs.

    >>> step_of("By lookup in the table, entry 12 was found.")
    'lookup'
    """
    words = text.lower().replace(":", " ").replace(",", " ").replace(".", " ").split()
    return next(word for word in words if word in STEPS)


def solves(kind: str, said: Sequence[str], luck: float) -> bool:
    """Return True if all needed steps were done in order, without a slip. A spoiled path also needs luck."""
    waiting = list(NEEDS[kind])
    for text in said:
        if waiting and step_of(text) == waiting[0] and SLIP not in text:
            waiting.pop(0)
    spoiled = any(step_of(text) == SPOILS for text in said)
    return not waiting and (not spoiled or luck < LUCK)


def habit(task: Task) -> list[str]:
    """Return the team's steps before there was a network.

    Half of the time, the steps are those of a random kind. A needless step precedes each one, or sometimes a guess.
    """
    random = Random(derive_seed(0, "habit", task.id))
    kind = task.data["kind"] if random.random() < 0.5 else random.choice(tuple(NEEDS))
    fillers = random.sample(FILLERS, 3)
    if random.random() < 0.2:
        fillers[random.randrange(3)] = SPOILS
    return [step for pair in zip(fillers, NEEDS[kind], strict=True) for step in pair]


def say(step: str, told: str, random: Random) -> str:
    """Perform a step with the given advice."""
    text = random.choice(TEXTS[step]).format(a=random.randrange(10, 99), b=random.randrange(10, 99))
    often = HURRIED if HURRY in told else ADVISED if ADVICE.get(step, HURRY) in told else OFTEN
    return f"{text} {SLIP}" if step in ADVICE and random.random() < often else text


def by_habit(cue: PolicyInput) -> str:
    """Act as a team whose router follows the habit of the task."""
    steps = habit(cue.task)
    place = len(split_messages(cue.last_message)[1])
    if cue.role == "router":
        return SEAT_OF[steps[place]] if place < len(steps) else "stop"
    return say(steps[place], "", cue.random)


def by_node(cue: PolicyInput) -> str:
    """Act as a team that follows the instructions of its nodes."""
    told = split_messages(cue.last_message.partition(INSTRUCTION_PREFIX)[2])[0]
    return say(step_of(told), told, cue.random)


@dataclass(frozen=True, slots=True)
class Bench:
    """Player of scripted teams without threads and tokens.

    Organizations, sessions, seeds and texts are those of :class:`marft_lab.scripted_team.ScriptedTeam`, but an action
    takes microseconds.
    """

    run: RunSettings
    environment: Workshop
    script: ScriptedPolicy
    roles: tuple[str, ...]

    def __call__(self, organization: Organization, attempts: Sequence[Attempt]) -> list[Episode]:
        return [self._episode(organization, attempt) for attempt in attempts]

    def _episode(self, organization: Organization, attempt: Attempt) -> Episode:
        names = attempt.stream, attempt.task.id, attempt.sample
        own = open_organization(organization, attempt.task, derive_seed(self.run.seed, "organization", *names))
        session = self.environment.start(attempt.task, derive_seed(self.run.seed, "session", *names))
        actions = list[Action]()

        async def ask(agent: Agent, request: Request) -> Action:
            call = sum(action.agent == agent.role for action in actions)
            key = attempt.key(0, agent.role, call)
            seen = [Message(one.key.agent, one.text) for one in request.sees if isinstance(one, Action)]
            chat = build_messages(agent.profile, request.observation.for_role(agent.role), seen)
            random = Random(derive_seed(self.run.seed, *map(str, key)))
            text = str(self.script(PolicyInput(attempt.task, agent.role, 0, chat, random, request.options)))
            chosen = Choice((), 0, NO_LOG_PROBS) if request.options else None
            actions.append(
                Action(
                    key, agent.policy, len(actions), tuple(one.id for one in request.sees if isinstance(one, Action)),
                    NO_IDS, NO_IDS, NO_MARKS, NO_LOG_PROBS, text, "stop", choice=chosen,
                )
            )  # fmt: skip
            return actions[-1]

        async def acted() -> Step:
            await session.reset()
            agents = TeamAgents([Agent(AgentProfile(role), "worker") for role in self.roles], ask)
            joint = await own.act(Observation(attempt.task.prompt), agents)
            return await session.step(JointAction(joint.answer, tuple(actions)))

        step = at_once(acted())
        transition = Transition(Observation(attempt.task.prompt), step.reward)
        return Episode(attempt.task, *names[::2], tuple(actions), "terminated", (transition,), success=step.success)


def at_once(coroutine: Coroutine[object, None, Step]) -> Step:
    """Return the result of a coroutine that never suspends."""
    try:
        coroutine.send(None)
    except StopIteration as ended:
        found: Step = ended.value
        return found
    raise AssertionError("the coroutine suspended")


@dataclass(slots=True)
class PlantedCritic:
    """Critic that sees which step slipped and knows the advice that helps.

    It gives this advice with probability ``skill``. Otherwise the advice is for a random step, or harmful.
    """

    seed: int
    skill: float = 0.5
    asked: int = 0

    def __call__(self, node: Node, failures: Sequence[AttemptTranscript]) -> str:
        self.asked += 1
        random = Random(derive_seed(self.seed, "critic", node.name, self.asked))
        slipped = [
            step_of(text) for one in failures for name, text in one.messages if name == node.name and SLIP in text
        ]
        if not slipped:
            return ""
        advice = ADVICE[slipped[0]] if random.random() < self.skill else random.choice([*ADVICE.values(), HURRY])
        return f"{node.instructions}\n{advice}"


def recipe(seed: int, team: Mapping[str, object], router: bool) -> RunSettings:
    """Return the workshop's team as a recipe: four agents with one policy, and a router if there is no network."""
    agents = [{"role": role, "policy": "worker", "answers": role == "writer"} for role in SEATS]
    return parse_recipe(
        {
            "name": "workshop", "seed": seed, "models": {"base": {"path": "tiny"}},
            "policies": {"worker": {"model": "base"}},
            "agents": [{"role": "router", "policy": "worker"}, *agents] if router else agents,
            "team": team, "environment": {"name": "flow_world:Workshop"}, "algorithm": {"name": "marft"},
        }
    )  # fmt: skip
