"""Base classes for plugins of each kind, with class attributes that are read when the recipe is loaded.

A plugin derives from the base class of its kind. An attribute whose name is almost one of these is rejected
(:mod:`marft.config.plugin_specs`), so that a typing error cannot hide a plugin's requirement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, SerializeAsAny

from marft.common.callbacks import Callback
from marft.common.packages import install_command
from marft.common.types import Task
from marft.config.plugins import Plugin, resolver
from marft.config.settings import Positive, SmallCount

MIN_CAPACITY = 16_384  # minimum capacity of a memory in bytes
MAX_TEXT_DIVISOR = 16  # divisor: one text may take at most this fraction of a memory


class EnvironmentPart(Plugin):
    """Base class for environments.

    ``session`` is the class of its sessions, if agents may call session methods that are marked with ``@tool``.
    """

    one_step: ClassVar[bool] = False  # every episode ends after one step
    session: ClassVar[type | None] = None
    reward_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)  # range of an episode's reward, for the team or one agent
    # the environment selects the acting agents (Observation.turn) instead of all in every step
    controls_turns: ClassVar[bool] = False
    # agents choose from options of the environment (Observation.options) instead of writing text
    offers_options: ClassVar[bool] = False
    # the environment relays messages between agents, and may shorten, price or block them
    relays_messages: ClassVar[bool] = False

    @property
    def grades_answers(self) -> bool:
        """True if the environment itself rewards an answer."""
        return True

    @property
    def opposing_sides(self) -> Sequence[Sequence[str]]:
        """Learning sides that play against each other, each a list of roles; () for a cooperative team."""
        return ()

    @property
    def opponent_roles(self) -> Sequence[str]:
        """Roles of opponents that do not learn themselves."""
        return ()

    @property
    def tool_class(self) -> type | None:
        """Class with ``@tool`` methods for agents: the session class, or the class of the session's ``toolbox``."""
        return self.session

    def script(self, skill: float = 1.0) -> Callable[..., object] | None:  # noqa: ARG002
        """Return a scripted policy, which needs no model (:class:`marft.envs.scripted_policy.ScriptedPolicy`); None by
        default.

        Args:
            skill: share of turns that are played well; the others imitate the habits of a weak model.
        """
        return None

    @property
    def episode_limit(self) -> int:
        """Maximum steps in an episode; 0: the run's limit applies."""
        return int(self.one_step)

    def sampling_weight(self, task: Task) -> float:  # noqa: ARG002
        """Return a training task's relative sampling weight: twice as often with 2 as with 1, never with 0."""
        return 1.0


class EnginePart(Plugin):
    """Base class for engines."""

    supports_grammars: ClassVar[bool] = False  # the engine samples under a grammar, and returns the masks
    # the engine has its own copy of the weights, whose outputs differ numerically from the learner's
    separate_weights: ClassVar[bool] = False
    streams_tokens: ClassVar[bool] = False  # the engine calls SamplingParams.on_token with each sampled token


class OrganizationPart(Plugin):
    """Base class for organizations."""

    single_action_each: ClassVar[bool] = False  # every agent acts exactly once per step
    # the organization writes the agents' prompts itself, without the recipe's prompt format
    writes_prompts: ClassVar[bool] = False
    own_timeout: ClassVar[bool] = False  # the organization itself ensures that a step ends, even if no agent responds

    @property
    def grades_answers(self) -> bool:
        """True if the organization itself rewards an answer."""
        return False

    def answer_role(self, candidates: Sequence[str]) -> str:  # noqa: ARG002
        """Return the role whose only action in a step is the answer, so that the answer can be streamed.

        Return "" if the role is not known in advance.

        Args:
            candidates: roles that may answer.
        """
        return ""

    def without_agents(self, roles: Sequence[str]) -> OrganizationPart:  # noqa: ARG002
        """Return the organization without some agents; observers of a removed agent inherit its sources."""
        return self


