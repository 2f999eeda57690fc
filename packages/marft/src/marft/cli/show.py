"""``marft show``: recorded episodes in the terminal, without the run's data, rewards or models.

``--follow`` shows episodes as a run records them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import cast

from rich.console import Console, RenderableType
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from marft.cli.console import INTERRUPTED, bold, wide_console
from marft.cli.errors import open_run_for_command
from marft.common.errors import UserError
from marft.common.texts import sanitize, single_line, truncate
from marft.common.types import Action, Episode
from marft.config.settings import did_you_mean
from marft.evaluation.transcripts import (
    Order,
    PromptDecoder,
    count_failure_reasons,
    count_known_tokens,
    diff_texts,
    extract_answer,
    find_new_actions,
    read_task_episodes,
    read_task_history,
    select_attempts,
    sort_episodes,
)
from marft.rewards.shaping import local_rewards
from marft.runs.episode_files import list_serve_recordings
from marft.runs.run_folder import RunFolder, parse_step

SUCCESS_LABELS = {True: ("solved", "green"), False: ("not solved", "red"), None: ("success unknown", "dim")}

MAX_ANSWER_LENGTH = 80  # maximum length of an answer in a table, in characters
DIFF_COLORS = {"+": "green", "-": "red", "@": "cyan"}  # colors of lines in a diff

POLL_SECONDS = 0.5  # seconds between two scans of the folder


def render_outcome(episode: Episode) -> Iterator[RenderableType]:
    """Yield a line with the rewards, a table of reward terms, and the error."""
    if episode.is_scored and not episode.transitions:
        yield Text(f"{episode.status}: not graded", style="dim")
        return
    rewards = "".join(f", {single_line(role)} {reward:g}" for role, reward in local_rewards(episode).items())
    if episode.is_scored:
        text = f"{episode.status}: reward {episode.total_reward:g}{rewards} "
        yield Text.assemble(text, SUCCESS_LABELS[episode.success])
    else:
        yield Text(f"{episode.status}: not scored")
    terms = sum_terms(episode)
    if terms:
        yield terms_table(terms)
    if episode.error:
        yield Text(sanitize(episode.error), style="red")


def sum_terms(episode: Episode) -> dict[str, dict[str, float]]:
    """Return weighted totals over the episode for each reward term: for the team (``""``) and by agent."""
    totals: dict[str, dict[str, float]] = {}
    for transition in episode.transitions:
        for name, share in transition.terms.items():
            term, _, agent = name.partition("/")
            term_totals = totals.setdefault(term, {})
            term_totals[agent] = term_totals.get(agent, 0.0) + share
    return totals


def terms_table(terms: Mapping[str, Mapping[str, float]]) -> Table:
    """Return a table with one reward term per row, and a column per recipient."""
    table = Table(box=None, pad_edge=False)
    recipients = ["", *dict.fromkeys(agent for shares in terms.values() for agent in shares if agent)]
    for heading in ("reward term", *(agent or "team" for agent in recipients)):
        table.add_column(Text(single_line(heading)), justify="left" if heading == "reward term" else "right")
    for term, shares in terms.items():
        cells = (f"{shares[agent]:+g}" if agent in shares else "" for agent in recipients)
        table.add_row(Text(single_line(term)), *map(Text, cells))
    return table


def show_episodes(path: Path, step: int | None, agent: str, task: str, sort_orders: Sequence[str], count: int) -> None:
    """``marft show``.

    Raises:
        UserError: the run, step, task or agent does not exist, or options conflict.
    """
    if len(sort_orders) > 1:
        raise UserError(f"--{sort_orders[0]} and --{sort_orders[1]} exclude each other; give one")
    console, sessions = wide_console(), list_serve_recordings(path)
    if sessions:
        for item in render_sessions(sessions, step, agent, task, sort_orders, count):
            console.print(item)
        return
    folder = open_run_for_command(path)
    recorded = PromptDecoder(folder.config_path)
    if task and step is None:
        if agent or sort_orders:
            raise UserError(
                "--task without --step shows every step; give --step with --agent, --worst, --best, --failed"
            )
        for item in render_history(read_task_history(folder, task), recorded):
            console.print(item)
        return
    file = folder.find_recorded(step or 0)
    episodes = select_attempts(read_task_episodes(file, task), task)
    if task and not episodes:
        raise UserError(
            f"step {parse_step(file)} recorded no episode of task {task!r}; without --step all are looked at"
        )
    check_agent(agent, episodes)
    order = cast("Order", sort_orders[0] if sort_orders else "")
    chosen = sort_episodes(episodes, order)[:count]
    console.print(f"step {parse_step(file)}: {len(chosen)} of {len(episodes)} episodes", "")
    for episode in chosen:
        for item in render_transcript(episode, agent, recorded):
            console.print(item)
        console.print("")
    print_dropped(console, episodes)


def render_sessions(
    files: Sequence[Path], step: int | None, agent: str, task: str, sort_orders: Sequence[str], count: int
) -> Iterator[RenderableType]:
    """Yield the latest recorded sessions from a served team.

    Raises:
        UserError: no session matches, or an option does not apply to sessions.
    """
    if step is not None or set(sort_orders) - {"failed"}:
        raise UserError("sessions that were served have no steps and no grade; leave out --step, --worst, --best")
    episodes = [episode for file in files for episode in read_task_episodes(file, task)]
    if not episodes:
        raise UserError(f"no session is called {task!r}" if task else "no session was recorded")
    check_agent(agent, episodes)
    chosen = sort_episodes(episodes, "failed" if sort_orders else "")[-count:]
    yield bold(f"{len(chosen)} of {len(episodes)} sessions")
    for episode in chosen:
        yield from render_transcript(episode, agent, PromptDecoder(files[0].parent / "config.toml"))
        yield Text("")


def render_transcript(episode: Episode, agent: str, recorded: PromptDecoder) -> Iterator[RenderableType]:
    """Yield the transcript, for all agents or one.

    Args:
        agent: role to show; "": all.
    """
    yield bold(single_line(episode.name))
    if episode.fork:
        yield Text(single_line(f"plays {episode.fork.origin} again up to {episode.fork.at}"), style="dim")
    by_id = {action.id: action for action in episode.actions}
    observations = [t.observation.full_text for t in episode.transitions] or [episode.task.prompt]
    for number in range(max(len(observations), 1 + max((action.step for action in episode.actions), default=0))):
        if number < len(observations):
            yield _panel(observations[number], "the environment shows")
        for action in episode.actions:
            if action.step == number and agent in ("", action.agent):
                yield from _render_action(action, by_id, recorded)
        if number < len(episode.transitions) and len(episode.transitions) > 1:
            yield Text(f"  step {number} earns the team {episode.transitions[number].reward:g}", style="dim")
    yield from render_outcome(episode)


def render_history(attempts: Sequence[tuple[int, Episode]], recorded: PromptDecoder) -> Iterator[RenderableType]:
    """Yield one task's attempts step by step, and the difference between its first and last answer."""
    table = Table(box=None, pad_edge=False)
    for heading in ("step", "sample", "reward", "", "answer"):
        table.add_column(heading, justify="right" if heading in ("step", "sample", "reward") else "left")
    for step, episode in attempts:
        label, style = SUCCESS_LABELS[episode.success] if episode.is_scored else (single_line(episode.status), "red")
        answer = truncate(single_line(extract_answer(episode, recorded.answer_roles)), MAX_ANSWER_LENGTH)
        reward = f"{episode.total_reward:g}" if episode.is_scored else ""
        table.add_row(str(step), str(episode.sample), reward, Text(label, style=style), Text(answer))
    yield bold(single_line(attempts[0][1].task.id))
    yield _panel(attempts[0][1].task.prompt, "the task")
    yield table
    scored = [(step, episode) for step, episode in attempts if episode.is_scored] or attempts
    (first, before), (last, _) = scored[0], scored[-1]
    if first == last:
        yield Text(f"step {first} alone has an answer of it, so there is nothing to compare", style="dim")
        return
    after = next(episode for step, episode in scored if step == last)
    answers = [extract_answer(episode, recorded.answer_roles) for episode in (before, after)]
    names = (f"step {first} #{before.sample}", f"step {last} #{after.sample}")
    lines = diff_texts(answers[0], answers[1], names)
    yield Text("")
    yield from (Text(sanitize(line), style=DIFF_COLORS.get(line[:1], "")) for line in lines)
    if not lines:
        yield Text(f"{names[0]} and {names[1]} answered the same", style="dim")
    reasons = count_failure_reasons([episode for _, episode in attempts])
    yield from (Text(f"{number} × {reason}", style="red") for reason, number in reasons)


