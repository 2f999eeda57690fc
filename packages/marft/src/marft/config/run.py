"""A whole run: models, policies, agents, team, environment, algorithm, and how long to train."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import ConfigDict, Field, PrivateAttr, Strict, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.config.agents import AgentSettings
from marft.config.algorithm import AlgorithmSettings
from marft.config.consulting import ConsultingSettings, consulting_problems
from marft.config.curriculum import CurriculumSettings
from marft.config.folders import AtHome
from marft.config.guards import GuardSettings
from marft.config.models import (
    ModelSettings,
    PolicySettings,
    placement_problems,
    rank_problems,
    remote_problems,
)
from marft.config.names import Name, RunName
from marft.config.parts import (
    ChannelPlugin,
    EnginePlugin,
    EnvironmentPlugin,
    OrganizationPlugin,
    RewardPlugin,
    SinkPlugin,
    ToolPlugin,
)
from marft.config.placement import cluster_of
from marft.config.pools import members_of, pool_problems
from marft.config.references import reference_problems
from marft.config.sections import AnySection, Section, keyed, section_class, section_names, sections_in
from marft.config.settings import Count, CountOrNone, Few, Filled, Positive, Settings
from marft.config.sides import side_problems
from marft.config.sizes import size_problems
from marft.config.turns import turn_problems

S = TypeVar("S", bound=Section)


class RolloutSettings(Settings):
    """How much experience a training step gathers, and when an environment counts as hanging."""

    tasks_per_step: Count = 8  # different tasks
    samples_per_task: Count = 4  # attempts at each of them
    max_live_episodes: Annotated[int, Field(ge=1, le=100_000)] = 256  # played at the same time
    max_steps: Count = 32  # environment steps of an episode; one that reaches it is truncated
    timeout_seconds: Positive = 60.0  # for each reset and each step of the environment, and each reward term
    processes: Annotated[int, Field(ge=0, le=1024)] = 0  # for environment, tools and reward terms; 0: none but this one
    # versions that a policy may be newer than the one that sampled what it learns from; 0: it is sampled, then learned
    max_policy_lag: Annotated[int, Field(ge=0, le=1000)] = 0
    reuse: Annotated[int, Field(ge=1, le=100)] = 1  # steps that learn from an episode: its own, and those after it
    tries: Few = 3  # processes that may end with one attempt and nothing else in them, before its task is set aside


class TrainingSettings(Settings):
    steps: Count = 100  # each plays, credits and learns once
    tokens_per_micro_batch: Count = 8192  # memory of an update; changes nothing else
    # compute once what rows begin with alike; auto: where that is faster and scores are not compared with others'
    share_prefixes: Literal["auto", "always", "never"] = "auto"
    record_episodes_every: CountOrNone = 1  # steps from one recording to the next; 0 records none
    record_credit: bool = True  # beside recorded episodes, what the learner knew of their actions, in half precision
    show_samples_every: CountOrNone = 0  # steps from one episode that the terminal shows to the next; 0 shows none
    ranks: Annotated[int, Field(ge=1, le=1024)] = 1  # processes that learn together, one a GPU; 1: this one alone
    shard: bool = False  # each rank holds a part of all models, and gathers a layer as it is computed: less memory
    offload_optimizer: bool = False  # moments lie in the host's memory, and come to the device for a step alone
    rank_patience_seconds: Positive = 600.0  # that ranks wait for each other before they are started again

    @model_validator(mode="after")
    def _shards_between_several(self) -> TrainingSettings:
        if self.shard and self.ranks == 1:
            raise PydanticCustomError("shard", "shard: one rank alone holds all there is; set ranks to 2 or more")
        return self


class CheckpointSettings(Settings):
    every: Count = 10  # steps from one checkpoint to the next; the best validated step is saved beside them
    keep_last: Count = 2  # newest checkpoints that stay
    keep_best: bool = True  # the best one stays: by validation accuracy or reward, else by the step's reward


class EvaluationSettings(Settings):
    """Held-out evaluation. ``every`` looks at the validation split while training; ``tasks`` at the test split."""

    tasks: Count = 500  # of the test split, at most
    # temperature 0, and the agents' own
    modes: Annotated[tuple[Literal["greedy", "sampled"], ...], Strict(False), Field(min_length=1)] = (
        "greedy",
        "sampled",
    )
    attempts: Annotated[int, Field(ge=1, le=10_000)] = 1  # at each of them: with several, pass@k, pass^k and avg@k
    kept_every: Count = 256  # episodes that are played, and then kept, together: what stopping an evaluation loses
    every: CountOrNone = 0  # steps between looks at the validation split; 0: none
    validation_tasks: Count = 100  # of the validation split, at most

    @field_validator("modes")
    @classmethod
    def _each_once(cls, modes: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(modes)) < len(modes):
            raise PydanticCustomError("modes", "names a mode twice")
        return modes


class RunSettings(Settings):
    """One recipe, complete. Tables that are no field here are sections, which installed packages add."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, AnySection]

    name: RunName  # the run's folder is output/name; by default the file's name
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0  # of everything random
    output: Annotated[Filled, AtHome] = "runs"  # the folder of runs
    # where paths and modules of the recipe are
    recipe_folder: Annotated[str, Field(pattern=r"^[^\x00]*$"), AtHome] = ""
    device: Filled = "auto"  # auto: cuda where there is a GPU, else cpu
    threads: Annotated[int, Field(ge=0, le=4096)] = 0  # CPU threads of torch; 0: torch's choice
    models: dict[Name, ModelSettings]  # base models by name
    policies: dict[Name, PolicySettings]  # weights by name
    tools: dict[Name, ToolPlugin] = {}  # sources of tools by name
    agents: Annotated[tuple[AgentSettings, ...], Strict(False), Field(min_length=1)]  # the team, in its order
    team: OrganizationPlugin  # the organization: who acts, when, seeing what
    channel: ChannelPlugin  # what agents read of each other
    consulting: ConsultingSettings | None = None  # helpers whom agents may ask while the team learns
    environment: EnvironmentPlugin  # what the team works on
    rewards: Annotated[tuple[RewardPlugin, ...], Strict(False)] = ()  # terms; none: what the environment pays
    curriculum: CurriculumSettings | None = None  # how hard training tasks are, as the team gets better
    algorithm: AlgorithmSettings  # how it learns
    rollout: RolloutSettings = RolloutSettings()  # how much is played in a step
    engine: EnginePlugin  # who samples for policies that are here
    training: TrainingSettings = TrainingSettings()  # how long
    checkpoints: CheckpointSettings = CheckpointSettings()  # what is kept
    evaluation: EvaluationSettings = EvaluationSettings()  # held-out tasks
    guards: GuardSettings = GuardSettings()  # what it watches of itself
    # where metrics go beside metrics.jsonl; []: nowhere
    sinks: Annotated[tuple[SinkPlugin, ...], Strict(False)]
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _fill_in(cls, table: object) -> object:
        if not isinstance(table, dict):
            return table
        table = {
            "team": {"organization": "chain"}, "channel": {"name": "raw"}, "algorithm": {}, "engine": {},
            "sinks": [{"name": "tensorboard"}], **table,
        }  # fmt: skip
        agents = table.get("agents")
        if isinstance(agents, list) and len(agents) == 1 and isinstance(agents[0], dict):
            table["agents"] = [{"answers": True, **agents[0]}]
        if isinstance(table["team"], dict):
            table["team"] = {"organization": "chain", **table["team"]}
        if isinstance(table["engine"], dict):
            table["engine"] = {"kind": "local", **table["engine"]}
        return keyed(table, sections_in(key for key in table if key not in cls.model_fields))

    @classmethod
    def other_keys(cls) -> Iterable[str]:
        return section_names()

    @classmethod
    def inner_table(cls, key: str) -> type[Settings] | None:
        try:
            return section_class(key)
        except ValueError:  # a broken package takes no suggestion away from the others
            return None

    @model_validator(mode="after")
    def _check_references(self) -> RunSettings:
        problems = [
            *reference_problems(self), *remote_problems(self.models, self.policies),
            *rank_problems(self.models, self.policies),
            *placement_problems(self.models, self.training.ranks, self.algorithm.critic.body),
            *size_problems(self), *side_problems(self), *turn_problems(self), *pool_problems(self),
            *consulting_problems(self), *(found for section in self.sections for found in section.problems(self)),
        ]  # fmt: skip
        if problems:
            raise PydanticCustomError("run", "{problems}", {"problems": "\n".join(problems)})
        return self

    @model_validator(mode="after")
    def _correct_what_samples_elsewhere(self) -> RunSettings:
        """Weights that are computed elsewhere come out otherwise, and older ones are others: π_old/μ counts, unless the
        recipe says that it does not. Comparisons may be of whatever anybody sampled."""
        correction = self.algorithm.sampler_correction
        if self.algorithm.objective.reads_pairs:
            return self
        if (self.engine.apart or self.rollout.reuse > 1) and "level" not in correction.model_fields_set:
            level = "token" if self.algorithm.level == "token" else "geometric"
            correction = correction.model_copy(update={"level": level})
            self.__dict__["algorithm"] = self.algorithm.model_copy(update={"sampler_correction": correction})
        return self

    @property
    def sections(self) -> Sequence[Section]:
        """The sections that the recipe sets."""
        return [section for section in (self.__pydantic_extra__ or {}).values() if section is not None]

    def section(self, cls: type[S]) -> S | None:
        """Return a section; None where the recipe does not set it.

        >>> from marft_lab.world_models.settings import DynaSettings
        >>> RunSettings.model_construct().section(DynaSettings) is None
        True
        """
        found = (self.__pydantic_extra__ or {}).get(cls.key)
        return found if isinstance(found, cls) else None

    def without_section(self, *keys: str) -> Self:
        """Return the run without some of its sections."""
        left = {key: section for key, section in (self.__pydantic_extra__ or {}).items() if key not in keys}
        copy = self.model_copy()
        object.__setattr__(copy, "__pydantic_extra__", left)
        return copy

    @property
    def given(self) -> Mapping[str, Any]:
        """What was given in Python, by the words that it is recorded by: files that name it are read with it."""
        return self._given

    @property
    def trained_policies(self) -> tuple[str, ...]:
        return tuple(name for name, policy in self.policies.items() if policy.train != "frozen")

    def __reduce__(self) -> tuple[object, ...]:
        """A run travels to other processes as what its recipe says, and is read again where it arrives: so its parts
        need not pickle, but for what can be read by their names."""
        return _read_again, (self.model_dump(mode="json", exclude_none=True),)

    @property
    def loaded_policies(self) -> Mapping[str, PolicySettings]:
        """All weights that are loaded: those of the recipe, and every version of its pools."""
        return {slot: settings for name in self.policies for slot, settings in members_of(self.policies, name)}

    def is_remote(self, model: str) -> bool:
        return model in self.models and self.models[model].endpoint is not None

    def learning_rate(self, policy: str) -> float:
        return self.policies[policy].learning_rate or self.algorithm.optimizer.learning_rate