class CreditPart(Plugin):
    """Base class for credit assignment."""

    needs_critic: ClassVar[bool] = False
    supports_a2po: ClassVar[bool] = False  # supports the correction for policies updated before (A2PO)
    # comparison group of rewards: attempts at the same task, or none
    comparison_group: ClassVar[Literal["task", ""]] = ""
    makes_pairs: ClassVar[bool] = False  # produces comparisons for a pairwise objective
    ranks_own_rewards: ClassVar[bool] = False  # depends on the ranking of attempts by agents' own rewards
    absolute_weights: ClassVar[bool] = False  # advantages are absolute weights and must not be normalized

    @property
    def per_agent(self) -> bool:
        """True if each agent is credited for its own reward instead of the team's."""
        return False

    @property
    def fork_plan(self) -> object | None:
        """Plan for replayed episodes (:class:`marft.rollout.fork_plans.interface.ForkPlan`); None without forks."""
        return None


class ObjectivePart(Plugin):
    """Base class for objectives."""

    reads_pairs: ClassVar[bool] = False  # pairwise loss (:mod:`marft.trainer.objectives.pairs`)

    @property
    def clip_width(self) -> float:
        """Clip distance below ratio 1; 0: no clip."""
        return 0.0

    def scaled(self, scale: float) -> Self:  # noqa: ARG002
        """Return the objective with its clip width multiplied by ``scale``."""
        return self


class TeammateWeightPart(Plugin):
    """Base class for loss weights on text by other authors in an agent's turn."""


class SchedulePart(Plugin):
    """Base class for update schedules.

    ``correction`` is the effect of policies that update earlier on those that update later
    (:class:`marft.trainer.interfaces.UpdateSchedule`).
    """

    correction: ClassVar[Literal["", "product", "preceding"]] = ""


class FilterPart(Plugin):
    """Base class for filters on a teacher's episodes before imitation.

    ``reject`` is a pure function of the episodes and of the known recipe data.
    """


class CheckPart(Plugin):
    """Base class for safety checks: forbidden behavior of a team, or behavior that an attack causes.

    ``find_violations`` is a pure function of the team's outputs and tool calls in an episode. It returns one sentence
    per violation.
    """


class ProposerPart(Plugin):
    """Base class for prompt proposers, which write new instructions for an agent.

    ``propose`` is a pure function of its input and of the replies of the policies that it prompts.
    """

    @property
    def prompted_policies(self) -> Sequence[str]:
        """Policies in the recipe that the proposer prompts; () if none."""
        return ()


class MemoryPart(Plugin):
    """Base class for memory systems.

    ``begin(count)`` creates an empty :class:`marft.agents.memories.interface.Memory` of at most ``entry_bytes`` bytes.
    ``count`` returns the number of tokens in a text.
    """

    stores_edits: ClassVar[bool] = False  # written texts are line-by-line edits of the memory's content

    # when new entries are added: immediately, in batches, or before the next read
    construction: Literal["eager", "batched", "lazy"] = "eager"
    batch_size: SmallCount = 8  # entries per batch for construction = "batched"
    # maximum size in bytes, pending entries included; the oldest entries are dropped first
    max_bytes: Annotated[int, Field(ge=MIN_CAPACITY, le=2**30)] = 262_144
    max_working_entries: Annotated[int, Field(ge=1, le=100)] = 4  # maximum entries of kind "working"; the newest stay

    @property
    def entry_bytes(self) -> int:
        """Bytes for built-in entries; the rest of the capacity is for pending entries."""
        return self.max_bytes if self.construction == "eager" else self.max_bytes - self.pending_bytes

    @property
    def pending_bytes(self) -> int:
        """Bytes for pending entries; more pending entries are added early."""
        return self.max_bytes // 4

    @property
    def max_text_bytes(self) -> int:
        """Maximum text length per entry in bytes; longer texts are truncated."""
        return self.max_bytes // MAX_TEXT_DIVISOR


