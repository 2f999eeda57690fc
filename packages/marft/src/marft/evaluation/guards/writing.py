"""Guards on what agents write: its length, repetition, format, language, readability, and dependence on inputs."""

from __future__ import annotations

import numpy as np

from marft.config.guards import GuardSettings
from marft.evaluation.guards.history import (
    CHARACTER_KINDS,
    MIN_STANDARD_ERRORS,
    GuardAlert,
    History,
    find_drifts,
    has_improved,
)

MIN_DEPENDENCE = 0.05  # nats per token; an agent that starts below never depended on its inputs
SOURCES = {"inputs": "the task and the messages", "messages": "the messages of its team"}


def check_length(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent with much longer or shorter actions than at first, without better results.

    Condition: mean length of the newest window > threshold · mean of the first window, or < 1 / threshold of it, for
    any agent. In addition, accuracy (or else reward) must not exceed that of the first window.

    Useful reasoning also grows, but with accuracy. Twice the length without a gain indicates a reward that favors
    length. If success is unknown and reward rises, both cases look the same, and the guard reports nothing.
    """
    window = settings.window
    if has_improved(history, window):
        return None
    for role, series in history.current_by_owner("agents", "action_length", 2 * window):
        means = series.means(window)
        first, last = float(means[0]), float(means[-1])
        if last > settings.length * first or first > settings.length * last:
            return GuardAlert(
                f"{role}: its actions went from {first:.1f} to {last:.1f} tokens, over {window} steps each, and no "
                "more is solved for it: look at what it writes (`marft show RUN`), and at which term pays for length; "
                "truncation, a length penalty or algorithm.reward may stop it",
                series.step_before_window(window),
            )
    return None


def check_repetition(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent that repeats itself more than at first.

    Condition: share of repeated 4-grams over the newest window − share over the first window > threshold,
    significantly, for any agent. In addition, accuracy (or else reward) must not exceed that of the first window.
    """
    if has_improved(history, settings.window):
        return None
    for drift in find_drifts(history, "repetition", settings.window):
        if drift.increase > settings.repetition:
            return GuardAlert(
                f"{drift.owner}: it repeats {drift.last:.0%} of its 4-grams, and {drift.first:.0%} at first, and no "
                "more is solved for it: look at what it writes (`marft show RUN`), and at which term pays for it; "
                "a length penalty may stop it",
                drift.last_good_step,
            )
    return None


def check_format(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent with a changed text format.

    Condition: ½ Σ_k |p_k − q_k| > threshold, with the shares p and q of character kinds in an agent's newest and first
    window. In addition, accuracy (or else reward) must not exceed that of the first window. The guard also reports if
    the share of actions that match the declared pattern (``guards.formats``) fell significantly by more than the
    threshold, regardless of accuracy and reward.
    """
    for drift in find_drifts(history, "format_rate", settings.window):
        if -drift.increase > settings.format:
            return GuardAlert(
                f"{drift.owner}: {drift.last:.0%} of its actions hold the pattern of guards.formats, and "
                f"{drift.first:.0%} did at first: a reward term of that pattern ([[rewards]] name = 'format') pays "
                "for holding to it",
                drift.last_good_step,
            )
    if has_improved(history, settings.window):
        return None
    for role in history.owners("agents", "characters/letters"):
        distance, last_good_step = _format_distance(history, role, settings.window)
        if distance > settings.format:
            return GuardAlert(
                f"{role}: {distance:.0%} of the characters that it writes are of other kinds than at first, and no "
                "more is solved for it: its format changes; look at what it writes (`marft show RUN`), declare what it "
                "must hold (guards.formats), and reward that",
                last_good_step,
            )
    return None


def _format_distance(history: History, role: str, window: int) -> tuple[float, int]:
    """Return the total variation distance and the step before the newest window; 0 and 0 without two windows."""
    names = [f"agents/{role}/characters/{kind}" for kind in CHARACTER_KINDS]
    series_list = [series for name in names if (series := history.current_series(name, 2 * window)) is not None]
    if not series_list:
        return 0.0, 0
    changes = [series.values[-window:].mean() - series.values[:window].mean() for series in series_list]
    return float(np.abs(changes).sum()) / 2, series_list[0].steps[-window] - 1


def check_language(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent that writes in scripts absent from its task.

    Condition: share of letters in other scripts over the newest window − share over the first window > threshold,
    significantly, for any agent.
    """
    for drift in find_drifts(history, "other_script", settings.window):
        if drift.increase > settings.language:
            return GuardAlert(
                f"{drift.owner}: {drift.last:.0%} of its letters are of a script that its task does not use, and "
                f"{drift.first:.0%} were at first: it changes its language; say in its instructions which one, or add "
                "a reward term that asks for it",
                drift.last_good_step,
            )
    return None


def check_readability(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent with text that becomes less likely under the base model.

    Condition: mean base surprisal over the newest window − mean over the first window > threshold, significantly, for
    any agent.

    One nat per token is a 2.7 times higher perplexity.
    """
    for drift in find_drifts(history, "base_surprisal", settings.window):
        if drift.increase > settings.readability:
            return GuardAlert(
                f"{drift.owner}: to the untuned base its text went from {drift.first:.2f} to {drift.last:.2f} nats a "
                "token: people may find it hard to read; look at what it writes (`marft show RUN`), and hold it to "
                "its base (algorithm.kl.coefficient)",
                drift.last_good_step,
            )
    return None


def check_private_code(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an agent with useful messages that become unreadable to the base model.

    Condition: mean base surprisal over the newest window − mean over the first window > threshold, significantly, for
    an agent with messages that others read. In addition, accuracy (or else reward) must significantly exceed that of
    the first window.
    """
    if not has_improved(history, settings.window, MIN_STANDARD_ERRORS):
        return None
    for drift in find_drifts(history, "base_surprisal", settings.window):
        message_tokens = history.current_series(f"agents/{drift.owner}/message_tokens", 1)
        if message_tokens is not None and message_tokens.values[-1] > 0 and drift.increase > settings.private_code:
            return GuardAlert(
                f"{drift.owner}: others read its messages and solve more, and to the untuned base they went from "
                f"{drift.first:.2f} to {drift.last:.2f} nats a token: they may be a code; read them "
                "(`marft show RUN`), and hold it to its base (algorithm.kl.coefficient)",
                drift.last_good_step,
            )
    return None


def check_dependence(history: History, settings: GuardSettings) -> GuardAlert | None:
    """Report an answering agent with text that depends less on its inputs than at first.

    Condition: median dependence of the newest window < threshold · median of the first window. For dependence on
    messages, accuracy (or else reward) must also not exceed that of the first window.

    The mean over few actions varies too much: one action that still depends on everything would hide the others. A text
    that uses a leak instead of the messages still depends on the task. A text that is always the same depends on
    nothing.
    """
    has_gain = has_improved(history, settings.window)
    for name, source in SOURCES.items():
        if name == "messages" and has_gain:
            continue
        for role, series in history.current_by_owner("agents", f"dependence/{name}", 2 * settings.window):
            first = float(np.median(series.values[: settings.window]))
            last = float(np.median(series.values[-settings.window :]))
            if first > MIN_DEPENDENCE and last < settings.dependence * first:
                return GuardAlert(
                    f"{role}: what its text owes to {source} went from {first:.2f} to {last:.2f} nats a token: "
                    "it answers whatever it is asked or told; look at which term pays for that (`marft show RUN`), and "
                    "reward only what depends on the task",
                    series.step_before_window(settings.window),
                )
    return None
