"""Team organization that plays a flow network."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Annotated, Literal, Self

from pydantic import Field, PrivateAttr, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.agents.agents import Agents
from marft.common.seeds import derive_seed
from marft.common.texts import cut, one_line
from marft.common.types import Action, Episode, JointAction, Observation, Task
from marft.config.folders import from_recipe
from marft.config.given import ImportPath
from marft.config.parts import OrganizationPart
from marft.config.plugins import import_path
from marft.config.settings import Few, Filled, NotNegative, did_you_mean
from marft_lab.flows.choosing import context_of, played_of, walk
from marft_lab.flows.network import SINK, SOURCE, STOP, FlowNetwork, Node, read_network

TITLE = 80  # maximum characters of a node's example in a router prompt
ROUTED = "You may go on with:"


class Flow(OrganizationPart):
    """Path through a saved flow network in every environment step.

    The agent of each node's role acts with the node's instructions and sees earlier actions of the step.

    ::

        source ─▶ plan ─┬─▶ compute ──▶ report ─▶ sink        the last text is the answer
                        └─▶ look up ──▶ convert ─▶ …

    Without a ``router``, the path is sampled from the network's edge probabilities for the most similar context. With a
    ``router``, that agent chooses each edge by the name of the next node. These choices are enumerated actions, and are
    trained.
    """

    network: Filled  # file of the network, from `marft flow grow`
    # import path of the function that made the network's vectors during growth, or "" for hashed word pieces; it is
    # repeated here because a network file of unknown origin must not name code to run
    embed: ImportPath = ""
    # digest of the network, filled in when the recipe is read; a run resumes only with the same network
    digest: Annotated[str, Field(validate_default=True)] = ""
    router: str = ""  # role that chooses edges; "" samples from the network's edge probabilities
    most: Few = 8  # maximum nodes of a path
    temperature: NotNegative = 1.0  # temperature of the edge probabilities; 0 takes the likeliest edge
    sees: Literal["all", "last", "nothing"] = "all"  # visible earlier actions of the step for a node's agent

    _flow: FlowNetwork | None = PrivateAttr(default=None)
    _task: Task | None = PrivateAttr(default=None)
    _seed: int = PrivateAttr(default=0)
    _step: int = PrivateAttr(default=0)

    @field_validator("network")
    @classmethod
    def _is_in_the_folder(cls, path: str, info: ValidationInfo) -> str:
        found = from_recipe(path, info.context)
        read_network(Path(found))
        return found

    @field_validator("digest")
    @classmethod
    def _is_the_same(cls, digest: str, info: ValidationInfo) -> str:
        if "network" not in info.data:
            return digest  # already rejected
        found = read_network(Path(info.data["network"])).digest
        if digest not in ("", found):
            raise PydanticCustomError(
                "flow", "the flow network {path} is another one than this was begun with: put that one back, or begin "
                "anew without digest", {"path": info.data["network"]},
            )  # fmt: skip
        return found

    @field_validator("embed")
    @classmethod
    def _is_there(cls, path: str, info: ValidationInfo) -> str:
        if path and not callable(import_path(path, info.context)):
            raise PydanticCustomError("embed", "{path} is no function of texts", {"path": repr(path)})
        return path

    @model_validator(mode="after")
    def _reads(self) -> Self:
        network = read_network(Path(self.network))
        if network.embed != self.embed:
            raise PydanticCustomError(
                "embed", "the vectors of {network} were made by {its}, and team.embed is {ours}: set it to that, if "
                "you trust that code",
                {"network": self.network, "its": repr(network.embed), "ours": repr(str(self.embed))},
            )  # fmt: skip
        self._flow = network
        return self

    @property
    def flow(self) -> FlowNetwork:
        """Flow network of this organization."""
        assert self._flow is not None, "it was read with the recipe"
        return self._flow

    def playing(self, network: FlowNetwork, temperature: float) -> Flow:
        """Return a copy that plays a different network, at a given temperature."""
        other = self.model_copy(update={"temperature": temperature})
        other._flow = network
        return other

    def problems(self, roles: Sequence[str]) -> Iterable[str]:
        """Yield a problem for each node role or router that is not an agent, and for a router with own nodes."""
        for role in dict.fromkeys([*(node.role for node in self.flow.nodes), *filter(None, [self.router])]):
            if role not in roles:
                yield f"team: no agent is called {role!r}{did_you_mean(role, roles)}, and the flow network needs one"
        if any(node.role == self.router for node in self.flow.nodes):
            yield f"team.router: {self.router!r} plays nodes itself; choose another role"

    def opened(self, task: Task, seed: int) -> Flow:
        """Return an organization for an episode; the task gives the context, and the seed gives the paths."""
        mine = self.model_copy()
        mine._flow, mine._task, mine._seed, mine._step = self._flow, task, seed, 0
        return mine

    def close(self) -> None:
        """No-op: the organization holds no resources."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:
        """Play an environment step along a path; the last action is the answer."""
        assert self._task is not None, "an episode opens one of its own"
        context = context_of(self.flow, self._task.prompt)
        step, self._step = self._step, self._step + 1
        done = list[Action]()
        if not self.router:
            path = path_of_step(self.flow, context, self._seed, step, self.most, self.temperature)
            for name in played_of(self.flow, context, path):
                await self._play(self.flow.node(name), observation, agents, done)
            return JointAction(answer=done[-1])
        at, visited = SOURCE, list[str]()
        while len(done) < self.most:
            ends = options_at(self.flow, context, at, visited)
            if not done and set(ends) <= {SINK}:  # all nodes are skipped, but at least one agent has to act
                ends = list(self.flow.after(at)[:1])
            at = await self._chosen(ends, observation, agents, done)
            if at == SINK:
                break
            visited.append(at)
            await self._play(self.flow.node(at), observation, agents, done)
        return JointAction(answer=done[-1])

    async def _play(self, node: Node, observation: Observation, agents: Agents, done: list[Action]) -> None:
        seen = {"nothing": [], "last": done[-1:], "all": done}[self.sees]
        told = instructed(observation, node.role, node.instructions)
        done.append(await agents[node.role](told, sees=[*seen]))

    async def _chosen(
        self, ends: Sequence[str], observation: Observation, agents: Agents, done: Sequence[Action]
    ) -> str:
        ends = [end for end in ends if end != SINK or done]  # at least one agent has to act
        if len(ends) < 2:  # a single option needs no request
            return ends[0] if ends else SINK
        options = [STOP if end == SINK else end for end in ends]
        titles = [f"{name}: {cut(one_line(self.flow.node(name).example), TITLE)}" for name in ends if name != SINK]
        told = instructed(observation, self.router, "\n".join([ROUTED, *titles]))
        return ends[options.index((await agents[self.router].choose(told, options, sees=done)).text)]


