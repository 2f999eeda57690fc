"""``[distillation]``: teachers whose log-probabilities on the students' own tokens are part of the advantages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from marft.config.sections import Section
from marft.config.settings import NonEmptyString, NonNegative, NonNegativeCount, did_you_mean

if TYPE_CHECKING:
    from marft.config.run import RunSettings


class DistillationSettings(Section):
    """On-policy distillation: teachers, and their weight beside the reward."""

    key: ClassVar[str] = "distillation"

    teacher: str = Field(default="", description="policy that teaches every trained agent")
    teachers: dict[NonEmptyString, NonEmptyString] = Field(
        default={}, description="policy that teaches an agent, by role; instead of `teacher`"
    )
    weight: NonNegative = Field(default=1.0, description="weight of the teacher's advantages")
    anneal_steps: NonNegativeCount = Field(
        default=0, description="training steps in which the weight falls linearly to 0; 0: constant"
    )
    reward_weight: NonNegative = Field(
        default=1.0, description="weight of the algorithm's own advantages; 0: learn from teachers alone"
    )

    def teacher_of(self, run: RunSettings) -> Mapping[str, str]:
        """Return the teacher's policy of each student, by role."""
        trained = [agent.role for agent in run.agents if agent.policy in run.trained_policies]
        found = {role: self.teachers.get(role, self.teacher) for role in trained}
        return {role: policy for role, policy in found.items() if policy}

    def weight_at(self, step: int) -> float:
        """Return the weight of the teachers' advantages in a training step, counted from 0.

        >>> settings = DistillationSettings(teacher="big", weight=0.8, anneal_steps=4)
        >>> [round(settings.weight_at(step), 3) for step in (0, 1, 3, 4, 9)]
        [0.8, 0.6, 0.2, 0.0, 0.0]
        """
        return self.weight * max(0.0, 1.0 - step / self.anneal_steps) if self.anneal_steps else self.weight

    def extra_policies(self) -> Iterable[str]:
        """Return the teachers' policies."""
        return {policy for policy in (self.teacher, *self.teachers.values()) if policy}

    def problems(self, run: RunSettings) -> Iterable[str]:
        """Yield problems of the settings."""
        if not self.extra_policies():
            yield "distillation: nobody teaches; name a policy as distillation.teacher"
        roles = [agent.role for agent in run.agents]
        for role in self.teachers:
            if role not in roles:
                yield f"distillation.teachers: no agent is called {role!r}{did_you_mean(role, roles)}"
        yield from self.policy_problems(run, "distillation")
        for name in sorted(self.extra_policies()):
            if name in run.policies and run.is_remote(run.policies[name].model):
                yield (
                    f"distillation: policy {name!r} is remote, and an endpoint does not score given tokens; use a "
                    "local model"
                )
        policies = {agent.role: agent.policy for agent in run.agents}
        for role, teacher in self.teacher_of(run).items():
            if policies[role] == teacher:
                yield f"distillation: policy {teacher!r} would teach itself as {role!r}; use another teacher"
        if run.algorithm.level == "action" or run.algorithm.objective.reads_pairs:
            yield "distillation: a teacher has an advantage for each token; use an algorithm with level = 'token'"
        if run.algorithm.schedule.correction == "preceding":
            yield "distillation: schedule 'a2po' assigns advantages anew in each phase; use schedule 'sequential'"
