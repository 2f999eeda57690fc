"""On-policy distillation: a teacher's log-probabilities of the student's own tokens as advantages.

``A_t = log π_teacher(y_t | s_t) − log π(y_t | s_t)`` at tokens y that the student has sampled, with the engine's
log-probabilities for π. The policy gradient with these advantages minimizes the reverse KL from student to teacher
(Agarwal et al. 2024). A token needs no reward and no other attempt.

The teacher reads what the student has read: the same prompt, at the same temperature, under the same grammar. Its
tokenizer must be the student's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from marft.common.errors import UserError
from marft.common.types import Sample
from marft.config.distillation import DistillationSettings
from marft.config.interfaces.credit import Floats
from marft.config.interfaces.objective import LOG_RATIO_LIMIT
from marft.config.run import RunSettings
from marft.models.policy_registry import PolicyRegistry
from marft.trainer.batching import Packing, build_sample
from marft.trainer.ranks.interface import Ranks
from marft.trainer.scoring import score_actions


class Distillation:
    """Teachers of a run.

    Args:
        settings: the recipe's ``[distillation]``.
        run: recipe of the run.
        models: models of the run, teachers included.
        packing: packing of the samples.

    Raises:
        UserError: a teacher has another tokenizer than its student.
    """

    def __init__(
        self, settings: DistillationSettings, run: RunSettings, models: PolicyRegistry, packing: Packing
    ) -> None:
        self.settings, self._teachers = settings, settings.teacher_of(run)
        self._packing = replace(packing, teammate_text=False)
        policies = {agent.role: agent.policy for agent in run.agents}
        for role, teacher in self._teachers.items():
            own, other = (models.policies[name].tokenizer for name in (policies[role], teacher))
            if own is not other and own.get_vocab() != other.get_vocab():
                raise UserError(
                    f"distillation: teacher {teacher!r} splits text into other tokens than {role!r}; use a teacher "
                    "with the tokenizer of its student"
                )

    def add_advantages(
        self, samples: Sequence[Sample], step: int, ranks: Ranks
    ) -> tuple[list[Sample], dict[str, float]]:
        """Return the samples with the teachers' advantages added, and metrics.

        Args:
            samples: samples of the step, with the algorithm's own advantages.
            step: index of the training step.
            ranks: all ranks; each scores its share.
        """
        weight = self.settings.weight_at(step)
        students = [sample for sample in samples if sample.action.agent in self._teachers]
        taught = [
            build_sample(replace(sample.action, policy=self._teachers[sample.action.agent]), "token")
            for sample in students
        ]
        scored = score_actions(self._packing, taught, ranks)
        signals = {
            sample.action.key: (scored[sample.action.key] - sample.action.log_probs).clip(
                -LOG_RATIO_LIMIT, LOG_RATIO_LIMIT
            )
            for sample in students
        }
        result = [
            replace(sample, advantages=self._blend(sample.advantages, signals.get(sample.action.key), weight))
            for sample in samples
        ]
        return result, {
            "distillation/weight": weight,
            **_reverse_kl(students, [signals[s.action.key] for s in students]),
        }

    def _blend(self, own: Floats, signal: Floats | None, weight: float) -> Floats:
        return own if signal is None else self.settings.reward_weight * own + weight * signal


def _reverse_kl(students: Sequence[Sample], signals: Sequence[Floats]) -> dict[str, float]:
    """Return the KL from student to teacher at the sampled tokens, by k1, for the team and each agent."""
    by_agent: dict[str, list[Floats]] = {}
    for sample, signal in zip(students, signals, strict=True):
        by_agent.setdefault(sample.action.agent, []).append(-signal)
    metrics = {
        f"agents/{agent}/distillation/reverse_kl": float(np.concatenate(rows).mean())
        for agent, rows in sorted(by_agent.items())
    }
    every = [row for rows in by_agent.values() for row in rows]
    return metrics | ({"distillation/reverse_kl": float(np.concatenate(every).mean())} if every else {})
