"""Core data types, one per stage.

``Task → Observation → Action → JointAction → Step → Episode → Sample``

All types are frozen and slotted. Token ids are recorded once, when an engine samples them, and reach the learner
unchanged. No later stage tokenizes text again.

Engines on another Python import this module: it needs only NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from marft.common.reasoning import StopString
from marft.common.token_data import (
    Grammar,
    GrammarMasks,
    PromptReset,
    RoutedExperts,
    Segment,
    TokenSource,
    allows_single_token,
    split_segments,
)
from marft.common.usage import Usage

TokenIds = npt.NDArray[np.int32]  # [T]
LogProbs = npt.NDArray[np.float32]  # [T]
FinishReason = Literal["stop", "length"]
MemoryMode = Literal["none", "own"]  # an agent's memory within an episode
Normalization = Literal["none", "tokens", "words"]  # Z, the divisor of a text's log-probability
Status = Literal["terminated", "truncated", "paused", "failed", "timed_out"]


@dataclass(frozen=True, slots=True)
class Observation:
    """Observation at one step: shared ``text`` (o_t) plus a private view per agent (o_t^i).

    An environment may set whose ``turn`` it is, and the ``options`` that each agent chooses from.

    >>> deal = Observation("One card each.", views={"north": "You hold a king."}, turn=("north",))
    >>> deal.for_role("north"), deal.for_role("south")
    ('One card each.\\n\\nYou hold a king.', 'One card each.')
    """

    text: str
    views: Mapping[str, str] = field(default_factory=dict)  # private views by role
    turn: tuple[str, ...] = ()  # roles that act in this step; () leaves the order to the organization
    # allowed answers by role; a role without options writes free text
    options: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def for_role(self, role: str) -> str:
        """Return the shared text and the private view for one agent."""
        return "\n\n".join(part for part in (self.text, self.views.get(role, "")) if part)

    @property
    def full_text(self) -> str:
        """Shared text and all private views, each labeled with its role."""
        views = (f"To {role}:\n{view}" for role, view in self.views.items())
        return "\n\n".join(part for part in (self.text, *views) if part)


class VersionRange(NamedTuple):
    """Lowest and highest policy version that sampled an action's tokens.

    >>> VersionRange(3, 4) | VersionRange(4, 5)
    VersionRange(lowest=3, highest=5)
    """

    lowest: int = 0
    highest: int = 0

    def __or__(self, other: VersionRange) -> VersionRange:
        return VersionRange(min(self.lowest, other.lowest), max(self.highest, other.highest))


class ActionKey(NamedTuple):
    """Unique key for one action in a run: seed of its random stream and key of its groups.

    ``stream`` names the pass that sampled the action (``"train/12"``), so a repeated task samples different tokens.

    >>> ActionKey("train/12", "chain_sum/17", sample=3, step=0, agent="actor", call=0).agent
    'actor'
    """

    stream: str
    task: str
    sample: int
    step: int
    agent: str
    call: int


@dataclass(frozen=True, slots=True)
class Task:
    """One problem from an environment.

    >>> Task("chain_sum/17", "… 23 + 45 - 12 =", data={"answer": "56"}).id
    'chain_sum/17'
    """

    id: str
    prompt: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tool:
    """Tool description for an agent. ``parameters`` is the JSON schema of the arguments.

    >>> Tool("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}}).name
    'add'
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One tool call: the agent's request and the reply.

    ``arguments`` is JSON as the agent wrote it. A call that could not be parsed (it has no name) or that failed has
    ``error`` set. Its ``output`` is then the reason, and the agent reads it.

    >>> ToolCall("add", '{"a": 1, "b": 2}', output="3").output
    '3'
    """

    name: str
    arguments: str = "{}"
    output: str = ""
    error: bool = False
    seconds: float = 0.0
    index: int = 0  # position among the calls of its episode
    round: int = 0  # turn of its action, counted from 0


@dataclass(frozen=True, slots=True)
class AgentProfile:
    """An agent's role: the paper's inst^i.

    ``answers`` marks the agent whose text is the team's answer. ``version`` is the version of learned instructions, and
    0 for the recipe's instructions.
    """

    role: str
    instructions: str = ""
    guidance: str = ""
    answers: bool = False
    tools: tuple[Tool, ...] = ()
    version: int = 0


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Sampling parameters. ``temperature = 0`` is greedy; ``top_p`` and ``top_k`` are off at 1 and 0."""

    temperature: float = 1.0
    max_new_tokens: int = 512
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str | StopString, ...] = ()  # stop strings, and stop strings that count only outside reasoning
    grammar: Grammar | None = None  # format constraint on the text
    alternatives: int = 0  # number of most likely tokens reported for each position
    on_token: Callable[[int], None] | None = field(default=None, compare=False)  # called with each sampled token


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """Rendered rollout observation (ô_t^i): ids, number of truncated tokens, and source chat and tools."""

    ids: TokenIds  # [T]
    truncated_tokens: int = 0
    chat: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """Engine output for one prompt.

    ``tokens`` holds every sampled id, the end-of-turn token included. ``log_probs[j]`` belongs to ``tokens[j]``, at the
    sampling temperature (at temperature 1 for a greedy sample). ``text`` excludes the end-of-turn token and everything
    from a stop string on. ``calls`` are the tool calls, if the engine itself parsed them. ``masks`` are the grammar's
    masks at positions with more than one allowed token. ``forced`` lists the positions with exactly one.
    ``token_versions`` is set if the weights changed between tokens, and the engine knows where.
    """

    tokens: TokenIds  # [T]
    log_probs: LogProbs  # [T]
    text: str
    finish: FinishReason
    versions: VersionRange = VersionRange()
    calls: tuple[ToolCall, ...] | None = None
    usage: Usage | None = None
    masks: GrammarMasks | None = None
    forced: tuple[int, ...] = ()  # positions in ``tokens``
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()  # for each token: ids and log-probs, most likely first
    token_versions: TokenIds | None = None  # [T], version of the policy that sampled each token
    experts: RoutedExperts | None = None  # of the prompt and of the tokens but the last, if the model asks for a record

    def list_token_versions(self) -> TokenIds | None:
        """Return the policy version of each token, [T]; None if it is unknown."""
        if self.token_versions is None and self.versions.lowest == self.versions.highest:
            return np.full(len(self.tokens), self.versions.lowest, np.int32)
        return self.token_versions


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """One option in a choice: ids, end of turn included, and Z, the divisor of its log-probability."""

    tokens: TokenIds  # [T]
    normaliser: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """Options behind an enumerated action: ``log π(a) = log softmax over the options of log P(a)/Z_a``."""

    options: tuple[Option, ...]  # [A]
    chosen: int
    log_probs: LogProbs  # [A]
    usage: Usage | None = None  # usage of the remote model that chose


