"""What parts of each kind say of themselves, beside their methods: class data with a default, read when the recipe is.

A part of a kind derives from the class here. Data under a name that is almost one of these is refused
(:mod:`marft.config.seams`): what a part needs cannot be missed for a typing error.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, SerializeAsAny

from marft.common.types import Task
from marft.config.plugins import Plugin, resolver
from marft.config.settings import Few, Positive

LEAST_CAPACITY = 16_384  # bytes of a memory
LONGEST_SHARE = 16  # what part of a memory one text may take


class EnvironmentPart(Plugin):
    """Base of environments. ``session`` is the class of its sessions, where agents may call methods of theirs that
    are marked with ``@tool``."""

    one_step: ClassVar[bool] = False  # every episode is over after one step
    session: ClassVar[type | None] = None
    reward_range: ClassVar[tuple[float, float]] = (-1.0, 1.0)  # of what an episode earns the team, or one agent
    says_whose_turn: ClassVar[bool] = False  # agents act when it says so (Observation.turn), not all in every step
    offers_options: ClassVar[bool] = False  # agents choose from its options (Observation.options), and do not write
    carries_words: ClassVar[bool] = False  # what agents say reaches others through it: cut, priced or not at all

    @property
    def graded(self) -> bool:
        """Whether the environment itself says what an answer is worth."""
        return True

    @property
    def opposed(self) -> Sequence[Sequence[str]]:
        """Sides that all learn and play against each other, each by its roles; () where all work together."""
        return ()

    @property
    def against(self) -> Sequence[str]:
        """Roles of agents that the others learn to play against, and that do not learn themselves."""
        return ()

    @property
    def offers(self) -> type | None:
        """The class whose methods that are marked with ``@tool`` agents may call: that of its sessions, or of the
        object that they call their ``toolbox``."""
        return self.session

    def script(self, skill: float = 1.0) -> Callable[..., object] | None:  # noqa: ARG002
        """Who plays it without a model (:class:`marft.envs.scripts.Script`); None where nobody does.

        Args:
            skill: the share of turns that are played well, and not by a weak model's habits.
        """
        return None

    @property
    def episode_limit(self) -> int:
        """Steps after which an episode is over, at most; 0: when the run says so."""
        return int(self.one_step)

    def odds(self, task: Task) -> float:  # noqa: ARG002
        """How often a training task is drawn, beside others: one of 2 twice as often as one of 1, one of 0 never."""
        return 1.0


class EnginePart(Plugin):
    """Base of engines."""

    holds_grammars: ClassVar[bool] = False  # it samples what a grammar allows for, and says what that was
    apart: ClassVar[bool] = False  # it has weights of its own, which come out otherwise than the learner's
    tells_tokens: ClassVar[bool] = False  # it calls Sampling.listener with each token that it samples


class OrganizationPart(Plugin):
    """Base of organizations."""

    each_once: ClassVar[bool] = False  # every agent acts once a step
    own_words: ClassVar[bool] = False  # agents are asked in messages of its own: not in those that a recipe makes
    own_timeout: ClassVar[bool] = False  # it sees itself to it that a step ends, however long it waits for no agent

    @property
    def grades(self) -> bool:
        """Whether it says itself what an answer is worth."""
        return False

    def answering_role(self, answering: Sequence[str]) -> str:  # noqa: ARG002
        """Whose only action in a step is its answer, which can be told while it comes about; "" where that is not known
        before.

        Args:
            answering: roles that answer.
        """
        return ""

    def without(self, roles: Sequence[str]) -> OrganizationPart:  # noqa: ARG002
        """The same organization once agents are gone: who saw one of them sees whom that one saw."""
        return self


class CreditPart(Plugin):
    """Base of credits."""

    needs_critic: ClassVar[bool] = False
    reads_traces: ClassVar[bool] = False  # it knows of policies updated before (A2PO)
    grouped_by: ClassVar[Literal["task", ""]] = ""  # what rewards are compared with: attempts at the same task
    makes_pairs: ClassVar[bool] = False  # it makes comparisons, for an objective that reads them
    ranks_own: ClassVar[bool] = False  # it goes by how agents' own rewards rank attempts
    absolute: ClassVar[bool] = False  # its advantages are weights: over their deviation they would say nothing

    @property
    def by_agent(self) -> bool:
        """Whether an agent is judged by what it earned itself, and not by what all of them earned together."""
        return False

    @property
    def forking(self) -> object | None:
        """How episodes are played again for its sake (:class:`marft.rollout.forking.interface.Forking`)."""
        return None


class ObjectivePart(Plugin):
    """Base of objectives."""

    reads_pairs: ClassVar[bool] = False  # its loss is one of comparisons (:mod:`marft.trainer.objectives.pairs`)

    @property
    def clip_width(self) -> float:
        """How far below 1 a ratio is clipped; 0: it is not."""
        return 0.0

    def scaled(self, scale: float) -> Self:  # noqa: ARG002
        """The objective with its clip ``scale`` as wide."""
        return self


class TeammateWeightPart(Plugin):
    """Base of weights of text that somebody else wrote in an agent's turn."""


class SchedulePart(Plugin):
    """Base of schedules. ``correction`` is what policies that step earlier do to those later
    (:class:`marft.trainer.interfaces.UpdateSchedule`)."""

    correction: ClassVar[Literal["", "product", "preceding"]] = ""


