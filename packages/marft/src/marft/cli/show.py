"""``marft show``: recorded episodes in the terminal, without the run's data, rewards or models."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from marft.cli.console import in_bold, wide_console
from marft.cli.errors import beside
from marft.cli.outcomes import SUCCESS, outcome_of
from marft.common.texts import cut, one_line, visible
from marft.common.types import Action, Episode
from marft.config.settings import did_you_mean
from marft.evaluation.prompts import Recorded
from marft.evaluation.remembering import known_tokens, newly_seen
from marft.evaluation.transcripts import (
    Order,
    answer_of,
    attempts_at,
    difference,
    dropped,
    ordered,
    over_steps,
    read_of,
)
from marft.runs.episodes import sessions_in
from marft.runs.folder import RunFolder, step_of

ANSWER_SHOWN = 80  # maximum length of an answer in a table, in characters
COLOURS = {"+": "green", "-": "red", "@": "cyan"}  # colors of lines in a diff


def show(path: Path, step: int | None, agent: str, task: str, orders: Sequence[str], count: int) -> None:
    """``marft show``.

    Raises:
        ValueError: the run, step, task or agent does not exist, or options conflict.
    """
    if len(orders) > 1:
        raise ValueError(f"--{orders[0]} and --{orders[1]} exclude each other; give one")
    console, sessions = wide_console(), sessions_in(path)
    if sessions:
        for shown in served(sessions, step, agent, task, orders, count):
            console.print(shown)
        return
    folder = RunFolder.open(path)
    beside(folder.path)
    recorded = Recorded(folder.config)
    if task and step is None:
        if agent or orders:
            raise ValueError(
                "--task without --step shows every step; give --step with --agent, --worst, --best, --failed"
            )
        for shown in history(over_steps(folder, task), recorded):
            console.print(shown)
        return
    file = folder.recorded(step or 0)
    everything = attempts_at(read_of(file, task), task) if task else read_of(file, "")
    if task and not everything:
        raise ValueError(f"step {step_of(file)} recorded no episode of task {task!r}; without --step all are looked at")
    know(agent, everything)
    order = cast("Order", orders[0] if orders else "")
    chosen = ordered(everything, order)[:count]
    console.print(f"step {step_of(file)}: {len(chosen)} of {len(everything)} episodes", "")
    for episode in chosen:
        for shown in transcript(episode, agent, recorded):
            console.print(shown)
        console.print("")
    say_dropped(console, everything)


def served(
    files: Sequence[Path], step: int | None, agent: str, task: str, orders: Sequence[str], count: int
) -> Iterator[RenderableType]:  # fmt: skip
    """Yield the latest recorded sessions from a served team.

    Raises:
        ValueError: no session matches, or an option does not apply to sessions.
    """
    if step is not None or set(orders) - {"failed"}:
        raise ValueError("sessions that were served have no steps and no grade; leave out --step, --worst, --best")
    everything = [episode for file in files for episode in read_of(file, task)]
    if not everything:
        raise ValueError(f"no session is called {task!r}" if task else "no session was recorded")
    know(agent, everything)
    chosen = ordered(everything, "failed" if orders else "")[-count:]
    yield in_bold(f"{len(chosen)} of {len(everything)} sessions")
    for episode in chosen:
        yield from transcript(episode, agent, Recorded(files[0].parent / "config.toml"))
        yield Text("")


def transcript(episode: Episode, agent: str, recorded: Recorded) -> Iterator[RenderableType]:
    """Yield the transcript, for all agents or one.

    Args:
        agent: role to show; "": all.
    """
    yield in_bold(one_line(episode.name))
    if episode.fork:
        yield Text(one_line(f"plays {episode.fork.origin} again up to {episode.fork.at}"), style="dim")
    by_id = {action.id: action for action in episode.actions}
    shown = [t.observation.whole for t in episode.transitions] or [episode.task.prompt]
    for number in range(max(len(shown), 1 + max((action.step for action in episode.actions), default=0))):
        if number < len(shown):
            yield _panel(shown[number], "the environment shows")
        for action in episode.actions:
            if action.step == number and agent in ("", action.agent):
                yield from _acted(action, by_id, recorded)
        if number < len(episode.transitions) and len(episode.transitions) > 1:
            yield Text(f"  step {number} earns the team {episode.transitions[number].reward:g}", style="dim")
    yield from outcome_of(episode)


def history(attempts: Sequence[tuple[int, Episode]], recorded: Recorded) -> Iterator[RenderableType]:
    """Yield one task's attempts step by step, and the difference between its first and last answer."""
    table = Table(box=None, pad_edge=False)
    for heading in ("step", "sample", "reward", "", "answer"):
        table.add_column(heading, justify="right" if heading in ("step", "sample", "reward") else "left")
    for step, episode in attempts:
        said, style = SUCCESS[episode.success] if episode.scored else (one_line(episode.status), "red")
        answer = cut(one_line(answer_of(episode, recorded.answering)), ANSWER_SHOWN)
        reward = f"{episode.total_reward:g}" if episode.scored else ""
        table.add_row(str(step), str(episode.sample), reward, Text(said, style=style), Text(answer))
    yield in_bold(one_line(attempts[0][1].task.id))
    yield _panel(attempts[0][1].task.prompt, "the task")
    yield table
    compared = [(step, episode) for step, episode in attempts if episode.scored] or attempts
    (first, before), (last, _) = compared[0], compared[-1]
    if first == last:
        yield Text(f"step {first} alone has an answer of it, so there is nothing to compare", style="dim")
        return
    after = next(episode for step, episode in compared if step == last)
    answers = [answer_of(episode, recorded.answering) for episode in (before, after)]
    names = (f"step {first} #{before.sample}", f"step {last} #{after.sample}")
    lines = difference(answers[0], answers[1], names)
    yield Text("")
    yield from (Text(visible(line), style=COLOURS.get(line[:1], "")) for line in lines)
    if not lines:
        yield Text(f"{names[0]} and {names[1]} answered the same", style="dim")
    reasons = dropped([episode for _, episode in attempts])
    yield from (Text(f"{number} × {reason}", style="red") for reason, number in reasons)