@dataclass(frozen=True, slots=True)
class HelperCallRecord:
    """One call to a helper in the middle of a turn.

    The reply becomes part of the agent's own turn, as if the agent had written it.

    >>> HelperCallRecord("verify", "3 + 4 = 8?", "<reply>no</reply>", place=36).reply
    '<reply>no</reply>'

    Args:
        kind: kind of helper.
        question: question as the agent wrote it.
        reply: text inserted into the turn, including the marks around it.
        place: position of the reply in the turn's text, in characters, not counting a prefix that a teammate wrote.
        round: turn of the action: number of earlier tool rounds.
        tokens: tokens that the helper wrote.
        seconds: duration of the call.
        error: reason for a missing answer; "" on success.
    """

    kind: str
    question: str
    reply: str
    place: int
    round: int = 0
    tokens: int = 0
    seconds: float = 0.0
    error: str = ""


def strip_helper_replies(text: str, helper_calls: Sequence[HelperCallRecord]) -> str:
    """Return a turn's text without the replies of helpers.

    >>> strip_helper_replies("3 + 4 = <reply>7</reply>, so 7", [HelperCallRecord("verify", "", "<reply>7</reply>", 8)])
    '3 + 4 = , so 7'
    """
    parts, at = [], 0
    for call in helper_calls:
        parts.append(text[at : call.place])
        at = call.place + len(call.reply)
    return "".join([*parts, text[at:]])


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """One complete generation by one agent (a_t^i), the macro-action of the game.

    ``sees`` holds the ids of the actions that it was conditioned on: the realized dependency function D. ``state`` is
    the critic's input if it differs from the prompt: the prompt plus earlier actions of the step that the agent did not
    see. ``teammate_log_probs`` are the teammate's log-probs of the tokens that are marked as its own.

    An agent that calls tools continues after their replies, whose tokens are marked as tool tokens. ``text`` is then
    its last turn, and ``intermediate_texts`` are the turns before.

    With a memory, the prompt holds earlier actions of the agent (``continues``) and everything that they saw.
    ``restarted`` is the reason why the prompt does not continue the exact ids of the last action. ``restarts`` are the
    positions from which tokens were sampled after a different context.

    If the author's probability of a text is unknown, as with a model behind an endpoint, the text counts as certain:
    its log-prob is 0.

    >>> plan = Action(key=ActionKey("train/0", "t1", 0, 0, "reasoner", 0), policy="reasoner", index=0, sees=(),
    ...     prompt=np.array([7, 8, 9], np.int32), tokens=np.array([4, 5, 2], np.int32),
    ...     marks=np.zeros(3, np.uint8), log_probs=np.array([-0.1, -0.7, -0.2], np.float32),
    ...     text="23 + 45 = 68", finish="stop")
    >>> plan.id, plan.sampled_mask.tolist()
    ('0/reasoner/0', [True, True, True])
    """

    key: ActionKey
    policy: str
    index: int  # position in the order in which the episode requested actions
    sees: tuple[str, ...]
    prompt: TokenIds  # [P]
    tokens: TokenIds  # [T]
    marks: npt.NDArray[np.uint8]  # [T], the Mark of each token
    log_probs: LogProbs  # [decisions]
    text: str
    finish: FinishReason
    versions: VersionRange = VersionRange()
    truncated_tokens: int = 0  # tokens of the rollout observation that did not fit
    started: float = 0.0  # seconds since the start of the episode
    ended: float = 0.0
    state: TokenIds | None = None  # [S]
    teammate_log_probs: LogProbs | None = None  # [number of teammate tokens]
    response_prefix: int = 0  # length of the prefix that a teammate wrote, in characters of the text
    thought: int = 0  # length of dropped reasoning at the start of the text, in characters; other agents do not see it
    only_thought: bool = False  # the text is only reasoning, possibly unfinished, and has no message
    message_tokens: tuple[int, ...] = ()  # tokens of each message in ``sees``, as this agent reads it
    choice: Choice | None = None  # set if the action was chosen from a list: it is then one decision, not one per token
    calls: tuple[ToolCall, ...] = ()
    intermediate_texts: tuple[str, ...] = ()
    usage: Usage | None = None
    continues: tuple[str, ...] = ()  # ids of the agent's own actions in its prompt, oldest first
    restarted: str = ""
    restarts: tuple[PromptReset, ...] = ()
    masks: GrammarMasks | None = None  # tokens that a grammar allowed at each sampled position
    consultations: tuple[HelperCallRecord, ...] = ()  # helper calls, whose replies are part of the text
    wishes: str = ""  # client requests that are only recorded, such as a seed: JSON
    profile_version: int = 0  # version of the agent's instructions, if they are learned
    token_versions: TokenIds | None = None  # [decisions], policy version of each; None: a single one, or unknown
    experts: tuple[RoutedExperts, ...] = ()  # for each segment: of its context and of its tokens but the last

    @property
    def id(self) -> str:
        """Name inside the episode: ``step/agent/call``."""
        return f"{self.key.step}/{self.key.agent}/{self.key.call}"

    @property
    def agent(self) -> str:
        """Role of the agent."""
        return self.key.agent

    @property
    def step(self) -> int:
        """Environment step, counted from 0."""
        return self.key.step

    @property
    def agent_text(self) -> str:
        """The last turn's text, without a teammate's prefix and helper replies."""
        return self.agent_texts[-1]

    @property
    def agent_texts(self) -> tuple[str, ...]:
        """Text written by the agent itself, per turn."""
        texts = (*self.intermediate_texts, self.text[self.response_prefix :])
        helper_calls = self.consultations
        if not helper_calls:
            return texts
        return tuple(strip_helper_replies(t, [c for c in helper_calls if c.round == n]) for n, t in enumerate(texts))

    @property
    def message(self) -> str:
        """The text shown to other agents: without dropped reasoning."""
        return self.text[self.thought :]

    @property
    def sampled_mask(self) -> npt.NDArray[np.bool_]:
        """Mask for tokens sampled by the agent itself, [T]."""
        return np.equal(self.marks, TokenSource.SAMPLED)

    @property
    def own_mask(self) -> npt.NDArray[np.bool_]:
        """Mask for tokens in the agent's own turns, sampled or forced by a grammar, [T]."""
        return np.isin(self.marks, (TokenSource.SAMPLED, TokenSource.FORCED))

    @property
    def is_forced(self) -> bool:
        """True if the grammar left no decision.

        The last token then counts as one decision, with log-prob 0.
        """
        return self.num_decisions == 1 and self.masks is not None and all(map(allows_single_token, self.masks.table))

    @property
    def num_decisions(self) -> int:
        """Number of decisions with log-probs: the sampled tokens, or one choice."""
        return 1 if self.choice else int(self.sampled_mask.sum())

    @property
    def segments(self) -> tuple[Segment, ...]:
        """Token segments, each sampled from its own context."""
        return split_segments(self.prompt, len(self.tokens), self.restarts)

    @property
    def teammate_mask(self) -> npt.NDArray[np.bool_]:
        """Mask for tokens written by a teammate, [T]."""
        return np.equal(self.marks, TokenSource.TEAMMATE)


