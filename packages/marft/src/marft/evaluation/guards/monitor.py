"""Guard monitor: runs all guards after each step, reports each new finding once and returns metrics."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from marft.config.guards import GuardSettings
from marft.evaluation.guards import collapse, overoptimization, writing
from marft.evaluation.guards.history import ROLLBACK_KEY, Guard, GuardAlert, History, Row

GUARDS = (
    Guard("kl", collapse.check_kl, is_collapse=True),
    Guard("reward_drop", collapse.check_reward, is_collapse=True),
    Guard("entropy_spike", collapse.check_entropy_spike, is_collapse=True),
    Guard("entropy_collapse", collapse.check_entropy_collapse, is_collapse=True),
    Guard("gradient", collapse.check_gradient, is_collapse=True),
    Guard("length", writing.check_length),
    Guard("term", overoptimization.check_term),
    Guard("validation_drop", overoptimization.check_validation),
    Guard("repetition", writing.check_repetition),
    Guard("format", writing.check_format),
    Guard("dependence", writing.check_dependence),
    Guard("work", overoptimization.check_work),
    Guard("private_code", writing.check_private_code),
    Guard("readability", writing.check_readability),
    Guard("language", writing.check_language),
    Guard("capability", overoptimization.check_capability),
)


@dataclass(frozen=True, slots=True)
class GuardReport:
    """Guard findings in one step, by guard name."""

    alerts: Mapping[str, GuardAlert]

    def metrics(self) -> dict[str, float]:
        """Return ``guards/<name>`` = 1 for each guard with a finding."""
        return {f"guards/{name}": 1.0 for name in self.alerts}

    def last_good_step(self) -> int | None:
        """Return the last step before a collapse, or None without a collapse."""
        collapses = {guard.name for guard in GUARDS if guard.is_collapse}
        return min((alert.last_good_step for name, alert in self.alerts.items() if name in collapses), default=None)


class GuardMonitor:
    """Monitor that runs the guards on the metrics of every step.

    Its state follows from the rows of ``metrics.jsonl``, so a resumed run is monitored as if it had not been
    interrupted.

    Args:
        rows: rows of the previous steps.
        on_alert: called with the step, the guard's name and the sentence of a finding that is new in this step.
    """

    def __init__(
        self,
        settings: GuardSettings,
        rows: Iterable[Row],
        on_alert: Callable[[int, str, str], None] = lambda *_: None,
    ) -> None:
        self._settings, self._on_alert = settings, on_alert
        self._history = History()
        self._active: set[str] = set()
        for row in rows:
            self._history.add(row)
            self._active = {on_alert.name for on_alert in GUARDS if row.get(f"guards/{on_alert.name}")}
            if (back := row.get(ROLLBACK_KEY)) is not None:
                self._roll_back_history(int(back))

    def check(self, row: Row) -> GuardReport:
        """Add the metrics of one step and run the guards; ``row`` includes the step number."""
        self._history.add(row)
        results = {
            guard.name: guard.check(self._history, self._settings) for guard in GUARDS if self._is_enabled(guard)
        }
        alerts = {name: alert for name, alert in results.items() if alert is not None}
        for name, alert in alerts.items():
            if name not in self._active:
                threshold = f"guards.{name} = {getattr(self._settings, name):g}"
                self._on_alert(self._history.step, name, f"{alert.message} ({threshold})")
        self._active = set(alerts)
        return GuardReport(alerts)

    def learning_rate_factor(self) -> float:
        """Return the factor for all learning rates if the run is rolled back now."""
        return collapse.rollback_lr_factor(self._history, self._settings)

    def roll_back(self, step: int) -> str:
        """Roll back the history to ``step``, and return a message about the rollback."""
        message = (
            f"step {self._history.step}: the run goes back to the checkpoint of step {step}, and on from there with "
            f"learning rates {self.learning_rate_factor():.2g} times what they were"
        )
        self._roll_back_history(step)
        return message

    def _roll_back_history(self, step: int) -> None:
        self._history.roll_back(step)
        self._active = set()

    def _is_enabled(self, guard: Guard) -> bool:
        return bool(getattr(self._settings, guard.name))


def replay_messages(settings: GuardSettings, rows: Sequence[Row]) -> list[str]:
    """Return the messages of the guards for the steps of a metrics log."""
    messages: list[str] = []
    monitor = GuardMonitor(settings, (), lambda step, _, sentence: messages.append(f"step {step}: {sentence}"))
    for row in rows:
        monitor.check(row)
        if (back := row.get(ROLLBACK_KEY)) is not None:
            messages.append(monitor.roll_back(int(back)))
    return messages
