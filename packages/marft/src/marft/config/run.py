"""Complete run settings: models, policies, agents, team, environment, algorithm and training length."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import ConfigDict, Field, PrivateAttr, Strict, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.common.errors import UserError
from marft.common.packages import missing_extra
from marft.config.agents import AgentSettings
from marft.config.algorithm import AlgorithmSettings
from marft.config.guards import GuardSettings
from marft.config.helpers import HelperCallSettings
from marft.config.interfaces.callback import CallbackPlugin
from marft.config.interfaces.channel import Channel
from marft.config.interfaces.engine import EngineFactory
from marft.config.interfaces.environment import Environment
from marft.config.interfaces.metric_logger import MetricLogger
from marft.config.interfaces.organization import Organization
from marft.config.interfaces.reward import RewardTerm
from marft.config.interfaces.tools import ToolProvider
from marft.config.models import ModelSettings, PolicySettings, pool_members
from marft.config.names import Name, RunName
from marft.config.paths import ExpandUser
from marft.config.recipe_checks import recipe_problems
from marft.config.sections import Section, SectionTable, pair_sections, section_class, section_names
from marft.config.settings import Count, Fraction, NonEmptyString, NonNegativeCount, Positive, Settings

S = TypeVar("S", bound=Section)


class CurriculumSettings(Settings):
    """Curriculum for training tasks by difficulty level; harder levels follow when the team solves the current ones.

    Held-out tasks always come from all levels.
    """

    level_field: NonEmptyString = Field(default="level", description="field of a task's data with its level")
    levels: Annotated[tuple[str | int, ...], Strict(False)] = Field(
        default=(), description="values of the level field, easiest first; []: sorted by number"
    )
    initial_levels: Count = Field(default=1, description="number of levels at the start, the easiest first")
    promote_threshold: Fraction = Field(
        default=0.8, description="minimum success rate at the hardest active level to add a harder level"
    )
    demote_threshold: Fraction = Field(
        default=0.2, description="maximum success rate at the hardest active level to remove the level"
    )
    episodes: Count = Field(default=64, description="episodes at the hardest active level before each decision")
    review_fraction: Fraction = Field(
        default=0.25, description="share of tasks from easier levels, split evenly over the levels"
    )

    @model_validator(mode="after")
    def _check_thresholds(self) -> CurriculumSettings:
        if self.demote_threshold >= self.promote_threshold:
            raise PydanticCustomError(
                "curriculum", "demote_threshold is at or above promote_threshold: it would go both ways; set it below"
            )
        if len(set(map(str, self.levels))) < len(self.levels):  # tasks store their level as text
            raise PydanticCustomError("curriculum", "levels names one twice")
        if self.review_fraction == 1:
            raise PydanticCustomError(
                "curriculum", "review_fraction = 1 leaves nothing for the hardest level; set it below 1"
            )
        return self


class RolloutSettings(Settings):
    """Amount of experience per training step, and limits for environments."""

    tasks_per_step: Count = Field(default=8, description="distinct tasks per step")
    samples_per_task: Count = Field(default=4, description="attempts at each task")
    max_concurrent_episodes: Annotated[int, Field(ge=1, le=100_000)] = Field(
        default=256, description="maximum concurrent episodes"
    )
    max_steps: Count = Field(
        default=32, description="maximum environment steps per episode; then the episode is truncated"
    )
    timeout_seconds: Positive = Field(
        default=60.0,
        description="timeout in seconds for each reset and step of the environment, and for each reward term",
    )
    workers: Annotated[int, Field(ge=0, le=1024)] = Field(
        default=0,
        description="worker processes for environment, tools and reward terms; 0: everything runs in this process",
    )
    max_policy_lag: Annotated[int, Field(ge=0, le=1000)] = Field(
        default=0, description="maximum age of training data, in policy versions; 0: synchronous training"
    )
    reuse: Annotated[int, Field(ge=1, le=100)] = Field(
        default=1, description="number of steps that train on an episode, starting with its own step; 1: no reuse"
    )
    max_retries: Annotated[int, Field(ge=0, le=10_000)] = Field(
        default=2,
        description="retries of an attempt whose worker ended during this attempt alone; then the task is excluded",
    )


class TrainingSettings(Settings):
    """Length and resources of training."""

    steps: Count = Field(default=100, description="training steps, each with rollout, credit assignment and update")
    tokens_per_micro_batch: Count = Field(
        default=8192, description="tokens per micro-batch; limits memory, with the same results"
    )
    share_prefixes: Literal["auto", "always", "never"] = Field(
        default="auto",
        description=(
            "compute common prefixes of rows once; auto: if products are exact and compared scores use the same packing"
        ),
    )
    record_episodes_every: NonNegativeCount = Field(
        default=1, description="steps between recordings of episodes; 0: no recording"
    )
    record_credit: bool = Field(
        default=True, description="record the learner's data on each action with the episodes, in half precision"
    )
    show_samples_every: NonNegativeCount = Field(
        default=0, description="steps between episodes shown in the terminal; 0: none"
    )
    ranks: Annotated[int, Field(ge=1, le=1024)] = Field(
        default=1, description="training processes, one per GPU; 1: this process only"
    )
    shard: bool = Field(
        default=False, description="shard models over the ranks, and gather each layer for its computation: less memory"
    )
    offload_optimizer: bool = Field(
        default=False, description="keep optimizer moments in host memory, and copy them to the device only for a step"
    )
    rank_timeout_seconds: Positive = Field(
        default=600.0,
        description="timeout of ranks that wait for each other, in seconds; then MARFT restarts the ranks",
    )

    @model_validator(mode="after")
    def _check_shard(self) -> TrainingSettings:
        if self.shard and self.ranks == 1:
            raise PydanticCustomError("shard", "shard: one rank alone holds all there is; set ranks to 2 or more")
        return self


class CheckpointSettings(Settings):
    """Checkpoint schedule and retention."""

    every: Count = Field(default=10, description="steps between checkpoints, besides the best validated step")
    keep_last: Count = Field(default=2, description="newest checkpoints to keep")
    keep_best: bool = Field(
        default=True,
        description="keep the best checkpoint too: by validation accuracy or reward, else by the step's reward",
    )


class EvaluationSettings(Settings):
    """Held-out evaluation: ``every`` schedules the validation split during training; ``tasks`` limits the test set."""

    tasks: Count = Field(default=500, description="maximum tasks of the test split")
    modes: Annotated[tuple[Literal["greedy", "sampled"], ...], Strict(False), Field(min_length=1)] = Field(
        default=(
            "greedy",
            "sampled",
        ),
        description="sampling modes: temperature 0 (greedy), and the agents' own parameters (sampled)",
    )
    attempts: Annotated[int, Field(ge=1, le=10_000)] = Field(
        default=1, description="attempts at each task; more than one gives pass@k, pass^k and avg@k"
    )
    save_every: Count = Field(
        default=256, description="episodes between saves; an interruption loses at most this number"
    )
    every: NonNegativeCount = Field(default=0, description="training steps between validations; 0: none")
    validation_tasks: Count = Field(default=100, description="maximum tasks of the validation split")

    @field_validator("modes")
    @classmethod
    def _check_modes(cls, modes: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(modes)) < len(modes):
            raise PydanticCustomError("modes", "names a mode twice")
        return modes


class RunSettings(Settings):
    """Complete recipe. Installed packages add more tables, the sections."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, SectionTable]

    name: RunName = Field(description="name of the run, in folder output/name; default: name of the file")
    seed: Annotated[int, Field(ge=0, lt=2**63)] = Field(default=0, description="seed of every random stream")
    output: Annotated[NonEmptyString, ExpandUser] = Field(
        default="runs", description="parent folder of the run folders"
    )
    recipe_folder: Annotated[str, Field(pattern=r"^[^\x00]*$"), ExpandUser] = Field(
        default="", description="base folder for relative paths and modules in the recipe"
    )
    device: NonEmptyString = Field(
        default="auto", description="device for training and sampling; auto: cuda with a GPU, else cpu"
    )
    threads: Annotated[int, Field(ge=0, le=4096)] = Field(
        default=0, description="CPU threads of torch; 0: torch's default"
    )
    models: dict[Name, ModelSettings] = Field(description="base models by name")
    policies: dict[Name, PolicySettings] = Field(description="policies (weights) by name")
    tools: dict[Name, ToolProvider] = Field(default={}, description="tool sources by name")
    agents: Annotated[tuple[AgentSettings, ...], Strict(False), Field(min_length=1)] = Field(
        description="agents of the team, in order"
    )
    team: Organization = Field(description="organization: order of the agents, and visibility of actions")
    channel: Channel = Field(description="format of messages between agents")
    consulting: HelperCallSettings | None = Field(default=None, description="helpers for agents during training")
    environment: Environment = Field(description="environment with the tasks")
    rewards: Annotated[tuple[RewardTerm, ...], Strict(False)] = Field(
        default=(), description="reward terms; []: the environment's rewards"
    )
    curriculum: CurriculumSettings | None = Field(
        default=None, description="task difficulty by the team's success; default: every task"
    )
    algorithm: AlgorithmSettings = Field(description="training algorithm")
    rollout: RolloutSettings = Field(default=RolloutSettings(), description="rollout size and limits")
    engine: EngineFactory = Field(description="inference engine of local policies")
    training: TrainingSettings = Field(default=TrainingSettings(), description="training length and resources")
    checkpoints: CheckpointSettings = Field(
        default=CheckpointSettings(), description="checkpoint schedule and retention"
    )
    evaluation: EvaluationSettings = Field(default=EvaluationSettings(), description="evaluation on held-out tasks")
    guards: GuardSettings = Field(default=GuardSettings(), description="thresholds of training guards")
    callbacks: Annotated[tuple[CallbackPlugin, ...], Strict(False)] = Field(
        default=(), description="callbacks that observe training"
    )
    sinks: Annotated[tuple[MetricLogger, ...], Strict(False)] = Field(
        description="metric loggers besides metrics.jsonl; []: none"
    )
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    @model_validator(mode="before")
    @classmethod
    def _set_defaults(cls, table: object) -> object:
        if not isinstance(table, dict):
            return table
        table = {
            "team": {"organization": "chain"},
            "channel": {"name": "raw"},
            "algorithm": {},
            "engine": {},
            "sinks": [{"name": "tensorboard"}],
            **table,
        }
        agents = table.get("agents")
        if isinstance(agents, list) and len(agents) == 1 and isinstance(agents[0], dict):
            table["agents"] = [{"answers": True, **agents[0]}]
        if isinstance(table["team"], dict):
            table["team"] = {"organization": "chain", **table["team"]}
        if isinstance(table["engine"], dict):
            table["engine"] = {"kind": "local", **table["engine"]}
        return pair_sections(table, cls.model_fields)

    @classmethod
    def extra_keys(cls) -> Iterable[str]:
        """Return the section names."""
        return section_names()

    @classmethod
    def explain_unknown_key(cls, key: str) -> str:
        return missing_extra("sections", key)

    @classmethod
    def inner_table(cls, key: str) -> type[Settings] | None:
        """Return the settings class for a section; None if its package cannot be imported."""
        try:
            return section_class(key)
        except ValueError:  # a broken package must not suppress suggestions from other packages
            return None

    @model_validator(mode="after")
    def _check_references(self) -> RunSettings:
        problems = "\n".join(recipe_problems(self))
        if problems:
            raise PydanticCustomError("run", "{problems}", {"problems": problems})
        return self

    @model_validator(mode="after")
    def _enable_correction(self) -> RunSettings:
        """Enable importance weights π_old/μ by default for other engines and for reused episodes.

        An engine with separate weights has numerically different outputs, and reused episodes come from older policies.
        An explicit level in the recipe takes precedence. Pairwise objectives are exempt, because they may compare
        samples of any policy, and so are objectives whose ratios are to the sampling policy.
        """
        correction, objective = self.algorithm.sampler_correction, self.algorithm.objective
        if objective.reads_pairs or objective.anchors_on_sampler:
            return self
        if (self.engine.separate_weights or self.rollout.reuse > 1) and "level" not in correction.model_fields_set:
            level = "token" if self.algorithm.level == "token" else "geometric"
            correction = correction.model_copy(update={"level": level})
            algorithm = self.algorithm.model_copy(update={"sampler_correction": correction})
            return self.model_copy(update={"algorithm": algorithm})
        return self

    @property
    def sections(self) -> Sequence[Section]:
        """Sections present in the recipe."""
        return [section for section in (self.__pydantic_extra__ or {}).values() if section is not None]

    def section(self, cls: type[S]) -> S | None:
        """Return a section, such as ``run.section(TracingSettings)``; None if the recipe does not set it."""
        value = (self.__pydantic_extra__ or {}).get(cls.key)
        return value if isinstance(value, cls) else None

    def without_section(self, *keys: str) -> Self:
        """Return the run without some sections."""
        copy = self.model_copy()
        for key in keys:
            copy.__pydantic_extra__.pop(key, None)
        return copy

    @property
    def python_objects(self) -> Mapping[str, Any]:
        """Python objects in the recipe, by placeholder; needed to load saved files with these placeholders."""
        return self._given

    @property
    def trained_policies(self) -> tuple[str, ...]:
        """Names of the trainable policies."""
        return tuple(name for name, policy in self.policies.items() if policy.train != "frozen")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle as recipe tables; the receiving process parses them again.

        Plugins therefore need no pickle support, but they must be importable by name.
        """
        return _restore, (self.model_dump(mode="json", exclude_none=True),)

    @property
    def loaded_policies(self) -> Mapping[str, PolicySettings]:
        """All policies to load: the recipe's, and each version in its opponent pools."""
        return {slot: settings for name in self.policies for slot, settings in pool_members(self.policies, name)}

    def is_remote(self, model: str) -> bool:
        """Return True for a model behind an endpoint."""
        return model in self.models and self.models[model].endpoint is not None

    def learning_rate(self, policy: str) -> float:
        """Return a policy's learning rate: its own, or the optimizer's."""
        return self.policies[policy].learning_rate or self.algorithm.optimizer.learning_rate