class WorldModelPart(Plugin):
    """Base class for world models.

    ``fit(transitions, seed)`` fits a model to real environment steps. Its ``predict(history, action)`` returns possible
    outcomes.
    """


class CombinerPart(Plugin):
    """Base class for federated aggregators, which compute each site's next adapters.

    ``mixing_weights(sites, counts)`` is a pure function of the sites' names and of each site's count, 0 for absent
    sites. It returns one row of weights per site.
    """

    # quantity to average. products: the adapter updates B·A, projected to the best approximation of their rank.
    # factors: A and B separately
    quantity: Literal["products", "factors"] = "products"

    @property
    def count_unit(self) -> Literal["", "episodes", "tokens"]:
        """Unit of a site's contribution in a round; "": participation only."""
        return ""


class SinkPart(Plugin):
    """Base class for metric loggers.

    ``open`` creates a :class:`marft.runs.loggers.interface.Sink` on the thread that will call it.
    """

    package: ClassVar[str] = ""  # required package
    extra: ClassVar[str] = ""  # extra of MARFT that installs the package; "": install the package by name
    folder: ClassVar[str] = ""  # output folder inside the run's folder

    close_seconds: Positive = 20.0  # maximum wait for pending writes at the end of a run, in seconds

    def install_hint(self) -> str:
        """Return the command that installs what the logger needs; "" where nothing is missing."""
        spec = find_spec(self.package) if self.package else None
        # a spec without origin may be a plain folder of that name
        if not self.package or (spec is not None and spec.origin is not None):
            return ""
        return install_command(self.extra) if self.extra else f"pip install {self.package}"


class CallbackPart(Plugin, Callback):
    """Base class for callbacks in a recipe (``[[callbacks]]``). Its fields are its keys, its methods handle the events.

    A run uses a copy. Keep what changes in private attributes (``pydantic.PrivateAttr``), and return what a resumed run
    needs from ``state_dict``.
    """


EnginePlugin = Annotated[SerializeAsAny[EnginePart], resolver("engines")]
EnvironmentPlugin = Annotated[SerializeAsAny[EnvironmentPart], resolver("environments")]
ChannelPlugin = Annotated[SerializeAsAny[Plugin], resolver("channels")]
OrganizationPlugin = Annotated[SerializeAsAny[OrganizationPart], resolver("organizations")]
FilterPlugin = Annotated[SerializeAsAny[FilterPart], resolver("filters")]
RewardPlugin = Annotated[SerializeAsAny[Plugin], resolver("rewards")]
CheckPlugin = Annotated[SerializeAsAny[CheckPart], resolver("checks")]
CombinerPlugin = Annotated[SerializeAsAny[CombinerPart], resolver("combiners")]
CallbackPlugin = Annotated[SerializeAsAny[CallbackPart], resolver("callbacks")]
SinkPlugin = Annotated[SerializeAsAny[SinkPart], resolver("sinks")]
ProposerPlugin = Annotated[SerializeAsAny[ProposerPart], resolver("proposers")]
OptionalMemoryPlugin = Annotated[SerializeAsAny[MemoryPart] | None, resolver("memories", optional=True)]
MemoryPlugin = Annotated[SerializeAsAny[MemoryPart], resolver("memories")]
WorldModelPlugin = Annotated[SerializeAsAny[WorldModelPart], resolver("world_models")]
ToolPlugin = Annotated[SerializeAsAny[Plugin], resolver("tools")]
CreditPlugin = Annotated[SerializeAsAny[CreditPart], resolver("credits")]
ObjectivePlugin = Annotated[SerializeAsAny[ObjectivePart], resolver("objectives")]
TeammateWeightPlugin = Annotated[SerializeAsAny[TeammateWeightPart], resolver("teammate_weights")]
SchedulePlugin = Annotated[SerializeAsAny[SchedulePart], resolver("schedules")]
