"""Organizations: the order of actions and the visibility between agents, each a few lines of ``asyncio``."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Iterable, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, ClassVar, Literal

from pydantic import Field, PrivateAttr, Strict, field_validator
from pydantic_core import PydanticCustomError

from marft.agents.answers import find_answer, graded_text
from marft.common.types import Action, JointAction, Observation, Task
from marft.config.interfaces.organization import AgentHandle, Agents, MessageOverride, Organization
from marft.config.settings import Names, SmallCount, did_you_mean

Neighbors = dict[str, Annotated[tuple[str, ...], Strict(False)]]
_ITEM = re.compile(r"^\s*(?:\d+[.):]|[-*•])\s+(.+)$", re.MULTILINE)
View = Literal["nothing", "last", "all"]
STOP = "stop"


async def gather_actions(*calls: Awaitable[Action]) -> list[Action]:
    """Run requests concurrently and return the actions in request order; if one fails, cancel the others."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    finally:
        for task in tasks:
            task.cancel()


def remove_roles(sees: Mapping[str, Sequence[str]], removed: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the visible roles after the removal of some; a removed role's sources take its place.

    >>> remove_roles({"b": ("a",), "c": ("b",)}, ["b"])
    {'c': ('a',)}
    """
    visible = {role: tuple(seen) for role, seen in sees.items()}
    for role in removed:
        through = visible.pop(role, ())
        for agent, seen in visible.items():
            closed = [source for seen_role in seen for source in (through if seen_role == role else (seen_role,))]
            visible[agent] = tuple(dict.fromkeys(source for source in closed if source not in (agent, role)))
    return visible


def unknown_roles(field: str, named: Iterable[str], roles: Sequence[str]) -> Iterator[str]:
    """Yield a message for each named role that no agent of the team has."""
    for role in named:
        if role not in roles:
            yield f"{field}: no agent is called {role!r}{did_you_mean(role, roles)}"


def majority_vote(actions: Sequence[Action]) -> Action:
    """Return the first action with the most frequent answer. Actions without an answer do not vote."""
    answers = [find_answer(graded_text(action)) for action in actions]
    counts = Counter(filter(None, answers))
    return actions[answers.index(counts.most_common(1)[0][0])] if counts else actions[0]


def answer_agent(agents: Agents) -> AgentHandle:
    """Return the last agent with an answering profile."""
    return next(handle for handle in reversed(list(agents)) if handle.profile.answers)


class Chain(Organization):
    """Every agent acts once and sees the actions before its own.

    ::

        observation ──▶ planner ──▶ coder ──▶ tester ──▶ answer
              └────────────┴──────────┴─────────┘

    With ``visible = "previous"``, an agent sees only its predecessor. A chain of one is a single agent.
    """

    single_action_each: ClassVar[bool] = True  # every agent acts once per step
    acts_in_sequence: ClassVar[bool] = True
    visible: Literal["all", "previous"] = Field(
        default="all", description="visible actions: every earlier action, or only the previous action"
    )

    def answer_only_role(self, candidates: Sequence[str]) -> str:
        """Return the only answering role, or "" with several."""
        return candidates[0] if len(candidates) == 1 else ""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        actions: list[Action] = []
        for agent in agents:
            actions.append(await agent(observation, sees=actions if self.visible == "all" else actions[-1:]))
        return JointAction()


class Parallel(Organization):
    """Every agent acts concurrently on the observation alone: D = 0, the DEC-POMDP.

    ::

        observation ─┬─▶ solver_1 ─┐
                     ├─▶ solver_2 ─┼─▶ answer
                     └─▶ solver_3 ─┘

    ``answer = "last"`` uses the last answering agent's answer, ``"vote"`` the most frequent answer.
    """

    single_action_each: ClassVar[bool] = True  # every agent acts once per step
    no_step_messages: ClassVar[bool] = True
    answer: Literal["last", "vote"] = Field(
        default="last", description="team answer: of the last answering agent, or the most frequent"
    )

    def answer_only_role(self, candidates: Sequence[str]) -> str:
        """Return the only answering role, or "" with several or with a vote."""
        return candidates[0] if len(candidates) == 1 and self.answer == "last" else ""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        actions = await gather_actions(*(handle(observation) for handle in agents))
        return JointAction(answer=majority_vote(actions) if self.answer == "vote" else None)


class Reflective(Organization):
    """A draft, then ``rounds`` of criticism and revision; the last draft is the answer.

    ::

        observation ──▶ actor ──▶ critic ──▶ reviser ──▶ answer
                                    ▲           │
                                    └── rounds ─┘

    ``reviser`` may be the actor itself.
    """

    ignores_turns: ClassVar[bool] = True
    acts_in_sequence: ClassVar[bool] = True
    actor: str = Field(default="actor", description="role that drafts")
    critic: str = Field(default="critic", description="role that criticizes")
    reviser: str = Field(default="reviser", description="role that revises; may be the actor")
    rounds: SmallCount = Field(default=1, description="rounds of criticism and revision")

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for each unknown role."""
        for field in ("actor", "critic", "reviser"):
            yield from unknown_roles(f"team.{field}", [getattr(self, field)], roles)

    def answer_only_role(self, candidates: Sequence[str]) -> str:  # noqa: ARG002
        """Return the reviser's role for a single revision, or ""."""
        return self.reviser if self.rounds == 1 and self.reviser not in (self.actor, self.critic) else ""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        answer = await agents[self.actor](observation)
        for _ in range(self.rounds):
            critique = await agents[self.critic](observation, sees=[answer])
            answer = await agents[self.reviser](observation, sees=[answer, critique])
        return JointAction(answer=answer)


class Debate(Organization):
    """All agents act concurrently, ``rounds`` times. From the second round on, each agent sees its own action and
    its neighbors' actions from the previous round.

    ::

        round 1    a     b     c            neighbors = "all"
                    ╲ ╱ ╲ ╱ ╲ ╱
        round 2    a     b     c ──▶ vote, or the judge, who sees the last round

    ``neighbors`` is ``"all"``, ``"ring"`` (the previous and the next agent), or a table of neighbors.
    """

    ignores_turns: ClassVar[bool] = True
    rounds: SmallCount = Field(default=2, description="number of rounds")
    neighbors: Literal["all", "ring"] | Neighbors = Field(
        default="all", description="visible agents: everyone, the two neighbors in a ring, or a table of neighbors"
    )
    judge: str = Field(default="", description='role that answers; "": most frequent answer of the last round')

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for each unknown role, and for a judge without debaters."""
        table = self.neighbors if isinstance(self.neighbors, dict) else {}
        debaters = [role for agent, neighbors in table.items() for role in (agent, *neighbors)]
        named = [self.judge, *debaters] if self.judge else debaters
        yield from unknown_roles("team", dict.fromkeys(named), roles)
        if len(roles) - bool(self.judge) < 1:
            yield "team: a judge alone has nobody to listen to; add agents who debate"

    def answer_only_role(self, candidates: Sequence[str]) -> str:  # noqa: ARG002
        """Return the judge's role, or "" without a judge."""
        return self.judge

    def without_agents(self, roles: Sequence[str]) -> Debate:
        """Return the organization without some roles.

        Readers of a removed agent inherit its neighbors. Without the judge, the agents vote.
        """
        neighbors = remove_roles(self.neighbors, roles) if isinstance(self.neighbors, dict) else self.neighbors
        return self.model_copy(update={"neighbors": neighbors, "judge": "" if self.judge in roles else self.judge})

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        debaters = [handle for handle in agents if handle.role != self.judge]
        actions: dict[str, Action] = {}
        for _ in range(self.rounds):
            visible = {role: self._visible_roles(role, list(actions)) for role in actions}
            sees = {role: [actions[other] for other in seen if other in actions] for role, seen in visible.items()}
            new_actions = await gather_actions(
                *(handle(observation, sees=sees.get(handle.role, [])) for handle in debaters)
            )
            actions = {handle.role: action for handle, action in zip(debaters, new_actions, strict=True)}
        if self.judge:
            return JointAction(answer=await agents[self.judge](observation, sees=list(actions.values())))
        return JointAction(answer=majority_vote(list(actions.values())))

    def _visible_roles(self, role: str, debaters: Sequence[str]) -> list[str]:
        """Return the roles visible to ``role``, itself first."""
        if isinstance(self.neighbors, dict):
            neighbors: Sequence[str] = self.neighbors.get(role, ())
        elif self.neighbors == "all":
            neighbors = debaters
        else:
            index = debaters.index(role)
            neighbors = [debaters[index - 1], debaters[(index + 1) % len(debaters)]]
        return list(dict.fromkeys([role, *neighbors]))


class MixtureOfAgents(Organization):
    """All agents except the aggregator propose, ``layers`` times, and each layer sees the previous layer. The
    answering agent sees the last layer.

    ::

        layer 1   a   b   c
                  └─┬─┴─┬─┘      each sees all
        layer 2   a   b   c
                  └───┼───┘
                  aggregator ──▶ answer
    """

    ignores_turns: ClassVar[bool] = True
    layers: SmallCount = Field(default=2, description="number of proposal layers")

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for an aggregator without proposers."""
        if len(roles) < 2:
            yield "team: a mixture of agents needs proposers beside the agent that answers"

    def answer_only_role(self, candidates: Sequence[str]) -> str:
        """Return the aggregator's role."""
        return candidates[-1]

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        aggregator = answer_agent(agents)
        proposers = [handle for handle in agents if handle.role != aggregator.role]
        layer: list[Action] = []
        for _ in range(self.layers):
            layer = await gather_actions(*(handle(observation, sees=layer) for handle in proposers))
        return JointAction(answer=await aggregator(observation, sees=layer))


class Graph(Organization):
    """Every agent acts once, after the agents visible to it; agents without a path between them run concurrently.

    ::

        observation ─┬─▶ planner ──┬─▶ coder ──┬─▶ reviewer ──▶ answer
                     └─▶ librarian ┴─▶ tester ─┘

    ``visible`` lists the agents visible to each agent: ``{ coder = ["planner", "librarian"], reviewer = ["coder",
    "tester"] }``. An agent without an entry sees only the observation.
    """

    single_action_each: ClassVar[bool] = True  # every agent acts once per step
    visible: dict[str, Annotated[tuple[str, ...], Strict(False)]] = Field(description="visible roles, by role")

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for each unknown role, and for a cycle."""
        named = [role for agent, seen in self.visible.items() for role in (agent, *seen)]
        yield from unknown_roles("team.visible", named, roles)
        try:
            TopologicalSorter(self.visible).prepare()
        except CycleError as error:
            yield f"team.visible: {' → '.join(reversed(error.args[1]))} is a circle, so nobody could begin"

    def answer_only_role(self, candidates: Sequence[str]) -> str:
        """Return the only answering role, or "" with several."""
        return candidates[0] if len(candidates) == 1 else ""

    def without_agents(self, roles: Sequence[str]) -> Graph:
        """Return the organization without some roles; readers of a removed agent inherit its sources."""
        return self.model_copy(update={"visible": remove_roles(self.visible, roles)})

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        tasks: dict[str, asyncio.Task[Action]] = {}

        async def request_action(handle: AgentHandle) -> Action:
            """Request one agent's action after its sources' actions."""
            seen = [await tasks[role] for role in visible[handle.role]]
            return await handle(observation, sees=seen)

        visible = {handle.role: self.visible.get(handle.role, ()) for handle in agents}
        for role in TopologicalSorter(visible).static_order():
            tasks[role] = asyncio.ensure_future(request_action(agents[role]))
        await gather_actions(*tasks.values())
        return JointAction()


class Hierarchical(Organization):
    """A planner's list has one item per subtask, and each item goes to a worker. A worker sees only its item. The
    workers act concurrently; with more items than workers, the items are distributed in turn. The answering agent
    sees the plan and all results.

    ::

        observation ──▶ planner ─┬─ 1. … ─▶ worker ─┐
                                 ├─ 2. … ─▶ worker ─┼─▶ writer ──▶ answer
                                 └─ 3. … ─▶ worker ─┘

    A plan without a list is one subtask. Items beyond ``max_subtasks`` are dropped; the planner learns this through its
    credit.
    """

    acts_in_sequence: ClassVar[bool] = True  # except for several workers
    planner: str = Field(default="planner", description="role that writes the list")
    workers: Annotated[Names, Field(min_length=1)] = Field(
        default=("worker",), description="roles that work on the items"
    )
    max_subtasks: SmallCount = Field(default=4, description="maximum items from the list")

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for each unknown role."""
        yield from unknown_roles("team", (self.planner, *self.workers), roles)

    def answer_only_role(self, candidates: Sequence[str]) -> str:
        """Return the role for combining the results, or "" if this role also plans or works."""
        return "" if candidates[-1] in (self.planner, *self.workers) else candidates[-1]

    def without_agents(self, roles: Sequence[str]) -> Hierarchical:
        """Return the organization without some roles; the remaining workers take all items."""
        return self.model_copy(update={"workers": tuple(role for role in self.workers if role not in roles)})

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        plan = await agents[self.planner](observation)
        parts = parse_subtasks(plan.message)[: self.max_subtasks]
        results = await gather_actions(
            *(
                agents[self.workers[number % len(self.workers)]](observation, sees=[MessageOverride(plan, part)])
                for number, part in enumerate(parts)
            )
        )
        return JointAction(answer=await answer_agent(agents)(observation, sees=[plan, *results]))


def parse_subtasks(text: str) -> list[str]:
    """Return the items of a list, or the whole text.

    >>> parse_subtasks("Plan:\\n1. add\\n2) check")
    ['add', 'check']
    >>> parse_subtasks("just add")
    ['just add']
    """
    return [item.strip() for item in _ITEM.findall(text)] or [text.strip()]


class Orchestrated(Organization):
    """A router repeatedly chooses another agent by name, until it chooses stop. Its choices are enumerated actions,
    trained by the team's return like any other action.

    ::

        observation ──▶ router ─┬─▶ solver ──┐
                          ▲     ├─▶ checker ─┤
                          │     └─▶ stop ──▶ the last agent's text is the answer
                          └──────────────────┘

    ``views`` lists the possible views of earlier actions for a called agent. With several views, the router chooses
    one as well. After ``max_calls`` calls the step ends in any case. The router can stop only after the first call.
    """

    acts_in_sequence: ClassVar[bool] = True
    router: str = Field(default="router", description="role that chooses")
    views: Annotated[tuple[View, ...], Strict(False), Field(min_length=1)] = Field(
        default=("all",), description="views of earlier actions that a called agent may get"
    )
    max_calls: SmallCount = Field(default=3, description="maximum calls in a step")
    allow_stop: bool = Field(default=True, description="let the router stop earlier")

    @field_validator("views")
    @classmethod
    def _check_views(cls, views: tuple[View, ...]) -> tuple[View, ...]:
        if len(set(views)) < len(views):
            raise PydanticCustomError("views", "names a view twice")
        return views

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a message for a missing router, a router without other agents, or a role named stop."""
        yield from unknown_roles("team.router", [self.router], roles)
        if self.router in roles and len(roles) < 2:
            yield "team: a router alone has nobody to call"
        if STOP in roles:
            yield f"agents.{STOP}: that is what the router says to end the step; choose another role"

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Run one step."""
        calls = {
            role if len(self.views) == 1 else f"{role}, seeing {view}": (role, view)
            for role in (handle.role for handle in agents if handle.role != self.router)
            for view in self.views
        }
        actions: list[Action] = []
        while len(actions) < self.max_calls:
            options = [*calls, *([STOP] if actions and self.allow_stop else [])]
            chosen = options[0]  # with a single option, no request is needed
            if len(options) > 1:
                chosen = (await agents[self.router].choose(observation, options, sees=actions)).text
            if chosen == STOP:
                break
            role, view = calls[chosen]
            visible = {"nothing": [], "last": actions[-1:], "all": actions}[view]
            actions.append(await agents[role](observation, sees=[*visible]))
        return JointAction(answer=actions[-1])


class Turns(Organization):
    """The environment names the agents to act (``Observation.turn``) and their options (``Observation.options``).
    Without a turn, all agents act. Without options, agents write.

    ::

        step 0   observation ──▶ north
        step 1   observation ─┬▶ south
                              └▶ west

    ``visible`` selects the visible actions of other agents: the actions in the last step, all actions since the
    agent's own last action, or none. With none, only the environment informs the agents. Agents that act one after
    another in a step also see the earlier actions of that step.
    """

    order: Literal["simultaneous", "sequential"] = Field(
        default="simultaneous", description="order of the agents in a step"
    )
    visible: Literal["none", "last", "since_own_action"] = Field(
        default="none",
        description="visible actions of other agents: none, the last step's, or every action since the agent's own",
    )

    _actions: list[Action] = PrivateAttr(default_factory=list)  # actions of this episode, in request order
    _last_actions: list[Action] = PrivateAttr(default_factory=list)  # actions of the previous step
    # by role: number of actions before and in the step of its last action
    _seen_counts: dict[str, int] = PrivateAttr(default_factory=dict)

    def open(self, task: Task, seed: int) -> Turns:  # noqa: ARG002  no randomness
        """Return a copy with an empty record for one episode."""
        return Turns(order=self.order, visible=self.visible)

    def close(self) -> None:
        """Do nothing: no resources are open."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Request actions from the agents named by the environment."""
        handles = [agents[role] for role in observation.turn] or list(agents)
        visible = [self._visible_actions(handle.role) for handle in handles]
        if self.order == "simultaneous":
            actions = await gather_actions(
                *(request_action(handle, observation, seen) for handle, seen in zip(handles, visible, strict=True))
            )
        else:
            actions = []
            for handle, seen in zip(handles, visible, strict=True):
                actions.append(await request_action(handle, observation, [*seen, *actions]))
        self._actions += actions
        self._last_actions = actions
        self._seen_counts |= {handle.role: len(self._actions) for handle in handles}
        return JointAction()

    def _visible_actions(self, role: str) -> list[Action]:
        """Return the visible actions of earlier steps."""
        since = self._actions[self._seen_counts.get(role, 0) :]
        visible = {"none": [], "last": self._last_actions, "since_own_action": since}[self.visible]
        return [action for action in visible if action.agent != role]


async def request_action(handle: AgentHandle, observation: Observation, sees: Sequence[Action]) -> Action:
    """Return an agent's action: a choice if the environment gives it options, else text."""
    options = observation.options.get(handle.role)
    return await (handle.choose(observation, options, sees) if options else handle(observation, sees))