def _restore(table: dict[str, object]) -> RunSettings:
    from marft.config.load import parse_recipe

    return parse_recipe(table)


def check_trainable(run: RunSettings) -> None:
    """Check that the recipe trains at least one policy. Evaluation does not need one.

    Raises:
        UserError: all policies are frozen.
    """
    if not run.trained_policies:
        raise UserError("policies: all are frozen, so there is nothing to train; set train = 'lora' or 'full'")


def check_packages(run: RunSettings) -> None:
    """Check for missing packages of metric loggers. Evaluation does not need them.

    Raises:
        UserError: a package is missing.
    """
    for sink in run.sinks:
        if missing := sink.install_hint():
            raise UserError(f"sinks: {sink.name!r} needs a package that is not installed: {missing}; or leave it out")


def check_prompt_space(run: RunSettings, contexts: Mapping[str, int]) -> None:
    """Check that each agent's context has room for a prompt.

    Args:
        contexts: maximum tokens of prompt and action together, by policy.

    Raises:
        UserError: an agent's ``max_new_tokens`` fills its model's context.
    """
    for agent in run.agents:
        context = contexts[agent.policy]
        if agent.sampling.max_new_tokens >= context:
            raise UserError(
                f"agents.{agent.role}.sampling: max_new_tokens = {agent.sampling.max_new_tokens} leaves no room "
                f"for a prompt in a context of {context} tokens"
            )
