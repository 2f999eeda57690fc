"""Callbacks that observe a training run, for example the terminal, a metric logger or a user's own code.

::

    class EarlyStop(marft.Callback):
        reached = False

        def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
            self.reached = metrics["reward"] > 0.9

        def wants_stop(self) -> bool:
            return self.reached

    marft.train("demo", callbacks=[EarlyStop()])
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Self

from marft.common.errors import UserError

if TYPE_CHECKING:
    from marft.common.types import ActionCredit, Episode


class Callback:
    """Base class for callbacks. Override the methods that you need; the defaults do nothing.

    The training thread of the main process calls all methods, in the order in which the callbacks are listed, and waits
    for them. Only :meth:`on_note` may come from another thread of the run. An exception in a callback ends the run;
    checkpoints saved before it stay complete.
    """

    @property
    def name(self) -> str:
        """Name of the callback in checkpoints and messages; default: the class name."""
        return type(self).__name__

    def on_train_start(self, completed_steps: int, steps: int) -> None:
        """Handle the start of training.

        Args:
            completed_steps: steps done before: 0 unless the run resumes.
            steps: step at which training ends.
        """

    def on_episode(self, episode: Episode) -> None:
        """Handle a finished episode, scored or failed."""

    def on_rollout(self, step: int, episodes: Sequence[Episode]) -> None:
        """Handle the episodes of a training step, before training on them.

        Args:
            step: step number, counted from 1.
            episodes: all episodes of the step, failed ones included.
        """

    def on_credit(self, step: int, credits: Sequence[ActionCredit]) -> None:
        """Handle the credit assigned to the actions of a training step."""

    def on_update(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        """Handle the update of the policies, before the new weights are published.

        Args:
            step: step number, counted from 1.
            episodes: episodes used for training.
            metrics: metrics of rollout and update, with ``seconds/learning``. A callback may add metrics of its own:
                they are logged with the step.
        """

    def on_publish(self, step: int) -> None:
        """Handle the publication of the updated weights to the inference engine."""

    def on_validate(self, step: int, metrics: dict[str, float]) -> None:
        """Handle the metrics of a validation."""

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        """Handle the end of a training step.

        Args:
            step: step number, counted from 1.
            metrics: metrics of the step, as written to ``metrics.jsonl`` (docs: metrics).
        """

    def on_rollback(self, step: int, target: int) -> None:
        """Handle a rollback. The state of callbacks is not rolled back.

        Args:
            step: step after which the run rolls back.
            target: step of the checkpoint whose weights are restored.
        """

    def on_guard(self, step: int, name: str, sentence: str) -> None:  # noqa: ARG002
        """Handle a guard that is raised now and was not raised in the step before.

        Called before :meth:`on_step_end`. The default passes the sentence to :meth:`on_note`.

        Args:
            step: step number, counted from 1.
            name: name of the guard; the step's metrics have ``guards/<name>`` = 1 as long as it stays raised.
            sentence: observation, meaning and remedy.
        """
        self.on_note(f"step {step}: {sentence}")

    def on_note(self, text: str) -> None:
        """Handle a message for the user, a log record of the run: a sentence or two."""

    def on_train_end(self, error: BaseException | None) -> None:
        """Handle the end of training; release resources here.

        After the loss of ranks, training may start again in the same run. Then :meth:`on_train_start` follows.

        Args:
            error: exception that ended training; None without one.
        """

    def wants_stop(self) -> bool:
        """Return True to stop training now.

        Called before the first step and after each step. A run that stops saves a checkpoint.
        """
        return False

    def state_dict(self) -> Mapping[str, object]:
        """Return the state to save in checkpoints: JSON values and NumPy arrays, by name. Default: no state."""
        return {}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore the output of :meth:`state_dict` when a run resumes, before :meth:`on_train_start`."""