def _read_again(table: dict[str, object]) -> RunSettings:
    from marft.config.load import parse_recipe

    return parse_recipe(table)


def refuse_nothing_to_train(run: RunSettings) -> None:
    """
    Raises:
        ValueError: the recipe trains no policy. It can be evaluated and played all the same.
    """
    if not run.trained_policies:
        raise ValueError("policies: all are frozen, so there is nothing to train; set train = 'lora' or 'full'")


def refuse_missing_packages(run: RunSettings) -> None:
    """
    Raises:
        ValueError: a sink needs a package that is not installed. Without it the run can be evaluated all the same.
    """
    for sink in run.sinks:
        if missing := sink.missing():
            raise ValueError(
                f"sinks: {sink.name!r} needs a package that is not installed: pip install '{missing}'; or leave it out"
            )


def check_room(run: RunSettings, contexts: Mapping[str, int]) -> None:
    """Check that prompts have room.

    Args:
        contexts: tokens of prompt and action together, by policy.

    Raises:
        ValueError: an agent's ``max_new_tokens`` fills its model's context.
    """
    for agent in run.agents:
        context = contexts[agent.policy]
        if agent.sampling.max_new_tokens >= context:
            raise ValueError(
                f"agents.{agent.role}.sampling: max_new_tokens = {agent.sampling.max_new_tokens} leaves no room "
                f"for a prompt in a context of {context} tokens"
            )


def idle_kl_stop(run: RunSettings) -> Iterable[str]:
    """What to say where a recipe has a KL stop, and no update that comes after another."""
    algorithm = run.algorithm
    if algorithm.kl_stop and algorithm.epochs * algorithm.minibatches == 1:
        yield (
            f"algorithm.kl_stop = {algorithm.kl_stop:g} cannot stop anything: the KL is compared with it before each "
            "update, and a step makes one (epochs = 1, minibatches = 1), before which no policy has moved; the metric "
            "kl has how far the update went; to limit that, set algorithm.team_kl, or more minibatches or epochs"
        )


def idle_cluster(run: RunSettings) -> Iterable[str]:
    """What to say where a recipe has ``[cluster]``, and no process that is started there."""
    if cluster_of(run) and not run.engine.apart and not run.rollout.processes and run.training.ranks == 1:
        yield (
            "[cluster]: the cluster is not joined, for all of this run is one process: what is started there are "
            "workers (rollout.processes), ranks (training.ranks) and an engine apart (engine.kind = 'process' or "
            "'vllm')"
        )
