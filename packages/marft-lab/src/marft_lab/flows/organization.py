"""Team organization that plays a flow network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.common.seeds import derive_seed
from marft.common.texts import single_line, truncate
from marft.common.types import Action, Episode, JointAction, Observation, Task
from marft.config.interfaces.organization import Agents, Organization
from marft.config.paths import resolve_recipe_path
from marft.config.plugins import FunctionPath
from marft.config.settings import NonEmptyString, NonNegative, SmallCount, did_you_mean
from marft_lab.flows.edge_policy import active_nodes, match_context, sample_path
from marft_lab.flows.network import SINK, SOURCE, STOP, FlowNetwork, Node, read_network

MAX_TITLE_CHARS = 80  # maximum characters of a node's example in a router prompt
ROUTER_PROMPT = "You may go on with:"


class Flow(Organization):
    """Path through a saved flow network in every environment step.

    The agent of each node's role acts with the node's instructions and sees earlier actions of the step.

    ::

        source ─▶ plan ─┬─▶ compute ──▶ report ─▶ sink        the last text is the answer
                        └─▶ look up ──▶ convert ─▶ …

    Without a ``router``, the path is sampled from the network's edge probabilities for the most similar context. With a
    ``router``, that agent chooses each edge by the name of the next node. These choices are enumerated actions, and are
    trained.
    """

    acts_in_sequence: ClassVar[bool] = True
    network: NonEmptyString = Field(description="file of the network, from `marft flow grow`")
    embed: FunctionPath = Field(
        default="",
        description=(
            'import path of the function for the network\'s vectors during growth; "": hashed word pieces. For safety, '
            "a network file cannot name code to run."
        ),
    )
    digest: Annotated[str, Field(validate_default=True)] = Field(
        default="",
        description=(
            "digest of the network, set by MARFT on reading the recipe; a run resumes only with the same network"
        ),
    )
    router: str = Field(
        default="", description='role that chooses edges; "": sample from the network\'s edge probabilities'
    )
    max_nodes: SmallCount = Field(default=8, description="maximum nodes of a path")
    temperature: NonNegative = Field(
        default=1.0, description="temperature of the edge probabilities; 0 takes the likeliest edge"
    )
    visible: Literal["all", "last", "none"] = Field(
        default="all", description="earlier actions of the step that a node's agent sees"
    )

    _flow: FlowNetwork | None = PrivateAttr(default=None)
    _task: Task | None = PrivateAttr(default=None)
    _seed: int = PrivateAttr(default=0)
    _step: int = PrivateAttr(default=0)

    @field_validator("network")
    @classmethod
    def _resolve_network(cls, path: str, info: ValidationInfo) -> str:
        resolved = resolve_recipe_path(path, info.context)
        read_network(Path(resolved))
        return resolved

    @field_validator("digest")
    @classmethod
    def _check_digest(cls, digest: str, info: ValidationInfo) -> str:
        if "network" not in info.data:
            return digest  # already rejected
        actual = read_network(Path(info.data["network"])).digest
        if digest not in ("", actual):
            raise PydanticCustomError(
                "flow",
                "the flow network {path} is another one than this was begun with: put that one back, or begin "
                "anew without digest",
                {"path": info.data["network"]},
            )
        return actual

    @model_validator(mode="after")
    def _load_network(self) -> Self:
        network = read_network(Path(self.network))
        if network.embed != self.embed:
            raise PydanticCustomError(
                "embed",
                "the vectors of {network} were made by {its}, and team.embed is {ours}: set it to that, if "
                "you trust that code",
                {"network": self.network, "its": repr(network.embed), "ours": repr(str(self.embed))},
            )
        self._flow = network
        return self

    @property
    def flow(self) -> FlowNetwork:
        """Flow network of this organization."""
        assert self._flow is not None, "it was read with the recipe"
        return self._flow

    def with_network(self, network: FlowNetwork, temperature: float) -> Flow:
        """Return a copy that plays a different network, at a given temperature."""
        copied = self.model_copy(update={"temperature": temperature})
        copied._flow = network
        return copied

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a problem for each node role or router that is not an agent, and for a router with own nodes."""
        for role in dict.fromkeys([*(node.role for node in self.flow.nodes), *filter(None, [self.router])]):
            if role not in roles:
                yield f"team: no agent is called {role!r}{did_you_mean(role, roles)}, and the flow network needs one"
        if any(node.role == self.router for node in self.flow.nodes):
            yield f"team.router: {self.router!r} plays nodes itself; choose another role"

    def open(self, task: Task, seed: int) -> Flow:
        """Return an organization for an episode; the task gives the context, and the seed gives the paths."""
        organization = self.model_copy()
        organization._flow, organization._task, organization._seed, organization._step = self._flow, task, seed, 0
        return organization

    def close(self) -> None:
        """No-op: the organization holds no resources."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Play an environment step along a path; the last action is the answer."""
        assert self._task is not None, "an episode opens one of its own"
        context = match_context(self.flow, self._task.prompt)
        step, self._step = self._step, self._step + 1
        actions = list[Action]()
        if not self.router:
            path = sample_step_path(self.flow, context, self._seed, step, self.max_nodes, self.temperature)
            for name in active_nodes(self.flow, context, path):
                await self._act_node(self.flow.node(name), observation, agents, actions)
            return JointAction(answer=actions[-1])
        current, visited = SOURCE, list[str]()
        while len(actions) < self.max_nodes:
            ends = router_options(self.flow, context, current, visited)
            if not actions and set(ends) <= {SINK}:  # all nodes are skipped, but at least one agent has to act
                ends = list(self.flow.successors(current)[:1])
            current = await self._choose_edge(ends, observation, agents, actions)
            if current == SINK:
                break
            visited.append(current)
            await self._act_node(self.flow.node(current), observation, agents, actions)
        return JointAction(answer=actions[-1])

    async def _act_node(self, node: Node, observation: Observation, agents: Agents, actions: list[Action]) -> None:
        seen = {"none": [], "last": actions[-1:], "all": actions}[self.visible]
        prompted = with_instructions(observation, node.role, node.instructions)
        actions.append(await agents[node.role](prompted, sees=[*seen]))

    async def _choose_edge(
        self, ends: Sequence[str], observation: Observation, agents: Agents, actions: Sequence[Action]
    ) -> str:
        ends = [end for end in ends if end != SINK or actions]  # at least one agent has to act
        if len(ends) < 2:  # a single option needs no request
            return ends[0] if ends else SINK
        options = [STOP if end == SINK else end for end in ends]
        titles = [
            f"{name}: {truncate(single_line(self.flow.node(name).example), MAX_TITLE_CHARS)}"
            for name in ends
            if name != SINK
        ]
        prompted = with_instructions(observation, self.router, "\n".join([ROUTER_PROMPT, *titles]))
        return ends[options.index((await agents[self.router].choose(prompted, options, sees=actions)).text)]