def _render_action(action: Action, by_id: dict[str, Action], recorded: PromptDecoder) -> Iterator[RenderableType]:
    known_count = count_known_tokens(action, by_id)
    prompt = recorded.decode_prompt(action, known_count)
    memory_note = f", and remembers {known_count:,} up to {action.continues[-1]}" if known_count else ""
    if action.restarted:
        kept_note = f"remembers {', '.join(action.continues)}" if action.continues else "remembers nothing"
        yield Text(
            sanitize(f"  {action.agent} {kept_note}, and its prompt begins anew: {action.restarted}"), style="dim"
        )
    if prompt is not None:
        truncation_note = f", {action.truncated_tokens:,} more were cut" if action.truncated_tokens else ""
        new_count = len(action.prompt) - known_count
        yield _panel(prompt, f"{action.agent} sees {new_count:,} tokens{memory_note}{truncation_note}", "dim")
    else:
        for seen in (seen for seen in find_new_actions(action, by_id) if seen not in action.continues):
            text = by_id[seen].text if seen in by_id else "(not recorded)"
            yield Text(sanitize(f"  {action.agent} reads of {seen}: {text}"), style="dim")
    yield from _render_earlier_turns(action)
    verb = f"chooses {action.choice.chosen + 1} of {len(action.choice.options)}" if action.choice else "says"
    cut_note = ", cut at its limit" if action.finish == "length" else ""
    yield _panel(action.text, f"{action.id} {verb}, {len(action.tokens):,} tokens{cut_note}")


