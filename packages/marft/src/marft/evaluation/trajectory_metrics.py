"""Joint-trajectory metrics: pure functions of an episode, by their names in the catalog."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import pairwise

from marft.common.types import Action, Episode, StepInfo
from marft.evaluation.ratios import TEAM, Ratio, RatioFunction, Ratios, sum_amounts, sum_by_agent, team_ratio

MAX_ROUND_TRIPS = 2  # maximum number of round trips without a loop
QUESTION = re.compile(r"[^.!?\n]*\?")
WORD = re.compile(r"\w+")
FUNCTION_WORDS = frozenset(
    WORD.findall(
        """a about again also am an and any anyone are as at be been but by can could did do does done for from get give
        had has have he her here him his how i if in into is it its just know let like may maybe me might mine more must
        my need no not now of off ok okay on one or our out over please say says said she should shall so some tell than
        thank thanks that the their them then there these they this those to too up us use was we were what whatever
        when where whether which who whom whose why will with would yes you your"""
    )
)  # English words that occur in questions but name nothing


def accuracy(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return 1 if the task was solved and 0 if not; absent if success is unknown."""
    return team_ratio(None if episode.success is None else float(episode.success))


def reward(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``Σ_t r_t``, the team reward over all environment steps."""
    return team_ratio(episode.total_reward)


def goal_progress(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``p_T``, the last declared progress."""
    declared = _declared_progress(episode)
    return team_ratio(declared[-1] if declared else None)


def trajectory_score(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``(1/T) Σ_t p_t``, the mean declared progress over ``T`` steps.

    Late or temporary progress lowers this score. Goal progress depends on the end alone.
    """
    declared = _declared_progress(episode)
    return team_ratio(sum(declared) / len(declared) if declared else None)


def _declared_progress(episode: Episode) -> list[float]:
    """Return the declared progress values in step order."""
    progress = (transition.declared.progress for transition in episode.transitions)
    return [share for share in progress if share is not None]


def step_efficiency(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``S · L / max(L, T)`` (SPL: Anderson et al. 2018, eq. 1).

    ``S`` is 1 if the task was solved, else 0. ``L`` is the minimum number of steps for the task, as declared last.
    ``T`` is the number of environment steps in the episode.
    """
    declared = (transition.declared.fewest_steps for transition in reversed(episode.transitions))
    min_steps = next((steps for steps in declared if steps is not None), None)
    if min_steps is None or episode.success is None:
        return {}
    return team_ratio(episode.success * min_steps / max(min_steps, len(episode.transitions)))


def get_step_info(episode: Episode, action: Action) -> StepInfo:
    """Return the declarations for an action's environment step; empty if the step did not finish."""
    return episode.transitions[action.step].declared if action.step < len(episode.transitions) else StepInfo()


def tool_error_rate(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``failed / calls``, the share of failed or unparsable tool calls."""
    return sum_by_agent(episode.actions, lambda action: (sum(call.error for call in action.calls), len(action.calls)))


def tool_selection_accuracy(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``correct_tools / calls``, the share of calls to a right tool.

    It covers calls that name a tool, in steps with declared ``StepInfo.right_tools``. Failed calls count, because the
    tool was chosen. Missing calls do not count.
    """

    def count_correct(action: Action) -> tuple[float, float]:
        correct_tools = get_step_info(episode, action).right_tools if action.calls else None
        if correct_tools is None:
            return 0.0, 0.0
        names = [call.name for call in action.calls if call.name]
        return sum(name in correct_tools for name in names), len(names)

    return sum_by_agent(episode.actions, count_correct)


def role_adherence(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``count_allowed / actions``, the share of actions that call only allowed tools.

    Only actions of roles with declared tools count.
    """

    def count_allowed(action: Action) -> tuple[float, float]:
        allowed = get_step_info(episode, action).allowed_tools
        if allowed is None or action.agent not in allowed:
            return 0.0, 0.0
        allowed_names = allowed[action.agent]
        return all(call.name in allowed_names for call in action.calls if call.name), 1.0

    return sum_by_agent(episode.actions, count_allowed)


def iter_handoffs(episode: Episode) -> Iterator[list[str]]:
    """Yield the sequences of agents in control.

    An agent hands over to the next agent of the same environment step if that agent saw its action.
    """
    control: list[str] = []
    for before, after in pairwise(episode.actions):
        control = control or [before.agent]
        if before.step != after.step or before.id not in after.sees:
            yield control
            control = []
        elif before.agent != after.agent:
            control.append(after.agent)
    if control:
        yield control


def find_loops(control: Sequence[str]) -> set[str]:
    """Return the agents in handoff loops: ``a → b → a`` more than twice in a row.

    >>> sorted(find_loops("abababa")), find_loops("ababab"), find_loops("abacabacaba")
    (['a', 'b'], set(), set())
    """
    agents, start = set[str](), 0
    for index in range(2, len(control) + 1):
        if index == len(control) or control[index] != control[index - 2]:
            if (index - start - 1) // 2 > MAX_ROUND_TRIPS:
                agents |= {control[start], control[start + 1]}
            start = index - 1
    return agents


def handoff_loop_rate(episode: Episode, roles: Sequence[str]) -> Ratios:
    """Return ``looping / episodes``, the share of episodes with a handoff loop.

    Two agents form a loop if they pass control back and forth more than twice within one environment step. For an
    agent, only loops that include it count.
    """
    loop_agents = set[str]().union(*map(find_loops, iter_handoffs(episode)))
    return {TEAM: Ratio(float(bool(loop_agents))), **{role: Ratio(float(role in loop_agents)) for role in roles}}


@lru_cache(256)  # a message has many readers
def content_words(text: str) -> frozenset[str]:
    """Return the content words of a text, without English function words.

    >>> sorted(content_words("Which port does the server use?"))
    ['port', 'server']
    """
    return frozenset(WORD.findall(text.casefold())) - FUNCTION_WORDS


def repeats_question(text: str, messages: Iterable[str], observation: str = "") -> bool:
    """Return True if a message covers the content words in one of the text's questions.

    >>> repeats_question("Which port?", ["The port is 8080."]), repeats_question("Which host?", ["The port is 8080."])
    (True, False)

    Args:
        messages: messages of other agents that the author has read.
        observation: text shown by the environment; a question in it counts as quoted, not as asked.
    """
    questions = [question.strip() for question in QUESTION.findall(text)]
    question_words = [
        words for question in questions if question not in observation and (words := content_words(question))
    ]
    return any(words <= message_words for message_words in map(content_words, messages) for words in question_words)


def re_ask_rate(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``asking again / receiving``, the share of receiving actions with a repeated question.

    An action is receiving if its agent has read a message of another agent. It asks again if all content words of one
    of its questions are in one such message. The check is lexical: a paraphrased question is not detected.
    """
    by_id: Mapping[str, Action] = {action.id: action for action in episode.actions}

    def count_repeats(action: Action) -> tuple[float, float]:
        senders = [by_id[seen] for seen in action.sees if by_id[seen].agent != action.agent]
        if not senders:
            return 0.0, 0.0
        if "?" not in action.message:
            return 0.0, 1.0
        step = action.step
        observation = (
            episode.transitions[step].observation.for_role(action.agent) if step < len(episode.transitions) else ""
        )
        return repeats_question(action.message, (sender.message for sender in senders), observation), 1.0

    return sum_by_agent(episode.actions, count_repeats)


def message_tokens(episode: Episode, roles: Sequence[str]) -> Ratios:
    """Return ``Σ_a Σ_{b ∈ sees(a)} tokens``, the message tokens that agents read.

    For an agent, it counts the tokens of its messages that others read.
    """
    owners = {action.id: action.agent for action in episode.actions}
    amounts = (
        (owners[seen], float(tokens))
        for action in episode.actions
        for seen, tokens in zip(action.sees, action.message_tokens, strict=True)
    )
    return sum_amounts(amounts, roles)


def cost_tokens(episode: Episode, roles: Sequence[str]) -> Ratios:
    """Return ``Σ_a |prompt_a| + |tokens_a|``, all tokens read and written.

    A prompt counts again for each action that includes it.
    """
    return sum_amounts(((a.agent, float(len(a.prompt) + len(a.tokens))) for a in episode.actions), roles)


def cost_seconds(episode: Episode, roles: Sequence[str]) -> Ratios:
    """Return ``Σ_a ended_a − started_a``, the busy seconds of agents with waits for the engine and tools."""
    return sum_amounts(((a.agent, a.ended - a.started) for a in episode.actions), roles)


def cost_money(episode: Episode, roles: Sequence[str]) -> Ratios:
    """Return ``Σ_a cost_a``, the endpoint costs of completed actions, at the recipe's prices."""
    return sum_amounts(((a.agent, a.usage.cost) for a in episode.actions if a.usage), roles)


def critical_path_seconds(episode: Episode, _: Sequence[str]) -> Ratios:
    """Return ``Σ_t max_{a in step t} L(a)``, the longest chain of dependent actions in seconds.

    ``L(a) = ended_a − started_a + max_b L(b)`` over the actions ``b`` of the step that ``a`` has seen or continues.
    Environment steps are sequential. Time spent by the environment itself is not included.
    """
    steps: dict[int, dict[str, float]] = {}  # L, by step and action ID
    for action in episode.actions:
        path_seconds = steps.setdefault(action.step, {})
        waited = max((path_seconds[b] for b in (*action.sees, *action.continues) if b in path_seconds), default=0.0)
        path_seconds[action.id] = action.ended - action.started + waited
    return team_ratio(sum(max(longest.values()) for longest in steps.values()))


METRICS: Mapping[str, RatioFunction] = {
    measure.__name__: measure
    for measure in (
        accuracy, reward, goal_progress, trajectory_score, step_efficiency, tool_selection_accuracy, tool_error_rate,
        handoff_loop_rate, re_ask_rate, role_adherence, message_tokens, cost_tokens, cost_seconds, cost_money,
        critical_path_seconds,
    )
}  # fmt: skip


def compute_ratios(episode: Episode, roles: Sequence[str]) -> dict[str, Ratio]:
    """Return every metric of an episode by its name in ``metrics.jsonl``, for the team and under ``agents/<role>/``."""
    return {
        (name if role == TEAM else f"agents/{role}/{name}"): ratio
        for name, measure in METRICS.items()
        for role, ratio in measure(episode, roles).items()
    }


def trajectory_metrics(episodes: Iterable[Episode], roles: Sequence[str]) -> dict[str, float]:
    """Return trajectory metrics for an episode batch."""
    return aggregate_ratios(compute_ratios(episode, roles) for episode in episodes)


def aggregate_ratios(episodes: Iterable[Mapping[str, Ratio]]) -> dict[str, float]:
    """Aggregate each metric over several episodes, ``Σ numerator / Σ denominator``.

    A metric with a denominator of 0 is absent.
    """
    parts: dict[str, list[Ratio]] = {}
    for episode in episodes:
        for name, ratio in episode.items():
            parts.setdefault(name, []).append(ratio)
    totals = {name: Ratio.total(ratios).value for name, ratios in parts.items()}
    return {name: value for name, value in totals.items() if value is not None}