def _acted(action: Action, by_id: dict[str, Action], recorded: Recorded) -> Iterator[RenderableType]:
    known = known_tokens(action, by_id)
    prompt = recorded.prompt(action, known)
    remembers = f", and remembers {known:,} up to {action.continues[-1]}" if known else ""
    if action.restarted:
        kept = f"remembers {', '.join(action.continues)}" if action.continues else "remembers nothing"
        yield Text(visible(f"  {action.agent} {kept}, and its prompt begins anew: {action.restarted}"), style="dim")
    if prompt is not None:
        left_out = f", {action.truncated_tokens:,} more were cut" if action.truncated_tokens else ""
        new = len(action.prompt) - known
        yield _panel(prompt, f"{action.agent} sees {new:,} tokens{remembers}{left_out}", "dim")
    else:
        for seen in (seen for seen in newly_seen(action, by_id) if seen not in action.continues):
            text = by_id[seen].text if seen in by_id else "(not recorded)"
            yield Text(visible(f"  {action.agent} reads of {seen}: {text}"), style="dim")
    yield from _turns_before(action)
    chose = f"chooses {action.choice.chosen + 1} of {len(action.choice.options)}" if action.choice else "says"
    ended = ", cut at its limit" if action.finish == "length" else ""
    yield _panel(action.text, f"{action.id} {chose}, {len(action.tokens):,} tokens{ended}")


def _turns_before(action: Action) -> Iterator[RenderableType]:
    """Yield earlier turns, tool replies, and points where the chat was rendered again."""
    anew = {restart.turns: restart for restart in action.restarts}
    for number in range(len(action.intermediate_texts) + 1):
        if number in anew:
            tokens, reason = len(anew[number].context), anew[number].reason
            yield Text(visible(f"  {action.agent} goes on from its chat, rendered anew to {tokens:,} tokens: {reason}"))
        for text in action.intermediate_texts[number : number + 1]:
            yield _panel(text, f"{action.id} says before it uses tools")
        for call in (call for call in action.calls if call.round == number):
            used = f"  {action.agent} uses {call.name or '(an unreadable call)'} {call.arguments} → {call.output}"
            yield Text(visible(used), style="red" if call.error else "dim")


def _panel(text: str, title: str, style: str = "") -> Panel:
    return Panel(Text(visible(text), style=style), title=Text(one_line(title)), title_align="left", expand=False)


def know(agent: str, episodes: Sequence[Episode]) -> None:
    """Check that an agent acted in some episode; "" is always valid.

    Raises:
        ValueError: no agent with this role acted in the episodes.
    """
    roles = {action.agent for episode in episodes for action in episode.actions}
    if agent and agent not in roles:
        raise ValueError(f"--agent: nobody called {agent!r} acted here{did_you_mean(agent, roles)}")


def say_dropped(console: Console, episodes: Sequence[Episode]) -> None:
    """Print the reasons for episodes without a score, with counts."""
    reasons = dropped(episodes)
    if reasons:
        total = sum(number for _, number in reasons)
        console.print(Text(f"{total} of {len(episodes)} episodes could not be scored:", style="red"))
        for reason, number in reasons:
            console.print(Text(f"  {number} × {reason}"), soft_wrap=True)