@dataclass(frozen=True, slots=True, eq=False)
class JointAction:
    """Actions by the team at one step.

    ``play`` fills in ``actions``. An organization may choose ``answer``. By default it is the last action of the agent
    whose profile has ``answers`` set.
    """

    answer: Action | None = None
    actions: tuple[Action, ...] = ()

    def for_role(self, role: str) -> Action | None:
        """Return the last action by one agent; None if the agent did not act."""
        return next((action for action in reversed(self.actions) if action.agent == role), None)


@dataclass(frozen=True, slots=True)
class StepInfo:
    """Ground truth about one environment step; None means unknown, and metrics never guess.

    The fields are keys of ``Step.info``. All fields except ``progress``, ``measures`` and ``hidden`` may also be keys
    of ``Task.data``. There they apply to every step whose ``info`` does not override them.

    >>> StepInfo(progress=0.5, right_tools=("search",), allowed_tools={"planner": (), "coder": ("search", "edit")})
    StepInfo(progress=0.5, right_tools=('search',), allowed_tools={...}, ...)
    """

    progress: float | None = None  # fraction of the task's goal reached after the step, 0 to 1
    right_tools: tuple[str, ...] | None = None  # tools that are correct to call in the step; () if no tool is
    allowed_tools: Mapping[str, tuple[str, ...]] | None = None  # tools that each role may call in the step, by role
    fewest_steps: int | None = None  # minimum number of environment steps that solves the task, at least 1
    measures: Mapping[str, float] = field(default_factory=dict)  # other measurements of the episode so far, by name
    # private information that each role had when it acted in the step, by role
    hidden: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Step:
    """Environment response to a joint action, following Gymnasium.

    ``success`` is True if the task was solved, and None if the environment cannot tell. Accuracy counts ``success``.
    ``info`` belongs to the environment, except for the keys named in :class:`marft.common.types.StepInfo`.
    """

    observation: Observation
    reward: float
    terminated: bool = False
    truncated: bool = False
    agent_rewards: Mapping[str, float] = field(default_factory=dict)
    success: bool | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Transition:
    """One environment step in an episode: the observation, and the reward for the step's joint action."""

    observation: Observation
    reward: float
    agent_rewards: Mapping[str, float] = field(default_factory=dict)
    terms: Mapping[str, float] = field(default_factory=dict)  # composed reward terms, by term and term/agent
    declared: StepInfo = StepInfo()  # ground truth about the step, for metrics that need it