class CallbackList(Callback):
    """Several callbacks as one, called in order. At the end of a ``with`` statement it calls ``on_train_end``.

    Raises:
        UserError: two callbacks with a state have the same name.
    """

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = list(callbacks)
        self._by_name: dict[str, Callback] = {}  # those with a state
        for callback in callbacks:
            if type(callback).state_dict is Callback.state_dict:
                continue
            if callback.name in self._by_name:
                raise UserError(
                    f"callbacks: two are called {callback.name!r}; give one of them another name (property name)"
                )
            self._by_name[callback.name] = callback

    def add(self, *callbacks: Callback) -> None:
        """Append callbacks whose state is not saved."""
        self.callbacks += callbacks

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.on_train_end(error)

    def __iter__(self) -> Iterator[Callback]:
        return iter(self.callbacks)

    def on_train_start(self, completed_steps: int, steps: int) -> None:
        """Pass the event on."""
        for callback in self.callbacks:
            callback.on_train_start(completed_steps, steps)

    def on_episode(self, episode: Episode) -> None:
        """Pass the event on."""
        for callback in self.callbacks:
            callback.on_episode(episode)

    def on_rollout(self, step: int, episodes: Sequence[Episode]) -> None:
        """Pass the event on."""
        for callback in self.callbacks:
            callback.on_rollout(step, episodes)

    def on_credit(self, step: int, credits: Sequence[ActionCredit]) -> None:
        """Pass the event on."""
        for callback in self.callbacks:
            callback.on_credit(step, credits)

    def on_update(self, step: int, episodes: Sequence[Episode], metrics: dict[str, float]) -> None:
        """Pass the event on."""
        for callback in self.callbacks:
            callback.on_update(step, episodes, metrics)

    def on_publish(self, step: int) -> None:
        """Pass the event on."""
        for callback in self.callbacks:
            callback.on_publish(step)

    def on_validate(self, step: int, metrics: dict[str, float]) -> None:
        """Pass the event on."""
        for callback in self.callbacks:
            callback.on_validate(step, metrics)

    def on_step_end(self, step: int, metrics: dict[str, float]) -> None:
        """Pass the event on."""
        for callback in self.callbacks:
            callback.on_step_end(step, metrics)

    def on_rollback(self, step: int, target: int) -> None:
        """Pass the event on."""
        for callback in self.callbacks:
            callback.on_rollback(step, target)

    def on_guard(self, step: int, name: str, sentence: str) -> None:
        """Pass the event on."""
        for callback in self.callbacks:
            callback.on_guard(step, name, sentence)

    def on_note(self, text: str) -> None:
        """Pass the event on."""
        for callback in self.callbacks:
            callback.on_note(text)

    def on_train_end(self, error: BaseException | None) -> None:
        """Pass the event on, the last callback first. All are called, even if one of them fails."""
        _end(self.callbacks, error)

    def wants_stop(self) -> bool:
        """Return True if any callback requests a stop. All are asked."""
        answers = [callback.wants_stop() for callback in self.callbacks]
        return any(answers)

    def state_dict(self) -> dict[str, Mapping[str, object]]:
        """Return the states of the callbacks that have one, by name."""
        states = {name: callback.state_dict() for name, callback in self._by_name.items()}
        return {name: state for name, state in states.items() if state}

    def load_state_dict(self, state: Mapping[str, object]) -> None:
        """Restore the states of the callbacks, by name.

        Raises:
            UserError: a callback with a saved state is missing.
        """
        for name, own_state in state.items():
            if name not in self._by_name:
                raise UserError(
                    f"the checkpoint holds the state of the callback {name!r}, which this run does not have: add it "
                    "again ([[callbacks]], or marft.train(…, callbacks=[…])), or start a new run from these weights"
                )
            assert isinstance(own_state, Mapping)
            self._by_name[name].load_state_dict(own_state)


def _end(callbacks: Sequence[Callback], error: BaseException | None) -> None:
    """Call ``on_train_end``, the last callback first. Errors keep those before them as context."""
    if callbacks:
        try:
            callbacks[-1].on_train_end(error)
        finally:
            _end(callbacks[:-1], error)
