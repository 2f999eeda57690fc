"""Paraphrased messages, from the untuned base, a policy of the recipe, or a custom function."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from marft.agents.agents import Agents
from marft.agents.game import Attempt
from marft.common.errors import EpisodeFailedError
from marft.common.types import JointAction, Observation, Task
from marft.config.plugins import import_path
from marft.config.settings import did_you_mean
from marft_lab.team_worth.arms import BASE
from marft_lab.team_worth.bench import Bench

PART = "ablation"
INSTRUCTIONS = (
    "Say the user's message again in other words. Keep every number, name and fact as it is. Add nothing, answer "
    "nothing, and write the new message alone."
)
DONE = "the messages are paraphrased, and nothing is graded"
STREAM = "test/worth/paraphrase"
SHOWN = 6  # maximum pairs on the page
Words = Mapping[tuple[str, str], str]  # by role and message
Said = Mapping[str, Mapping[str, Sequence[str]]]  # texts by role and task


@dataclass(frozen=True, slots=True)
class Rewriter:
    """Organization whose single agent paraphrases given texts one by one, and then ends the episode without a score.

    Args:
        role: role of the agent.
        texts: texts by task.
        task: id of the current task.
    """

    role: str
    texts: Mapping[str, Sequence[str]]
    task: str = field(default="")

    def opened(self, task: Task, seed: int) -> Rewriter:  # noqa: ARG002
        """Return the organization for a task."""
        return replace(self, task=task.id)

    def close(self) -> None:
        """No-op: the organization holds no resources."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:  # noqa: ARG002
        """Request one paraphrase per text, and then fail the episode on purpose."""
        for text in self.texts[self.task]:
            await agents[self.role](Observation(text))
        raise EpisodeFailedError("failed", DONE)


def paraphrased(bench: Bench) -> tuple[Words, list[tuple[str, str]]]:
    """Paraphrase every message that another agent read in the team's episodes.

    Returns:
        The paraphrases by role and message, and some changed pairs for the report.

    Raises:
        ValueError: unknown policy or function, or a function that returns no text.
    """
    wanted = bench.options.paraphrase
    if not wanted:
        bench.note(PART, "messages are not paraphrased: name who does it (--paraphrase)")
        return {}, []
    if wanted == BASE and _is_tiny(bench):
        bench.note(PART, "the bundled tiny model cannot paraphrase: name a function (--paraphrase module:function)")
        return {}, []
    said = messages(bench)
    if callable(wanted) or ":" in wanted:
        words = by_function(wanted if callable(wanted) else import_path(wanted), said)
    else:
        words = _by_model(bench, wanted, said)
    changed = [(text, words[role, text]) for role, text in words if words[role, text] != text]
    return words, changed[:SHOWN]


def messages(bench: Bench) -> dict[str, dict[str, list[str]]]:
    """Return the distinct messages of the roles in ``bench.heard``, by role and task."""
    found: dict[str, dict[str, list[str]]] = {}
    for episode in bench.episodes:
        for action in episode.actions:
            if action.agent in bench.heard and action.message.strip():
                texts = found.setdefault(action.agent, {}).setdefault(episode.task.id, [])
                texts += [action.message] * (action.message not in texts)
    return found


def by_function(function: Callable[[str], str], said: Said) -> dict[tuple[str, str], str]:
    """Return the paraphrases of a custom function, by role and message.

    Raises:
        ValueError: ``function`` is not callable, or returns no text.
    """
    if not callable(function):
        raise ValueError(f"paraphrase: {function!r} cannot be called; give a function of a text that returns one")
    words: dict[tuple[str, str], str] = {}
    for role, tasks in said.items():
        for text in dict.fromkeys(text for texts in tasks.values() for text in texts):
            made: object = function(text)
            if not isinstance(made, str):
                raise ValueError(f"paraphrase: it made a {type(made).__name__} of {text[:80]!r}, not a text")
            words[role, text] = made
    return words


def _by_model(bench: Bench, wanted: str, said: Said) -> dict[tuple[str, str], str]:
    """Return the paraphrases of a model: the base of each agent's policy, or a named policy."""
    if wanted != BASE and wanted not in bench.run.policies:
        names = [BASE, *bench.run.policies]
        raise ValueError(
            f"paraphrase: {wanted!r} is no policy of the recipe{did_you_mean(wanted, names)}; give one of "
            f"{', '.join(names)}, or module:function"
        )
    weights = dict.fromkeys(bench.arm.weights, BASE) if wanted == BASE else bench.arm.weights
    words: dict[tuple[str, str], str] = {}
    for role, tasks in said.items():
        agent = bench.player.rollouts.team.agent(role)
        profile = replace(agent.profile, instructions=INSTRUCTIONS, guidance="", tools=())
        policy = agent.policy if wanted == BASE else wanted
        sampling = replace(agent.sampling, stop=(), grammar=None)
        writer = replace(agent, profile=profile, policy=policy, memory="none", sampling=sampling)
        agents = tuple(writer if one.role == role else one for one in bench.player.rollouts.team.agents)
        team = replace(bench.player.rollouts.team, agents=agents, organization=Rewriter(role, tasks))
        attempts = [Attempt(task, f"{STREAM}/{role}") for task in bench.player.tasks if task.id in tasks]
        bench.expect(f"{PART} paraphrase {role}", len(attempts))
        for episode in bench.player.with_team(weights, attempts, team, [INSTRUCTIONS, role, policy, tasks]):
            for text, action in zip(tasks[episode.task.id], episode.actions, strict=False):
                words[role, text] = action.message.strip() or text
            if episode.error != DONE:
                bench.note(PART, f"{role}: messages of {episode.task.id} stay as they are: {episode.error}")
    return words


def _is_tiny(bench: Bench) -> bool:
    return any(bench.run.models[bench.run.policies[policy].model].path == "tiny" for policy in bench.policies.values())