class Fork(NamedTuple):
    """Branch point: recorded actions from another episode are replayed up to here."""

    origin: str  # name of the other episode
    at: str  # id of the first action that was sampled again


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """One attempt at a task: all actions in order of request (τ), with the rewards.

    ``failed`` and ``timed_out`` episodes could not be scored. They carry the reason in ``error``, leave the batch and
    are counted. A ``truncated`` episode ends in a state that still has value. Its ``bootstrap`` holds the ids of that
    state for each agent that has acted, in the order of requests, starting with the agents of the last step. A
    ``paused`` episode is a replay that stops after its first new step, to measure the reward of that step.

    >>> episode = Episode(Task("t1", "…"), stream="train/0", sample=0, actions=(), status="failed", error="boom")
    >>> episode.is_scored, episode.total_reward
    (False, 0.0)
    """

    task: Task
    stream: str
    sample: int
    actions: tuple[Action, ...]
    status: Status
    transitions: tuple[Transition, ...] = ()
    success: bool | None = None
    error: str = ""
    # ids of the final state by agent, each [S]; empty unless truncated
    bootstrap: Mapping[str, TokenIds] = field(default_factory=dict)
    seconds: float = 0.0
    fork: Fork | None = None
    # start in seconds since 1970, by the clock of the machine that played the episode; 0: unknown
    start_time: float = 0.0
    answer: str = ""  # id of the action that answered a client; "" if no client queried the whole team
    imagined: bool = False  # played in a world model: used for training, and never counted as a real episode

    @property
    def name(self) -> str:
        """Unique name in a run: ``stream task #sample``."""
        return f"{self.stream} {self.task.id} #{self.sample}"

    @property
    def is_scored(self) -> bool:
        """True unless the episode failed or timed out."""
        return self.status in ("terminated", "truncated", "paused")

    @property
    def total_reward(self) -> float:
        """Undiscounted team return."""
        return float(sum(transition.reward for transition in self.transitions))


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One action as learner input: the ids recorded by the engine, and an advantage for each decision.

    >>> Sample(action=None, normalizer=3.0, advantages=np.array([0.5])).advantages.tolist()
    [0.5]
    """

    action: Action
    normalizer: float  # Z of eq. 6: 1, the number of sampled tokens, or the number of words
    advantages: npt.NDArray[np.float64]  # [1] at action level, [sampled tokens] at token level
    solved: bool = False  # the episode solved its task
    log_factor: float = 0.0  # added to the log-ratio: the factor of policies updated before (A2PO)


@dataclass(frozen=True, slots=True, eq=False)
class ActionCredit:
    """Credit for one action, with measurements from its update.

    Arrays have one number per decision. None means not measured.

    >>> credit = ActionCredit(None, None, "t1", np.array([0.5]), None, None, None, None, gradient_size=None)
    >>> credit.raw_advantages.tolist(), credit.advantages
    ([0.5], None)

    Args:
        raw_advantages: advantages from credit assignment.
        advantages: advantages as the objective received them; None if the action was not trained.
        group: key of the group that the action was compared in; "" for none.
        values: critic values.
        entropy: entropy of the policy.
        log_prob_diff: the learner's log-probs minus the engine's, for the same weights.
        gradient_size: Σ |∂loss/∂log π| over its decisions; an agent's share of their sum is its gradient share.
    """

    episode: Episode
    action: Action
    group: str
    raw_advantages: npt.NDArray[np.float64]
    advantages: npt.NDArray[np.float64] | None
    values: npt.NDArray[np.float64] | None
    entropy: npt.NDArray[np.float64] | None
    log_prob_diff: npt.NDArray[np.float64] | None
    gradient_size: float | None


# an episode and everything inside it
EPISODE_TYPES = (
    Episode, Task, Action, ActionKey, VersionRange, Choice, Option, ToolCall, Usage, PromptReset, GrammarMasks,
    RoutedExperts, HelperCallRecord, Transition, Observation, StepInfo, Fork,
)  # fmt: skip
