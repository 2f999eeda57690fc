"""One-time warnings about inexact log-probabilities."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from marft.common.callbacks import Callback
from marft.config.algorithm import AlgorithmSettings

PACKING_TOLERANCE = 1e-4  # nats per token, between scores of the same weights
ENGINE_TOLERANCE = 0.05  # mean nats per token; bfloat16 alone gives about 0.01; NeMo RL's tests fail above this
PACKING_WARNING = (
    "this device's kernels score a token differently in other company, by up to {:.1g} nats: ratios of later epochs, "
    "and of policies that step one after another, are off by as much; where clips are narrow set algorithm.epochs = 1 "
    "and algorithm.schedule = {{ name = 'simultaneous' }}"
)
ENGINE_WARNING = (
    "{}: engine and learner differ by {:.2g} nats a token on average, and rounding explains no more than {:g}: it "
    "learns from what it would not have sampled; set algorithm.sampler_correction = {{ level = '{}' }}, or dtype = "
    "'float32' for its model"
)


class LogProbWarnings(Callback):
    """Callback that monitors log-probability metrics, and warns once per problem, with the fix.

    Args:
        settings: settings of the algorithm.
        note: callback for warnings.
    """

    def __init__(self, settings: AlgorithmSettings, note: Callable[[str], None]) -> None:
        self._settings, self._note = settings, note
        self._warned: set[str] = set()

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:  # noqa: ARG002
        """Check the metrics of a step."""
        packing_mismatch = metrics.get("packing_difference", 0.0)
        if packing_mismatch > PACKING_TOLERANCE:
            self._warn_once("packing", PACKING_WARNING.format(packing_mismatch))
        if self._settings.sampler_correction.level != "none" or self._settings.objective.reads_pairs:
            return
        role, mismatch = _find_largest_mismatch(metrics)
        if mismatch > ENGINE_TOLERANCE:
            level = "token" if self._settings.level == "token" else "geometric"
            self._warn_once("engine", ENGINE_WARNING.format(role, mismatch, ENGINE_TOLERANCE, level))

    def _warn_once(self, problem: str, text: str) -> None:
        if problem not in self._warned:
            self._warned.add(problem)
            self._note(text)


def _find_largest_mismatch(metrics: Mapping[str, float]) -> tuple[str, float]:
    """Return the agent with the largest mean difference between learner and engine, and the difference in nats per
    token.
    """
    mismatches = {name.split("/")[1]: value for name, value in metrics.items() if name.endswith("/log_prob_difference")}
    return max(mismatches.items(), key=lambda item: item[1], default=("", 0.0))
