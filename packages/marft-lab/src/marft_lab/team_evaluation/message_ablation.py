"""Message ablation: no messages, messages of another task, or paraphrased messages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pydantic import SkipValidation

from marft.agents.game import Attempt
from marft.common.errors import EpisodeFailedError, UserError
from marft.common.types import Episode, JointAction, Observation, Task
from marft.config.interfaces.organization import Agents, Organization
from marft.config.plugins import import_object
from marft.config.settings import did_you_mean
from marft.evaluation.evaluate import shuffle_episodes
from marft_lab.team_evaluation.context import ComparisonContext
from marft_lab.team_evaluation.scores import ResultRow
from marft_lab.team_evaluation.variants import BASE, Messages

PART = "ablation"
INSTRUCTIONS = (
    "Say the user's message again in other words. Keep every number, name and fact as it is. Add nothing, answer "
    "nothing, and write the new message alone."
)
DONE_MESSAGE = "the messages are paraphrased, and nothing is graded"
STREAM = "test/worth/paraphrase"
MAX_EXAMPLES = 6  # maximum pairs on the page
Paraphrases = Mapping[tuple[str, str], str]  # by role and message
RoleTexts = Mapping[str, Mapping[str, Sequence[str]]]  # texts by role and task


class ParaphraseTeam(Organization):
    """Organization whose single agent paraphrases given texts one by one, and then ends the episode without a score.

    Args:
        role: role of the agent.
        texts: texts by task.
        task: id of the current task.
    """

    role: str
    texts: SkipValidation[Mapping[str, Sequence[str]]]
    task: str = ""

    def open(self, task: Task, seed: int) -> ParaphraseTeam:  # noqa: ARG002
        """Return the organization for a task."""
        return self.model_copy(update={"task": task.id})

    def close(self) -> None:
        """No-op: the organization holds no resources."""

    async def act(self, observation: Observation, agents: Agents) -> JointAction:  # noqa: ARG002
        """Request one paraphrase per text, and then fail the episode on purpose."""
        for text in self.texts[self.task]:
            await agents[self.role](Observation(text))
        raise EpisodeFailedError("failed", DONE_MESSAGE)


def paraphrase_messages(context: ComparisonContext) -> tuple[Paraphrases, list[tuple[str, str]]]:
    """Paraphrase every message that another agent read in the team's episodes.

    Returns:
        The paraphrases by role and message, and some changed pairs for the report.

    Raises:
        UserError: unknown policy or function, or a function that returns no text.
    """
    source = context.options.paraphrase
    if not source:
        context.note(PART, "messages are not paraphrased: name who does it (--paraphrase)")
        return {}, []
    if source == BASE and _uses_tiny_model(context):
        context.note(PART, "the bundled tiny model cannot paraphrase: name a function (--paraphrase module:function)")
        return {}, []
    texts = collect_messages(context)
    if callable(source) or ":" in source:
        paraphrases = paraphrase_by_function(source if callable(source) else import_object(source), texts)
    else:
        paraphrases = _paraphrase_by_model(context, source, texts)
    changed = [(text, paraphrases[role, text]) for role, text in paraphrases if paraphrases[role, text] != text]
    return paraphrases, changed[:MAX_EXAMPLES]


def collect_messages(context: ComparisonContext) -> dict[str, dict[str, list[str]]]:
    """Return the distinct messages of the roles in ``context.read_roles``, by role and task."""
    by_role: dict[str, dict[str, list[str]]] = {}
    for episode in context.episodes:
        for action in episode.actions:
            if action.agent in context.read_roles and action.message.strip():
                texts = by_role.setdefault(action.agent, {}).setdefault(episode.task.id, [])
                if action.message not in texts:
                    texts.append(action.message)
    return by_role


def paraphrase_by_function(function: Callable[[str], str], role_texts: RoleTexts) -> dict[tuple[str, str], str]:
    """Return the paraphrases of a custom function, by role and message.

    Raises:
        UserError: ``function`` is not callable, or returns no text.
    """
    if not callable(function):
        raise UserError(f"paraphrase: {function!r} cannot be called; give a function of a text that returns one")
    paraphrases: dict[tuple[str, str], str] = {}
    for role, tasks in role_texts.items():
        for text in dict.fromkeys(text for texts in tasks.values() for text in texts):
            paraphrase: object = function(text)
            if not isinstance(paraphrase, str):
                raise UserError(f"paraphrase: it made a {type(paraphrase).__name__} of {text[:80]!r}, not a text")
            paraphrases[role, text] = paraphrase
    return paraphrases


def _paraphrase_by_model(context: ComparisonContext, source: str, role_texts: RoleTexts) -> dict[tuple[str, str], str]:
    """Return the paraphrases of a model: the base of each agent's policy, or a named policy."""
    if source != BASE and source not in context.run.policies:
        names = [BASE, *context.run.policies]
        raise UserError(
            f"paraphrase: {source!r} is no policy of the recipe{did_you_mean(source, names)}; give one of "
            f"{', '.join(names)}, or module:function"
        )
    weights = dict.fromkeys(context.variant.weights, BASE) if source == BASE else context.variant.weights
    paraphrases: dict[tuple[str, str], str] = {}
    for role, tasks in role_texts.items():
        agent = context.player.rollouts.team.agent(role)
        profile = replace(agent.profile, instructions=INSTRUCTIONS, guidance="", tools=())
        policy = agent.policy if source == BASE else source
        sampling = replace(agent.sampling, stop=(), grammar=None)
        writer = replace(agent, profile=profile, policy=policy, memory="none", sampling=sampling)
        agents = tuple(writer if member.role == role else member for member in context.player.rollouts.team.agents)
        team = replace(context.player.rollouts.team, agents=agents, organization=ParaphraseTeam(role=role, texts=tasks))
        attempts = [Attempt(task, f"{STREAM}/{role}") for task in context.player.tasks if task.id in tasks]
        context.expect(f"{PART} paraphrase {role}", len(attempts))
        for episode in context.player.play_team(weights, attempts, team, [INSTRUCTIONS, role, policy, tasks]):
            for text, action in zip(tasks[episode.task.id], episode.actions, strict=False):
                paraphrases[role, text] = action.message.strip() or text
            if episode.error != DONE_MESSAGE:
                context.note(PART, f"{role}: messages of {episode.task.id} stay as they are: {episode.error}")
    return paraphrases


