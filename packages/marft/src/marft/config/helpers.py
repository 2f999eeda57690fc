"""Helpers: frozen models that agents may call inside their turns during training."""

from __future__ import annotations

import math
from string import Formatter
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field, Strict, field_validator, model_validator
from pydantic_core import PydanticCustomError

from marft.config.agents import SamplingSettings
from marft.config.models import reader_models
from marft.config.names import Role
from marft.config.settings import Count, Names, NonNegative, NonNegativeCount, Settings

if TYPE_CHECKING:
    from marft.config.run import RunSettings

HelperContext = Annotated[tuple[Literal["task", "turn"], ...], Strict(False)]


class HelperSettings(Settings):
    """Helper with a frozen policy, on any model: another local base, or an endpoint."""

    policy: str = Field(description="frozen policy that replies")
    description: str = Field(default="", description="description of the helper in agents' prompts")
    instructions: str = Field(default="", description="system message")
    context: HelperContext = Field(
        default=("task", "turn"), description="context before the question: the agent's task, and its turn so far"
    )
    sampling: SamplingSettings = Field(default=SamplingSettings(max_new_tokens=128), description="sampling parameters")


class HelperCallSettings(Settings):
    """Helper calls inside a turn, ``consult(kind, question)`` (AIPO, arXiv 2605.08401).

    An agent that writes ``call_template`` receives ``reply_template`` in place, and continues its turn. The number of
    calls is limited by ``budget`` until step ``anneal_start``. It then falls linearly to 0 at ``anneal_end``. Helpers
    exist only during training.
    """

    helpers: Annotated[dict[Role, HelperSettings], Field(min_length=1)] = Field(
        description="helpers by kind of question"
    )
    agents: Names = Field(default=(), description="roles with access to helpers; []: every trained agent")
    budget: NonNegative = Field(
        default=1.0,
        description="calls per action, averaged over attempts at a task; each attempt gets this number, rounded",
    )
    anneal_start: NonNegativeCount = Field(default=0, description="training step at which the budget begins to fall")
    anneal_end: Count = Field(description="training step at which the budget reaches 0")
    visible: Literal["when_available", "always", "never"] = Field(
        default="when_available",
        description="visibility of helpers in prompts; when_available: only while the agent may call helpers",
    )
    call_template: str = Field(default="<consult {kind}>{question}</consult>", description="template of a call")
    reply_template: str = Field(default="<reply>{text}</reply>", description="template of a reply")

    @field_validator("call_template")
    @classmethod
    def _check_call(cls, call: str) -> str:
        before, _, suffix = call.partition("{kind}")
        between, _, after = suffix.partition("{question}")
        if _template_names(call) != ["kind", "question"] or not (before.strip() and between and after.strip()):
            example = "<consult {kind}>{question}</consult>"
            raise PydanticCustomError(
                "call", "must be as {example}: marks before, between and after", {"example": example}
            )
        return call

    @field_validator("reply_template")
    @classmethod
    def _check_reply(cls, reply: str) -> str:
        if _template_names(reply) != ["text"]:
            raise PydanticCustomError("reply", "must be as {example}", {"example": "<reply>{text}</reply>"})
        return reply

    @model_validator(mode="after")
    def _check_schedule(self) -> HelperCallSettings:
        if self.anneal_start >= self.anneal_end:
            raise PydanticCustomError(
                "anneal", "anneal_start must be before anneal_end, where the budget has come to 0"
            )
        return self

    def calls_per_action(self, step: int) -> float:
        """Return the calls per action at a training step, averaged over attempts at a task.

        >>> helper = HelperSettings(policy="teacher")
        >>> found = HelperCallSettings(helpers={"verify": helper}, budget=2.0, anneal_start=10, anneal_end=30)
        >>> [found.calls_per_action(step) for step in (0, 10, 20, 30)]
        [2.0, 2.0, 1.0, 0.0]
        """
        fraction = (self.anneal_end - step) / (self.anneal_end - self.anneal_start)
        return self.budget * min(1.0, max(0.0, fraction))

    def calls_per_attempt(self, step: int, attempts: int, turn: int) -> list[int]:
        """Return the calls per action for each attempt at a task.

        The values are whole numbers with a mean as close as possible to the step's budget.

        >>> helper = HelperSettings(policy="teacher")
        >>> HelperCallSettings(helpers={"verify": helper}, budget=0.5, anneal_end=30).calls_per_attempt(0, 4, turn=1)
        [0, 1, 1, 0]

        Args:
            step: training step.
            attempts: number of attempts at the task.
            turn: offset that rotates which attempts receive more calls.
        """
        mean_calls = self.calls_per_action(step)
        return [math.floor(mean_calls + ((index + turn) % attempts + 0.5) / attempts) for index in range(attempts)]

    def roles(self, run: RunSettings) -> list[str]:
        """Return the roles that may call helpers."""
        trained = [agent.role for agent in run.agents if agent.policy in run.trained_policies]
        return list(self.agents) or trained


def helper_policies(run: RunSettings) -> set[str]:
    """Return the policies behind helpers."""
    return {helper.policy for helper in run.consulting.helpers.values()} if run.consulting else set()


def auxiliary_policies(run: RunSettings) -> set[str]:
    """Return auxiliary policies, which need no agent: helpers, and policies sampled by recipe sections."""
    return helper_policies(run).union(*(section.extra_policies() for section in run.sections))


def without_helpers(run: RunSettings) -> RunSettings:
    """Return the recipe without helpers and prompt proposers.

    Policies and models that only they use are removed too, so that they are not loaded.
    """
    section_keys = [section.key for section in run.sections if [*section.extra_policies()]]
    if run.consulting is None and not section_keys:
        return run
    unused_policies = auxiliary_policies(run) - {agent.policy for agent in run.agents}
    policies = {name: policy for name, policy in run.policies.items() if name not in unused_policies}
    unused_models = {run.policies[name].model for name in unused_policies} - {
        policy.model for policy in policies.values()
    }
    models = {
        name: model for name, model in run.models.items() if name not in unused_models - reader_models(run.models)
    }
    copy = run.without_section(*section_keys)
    return copy.model_copy(update={"consulting": None, "policies": policies, "models": models})


def _template_names(template: str) -> list[str]:
    """Return the names in a template's braces, in order; empty for an invalid template."""
    try:
        fields = [part for part in Formatter().parse(template) if part[1] is not None]
    except ValueError:
        return []
    plain = all(template.count(f"{{{name}}}") == 1 for _, name, _, _ in fields) and "{{" not in template
    return [str(name) for _, name, _, _ in fields] if plain and "}}" not in template else []