def sample_step_path(
    network: FlowNetwork, context: str, seed: int, step: int, max_nodes: int, temperature: float
) -> tuple[str, ...]:
    """Return the sampled path of a step in an episode with a given seed, with skipped nodes."""
    return sample_path(network, context, max_nodes, temperature, Random(derive_seed(seed, "flow", step)))


def episode_paths(flow: Flow, episode: Episode, seed: int) -> list[tuple[str, ...]]:
    """Return the sampled path per step in an episode, with skipped nodes.

    Args:
        flow: organization that played the episode.
        episode: episode.
        seed: seed of the run.
    """
    context = match_context(flow.flow, episode.task.prompt)
    episode_seed = derive_seed(seed, "organization", episode.stream, episode.task.id, episode.sample)
    steps = len({action.step for action in episode.actions})
    paths = [
        sample_step_path(flow.flow, context, episode_seed, step, flow.max_nodes, flow.temperature)
        for step in range(steps)
    ]
    roles = [flow.flow.node(name).role for path in paths for name in active_nodes(flow.flow, context, path)]
    assert roles == [action.agent for action in episode.actions], "a path is what its seed draws"
    return paths


def router_options(network: FlowNetwork, context: str, node: str, visited: Sequence[str]) -> list[str]:
    """Return the possible next nodes for a router, most frequent first, with skipped nodes replaced by successors."""
    skipped, options, seen = network.skipped_nodes(context), list[str](), {*visited, node}
    pending = list(network.successors(node))
    while pending:
        end = pending.pop(0)
        if end in seen:
            continue
        seen.add(end)
        if end in skipped:
            pending += network.successors(end)
        else:
            options.append(end)
    return options


def with_instructions(observation: Observation, role: str, instructions: str) -> Observation:
    """Return the observation with additional instructions for one role."""
    if not instructions:
        return observation
    view = "\n\n".join(part for part in (observation.views.get(role, ""), instructions) if part)
    return replace(observation, views={**observation.views, role: view})