def _uses_tiny_model(context: ComparisonContext) -> bool:
    return any(
        context.run.models[context.run.policies[policy].model].path == "tiny"
        for policy in context.policy_by_role.values()
    )


def run_message_ablation(context: ComparisonContext) -> tuple[list[ResultRow], list[tuple[str, str]]]:
    """Compare the team with missing, exchanged or paraphrased messages.

    Returns:
        The rows of all variants, and some messages with their paraphrases.
    """
    if context.run.team.writes_prompts:
        context.note(PART, "the team is a program, which passes messages on itself: they cannot be changed")
        return [], []
    if not context.read_roles:
        context.note(PART, "nobody reads anything of anybody else: there are no messages to change")
        return [], []
    variants = {"silence": replace(context.variant, muted_roles=tuple(context.roles))}
    has_several = len(context.read_roles) > 1
    if len(context.player.tasks) > 1:
        donors = assign_donors(context.episodes, context.run.seed)
        variants["shuffled"] = replace(context.variant, messages=donor_messages(donors, context.read_roles))
        for role in context.read_roles if has_several else ():
            variants[f"{role} shuffled"] = replace(context.variant, messages=donor_messages(donors, [role]))
    else:
        context.note(PART, "messages of another task need two tasks")
    paraphrases, examples = paraphrase_messages(context)
    for role in context.read_roles if paraphrases else ():
        variants[f"{role} paraphrased"] = replace(
            context.variant, messages=replace_messages(context.episodes, role, paraphrases)
        )
    return context.build_rows(PART, variants), examples


def assign_donors(episodes: Sequence[Episode], seed: int) -> dict[tuple[str, int], Episode]:
    """Return a donor episode of another task for each episode, by task and sample.

    Each donor is used once: the donors form a random cycle over each sample's episodes.
    """
    donors: dict[tuple[str, int], Episode] = {}
    for sample in sorted({episode.sample for episode in episodes}):
        sample_episodes = [episode for episode in episodes if episode.sample == sample]
        for episode, donor in zip(sample_episodes, shuffle_episodes(sample_episodes, seed + sample), strict=True):
            donors[episode.task.id, sample] = donor
    return donors


def donor_messages(donors: Mapping[tuple[str, int], Episode], roles: Sequence[str]) -> Messages:
    """Return donor episodes' messages from given roles."""
    return {
        key: {action.id: action.message for action in donor.actions if action.agent in roles}
        for key, donor in donors.items()
    }


def replace_messages(episodes: Sequence[Episode], role: str, replacements: Mapping[tuple[str, str], str]) -> Messages:
    """Return an agent's messages with replacements.

    Args:
        episodes: episodes of the team.
        role: role of the agent.
        replacements: replacement by role and message.
    """
    return {
        (episode.task.id, episode.sample): {
            action.id: replacements[role, action.message]
            for action in episode.actions
            if action.agent == role and (role, action.message) in replacements
        }
        for episode in episodes
    }