def _render_earlier_turns(action: Action) -> Iterator[RenderableType]:
    """Yield earlier turns, tool replies, and points where the chat was rendered again."""
    reset_by_turn = {reset.turns: reset for reset in action.restarts}
    for number in range(len(action.intermediate_texts) + 1):
        if number in reset_by_turn:
            tokens, reason = len(reset_by_turn[number].context), reset_by_turn[number].reason
            yield Text(
                sanitize(f"  {action.agent} goes on from its chat, rendered anew to {tokens:,} tokens: {reason}")
            )
        for text in action.intermediate_texts[number : number + 1]:
            yield _panel(text, f"{action.id} says before it uses tools")
        for call in (call for call in action.calls if call.round == number):
            tool_line = f"  {action.agent} uses {call.name or '(an unreadable call)'} {call.arguments} → {call.output}"
            yield Text(sanitize(tool_line), style="red" if call.error else "dim")


def _panel(text: str, title: str, style: str = "") -> Panel:
    return Panel(Text(sanitize(text), style=style), title=Text(single_line(title)), title_align="left", expand=False)


def check_agent(agent: str, episodes: Sequence[Episode]) -> None:
    """Check that an agent acted in some episode; "" is always valid.

    Raises:
        UserError: no agent with this role acted in the episodes.
    """
    roles = {action.agent for episode in episodes for action in episode.actions}
    if agent and agent not in roles:
        raise UserError(f"--agent: nobody called {agent!r} acted here{did_you_mean(agent, roles)}")


def print_dropped(console: Console, episodes: Sequence[Episode]) -> None:
    """Print the reasons for episodes without a score, with counts."""
    reasons = count_failure_reasons(episodes)
    if reasons:
        total = sum(number for _, number in reasons)
        console.print(Text(f"{total} of {len(episodes)} episodes could not be scored:", style="red"))
        for reason, number in reasons:
            console.print(Text(f"  {number} × {reason}"), soft_wrap=True)


def follow_run(path: Path, step: int | None, agent: str, task: str, sort_orders: Sequence[str], count: int) -> None:
    """Show episodes from the last recorded step on, until training ends.

    Raises:
        UserError: the run or agent does not exist, or an option excludes ``--follow``.
        SystemExit: Ctrl-C.
    """
    if step is not None or task or len(sort_orders) > 1:
        raise UserError("--follow shows every step as it comes; it goes with --agent, --count, and one of --worst, …")
    order = cast("Order", sort_orders[0] if sort_orders else "")
    folder, console = open_run_for_command(path), wide_console()
    recorded = PromptDecoder(folder.config_path)
    try:
        for file in _new_files(folder):
            episodes = read_task_episodes(file, "")
            check_agent(agent, episodes)
            console.rule(Text(f"step {parse_step(file)}"), align="left")
            for episode in sort_episodes(episodes, order)[:count]:
                for item in render_transcript(episode, agent, recorded):
                    console.print(item)
                console.print("")
            print_dropped(console, episodes)
    except KeyboardInterrupt:
        raise SystemExit(INTERRUPTED) from None
    console.print(f"nobody trains {folder.path} now")


def _new_files(folder: RunFolder) -> Iterator[Path]:
    """Yield new episode files, beginning with the last existing file."""
    last = parse_step(steps[-1]) - 1 if (steps := folder.recorded_steps()) else 0
    while True:
        running = folder.is_in_use()  # checked first, so that files recorded just before the end are still shown
        for file in folder.recorded_steps():
            if parse_step(file) > last:
                last = parse_step(file)
                yield file
        if not running:
            return
        time.sleep(POLL_SECONDS)