def path_of_step(
    network: FlowNetwork, context: str, seed: int, step: int, most: int, temperature: float
) -> tuple[str, ...]:
    """Return the sampled path of a step in an episode with a given seed, with skipped nodes."""
    return walk(network, context, most, temperature, Random(derive_seed(seed, "flow", step)))


def paths_of(flow: Flow, episode: Episode, seed: int) -> list[tuple[str, ...]]:
    """Return the sampled path per step in an episode, with skipped nodes.

    Args:
        flow: organization that played the episode.
        episode: episode.
        seed: seed of the run.
    """
    context = context_of(flow.flow, episode.task.prompt)
    own = derive_seed(seed, "organization", episode.stream, episode.task.id, episode.sample)
    steps = len({action.step for action in episode.actions})
    paths = [path_of_step(flow.flow, context, own, step, flow.most, flow.temperature) for step in range(steps)]
    acted = [flow.flow.node(name).role for path in paths for name in played_of(flow.flow, context, path)]
    assert acted == [action.agent for action in episode.actions], "a path is what its seed draws"
    return paths


def options_at(network: FlowNetwork, context: str, at: str, visited: Sequence[str]) -> list[str]:
    """Return the possible next nodes for a router, most frequent first, with skipped nodes replaced by successors."""
    passed, found, seen = network.passed_by(context), list[str](), {*visited, at}
    waiting = list(network.after(at))
    while waiting:
        end = waiting.pop(0)
        if end in seen:
            continue
        seen.add(end)
        if end in passed:
            waiting += network.after(end)
        else:
            found.append(end)
    return found


def instructed(observation: Observation, role: str, instructions: str) -> Observation:
    """Return the observation with additional instructions for one role."""
    if not instructions:
        return observation
    view = "\n\n".join(part for part in (observation.views.get(role, ""), instructions) if part)
    return replace(observation, views={**observation.views, role: view})