class FilterPart(Plugin):
    """Base of filters: what is left out of the episodes that a teacher has played, before any is imitated. ``refused``
    is a pure function of them and of what is known of the recipe (:mod:`marft_lab.synthesis.candidates`)."""


class CheckPart(Plugin):
    """Base of checks: what a team must not do, or is made to do by an attack. ``found`` is a pure function of what it
    did in an episode (:class:`marft_lab.safety.deeds.Deeds`): a sentence for each time."""


class ProposerPart(Plugin):
    """Base of proposers: where new instructions for an agent come from. ``propose`` is a pure function of what is known
    (:class:`marft_lab.profiles.proposals.Asked`), and of what a policy says that it asks."""

    @property
    def asks(self) -> Sequence[str]:
        """Policies of the recipe that it asks; () where it asks none."""
        return ()


class MemoryPart(Plugin):
    """Base of memory systems. ``begin(count)`` makes an empty :class:`marft.agents.memories.interface.Memory` that
    holds at most ``room`` bytes; ``count`` says how many tokens a text has."""

    edits: ClassVar[bool] = False  # a text that is written says how to change what is there, line by line

    # when what is written is built in: at once, `batch` entries together, or when somebody reads
    construction: Literal["eager", "batched", "lazy"] = "eager"
    batch: Few = 8  # entries that are built in together, where construction is "batched"
    # bytes that it holds, what waits to be built in included; the oldest fall out
    capacity: Annotated[int, Field(ge=LEAST_CAPACITY, le=2**30)] = 262_144
    working: Annotated[int, Field(ge=1, le=100)] = 4  # entries of the kind "working" that are held: the newest

    @property
    def room(self) -> int:
        """Bytes of what is built in; the rest of the capacity is for what waits."""
        return self.capacity if self.construction == "eager" else self.capacity - self.waiting_room

    @property
    def waiting_room(self) -> int:
        """Bytes of what waits: where there are more, it is built in before its time."""
        return self.capacity // 4

    @property
    def longest(self) -> int:
        """Bytes of an entry's text, of which more is cut."""
        return self.capacity // LONGEST_SHARE


class WorldModelPart(Plugin):
    """Base of world models. ``fit(lived, seed)`` makes a model of steps that were lived, which
    ``predict(situation, action)`` says what may come of."""


class CombinerPart(Plugin):
    """Base of combiners: what each site of a federation goes on from. ``mixing(sites, counts)`` is a pure function of
    their names and of how much each has played, 0 where it took no part: a row of weights for each site."""

    # products: what adapters change, B·A, is averaged, and its best approximation of their rank is taken; factors: A
    # and B are averaged each for itself
    of: Literal["products", "factors"] = "products"

    @property
    def counted(self) -> Literal["", "episodes", "tokens"]:
        """What of a site's round is counted; "": that it took part alone."""
        return ""


class SinkPart(Plugin):
    """Base of sinks. ``open`` makes a :class:`marft.runs.loggers.interface.Sink`, on the thread that it is told on."""

    package: ClassVar[str] = ""  # that it needs
    extra: ClassVar[str] = ""  # of MARFT's, which brings the package; "": it is installed by its own name
    folder: ClassVar[str] = ""  # that it writes to, in the run's own

    close_seconds: Positive = 20.0  # that the end of a run waits until everything has arrived, at most

    def missing(self) -> str:
        """What is to be installed for it; "" where all is there."""
        spec = find_spec(self.package) if self.package else None
        if not self.package or (spec is not None and spec.origin is not None):  # else it may be a folder of that name
            return ""
        return f"marft[{self.extra}]" if self.extra else self.package


EnginePlugin = Annotated[SerializeAsAny[EnginePart], resolver("engines")]
EnvironmentPlugin = Annotated[SerializeAsAny[EnvironmentPart], resolver("environments")]
ChannelPlugin = Annotated[SerializeAsAny[Plugin], resolver("channels")]
OrganizationPlugin = Annotated[SerializeAsAny[OrganizationPart], resolver("organizations")]
FilterPlugin = Annotated[SerializeAsAny[FilterPart], resolver("filters")]
RewardPlugin = Annotated[SerializeAsAny[Plugin], resolver("rewards")]
CheckPlugin = Annotated[SerializeAsAny[CheckPart], resolver("checks")]
CombinerPlugin = Annotated[SerializeAsAny[CombinerPart], resolver("combiners")]
SinkPlugin = Annotated[SerializeAsAny[SinkPart], resolver("sinks")]
ProposerPlugin = Annotated[SerializeAsAny[ProposerPart], resolver("proposers")]
MaybeMemoryPlugin = Annotated[SerializeAsAny[MemoryPart] | None, resolver("memories", optional=True)]
MemoryPlugin = Annotated[SerializeAsAny[MemoryPart], resolver("memories")]
WorldModelPlugin = Annotated[SerializeAsAny[WorldModelPart], resolver("world_models")]
ToolPlugin = Annotated[SerializeAsAny[Plugin], resolver("tools")]
CreditPlugin = Annotated[SerializeAsAny[CreditPart], resolver("credits")]
ObjectivePlugin = Annotated[SerializeAsAny[ObjectivePart], resolver("objectives")]
TeammateWeightPlugin = Annotated[SerializeAsAny[TeammateWeightPart], resolver("teammate_weights")]
SchedulePlugin = Annotated[SerializeAsAny[SchedulePart], resolver("schedules")]
