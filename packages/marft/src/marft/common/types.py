"""The types that flow through MARFT, one per hop.

``Task → Observation → Action → JointAction → Step → Episode → Sample``

Everything here is frozen and slotted, and imports no torch. Token ids are recorded once, when an engine samples them,
and travel unchanged to the learner: no later hop re-tokenises text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from marft.common.consulted import Consultation, own_words
from marft.common.declared import Declared
from marft.common.marks import Grammar, Mark, Masks, allows_one
from marft.common.segments import Restart, Segment, segments_of
from marft.common.shown import Observation as Observation
from marft.common.thoughts import Said
from marft.common.usage import Usage

TokenIds = npt.NDArray[np.int32]  # [T]
LogProbs = npt.NDArray[np.float32]  # [T]
Finish = Literal["stop", "length"]
Normalisation = Literal["none", "tokens", "words"]  # Z, which a log-probability of a text is divided by
Status = Literal["terminated", "truncated", "paused", "failed", "timed_out"]


class Versions(NamedTuple):
    """The lowest and the highest update of a policy that sampled an action's tokens.

    >>> Versions(3, 4) | Versions(4, 5)
    Versions(lowest=3, highest=5)
    """

    lowest: int = 0
    highest: int = 0

    def __or__(self, other: Versions) -> Versions:
        return Versions(min(self.lowest, other.lowest), max(self.highest, other.highest))


class ActionKey(NamedTuple):
    """Names one action of one run: the seed of its random stream and the key of its groups. ``stream`` names the pass
    that sampled it (``"train/12"``): a task that comes again draws other tokens.

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
    """One problem of an environment.

    >>> Task("chain_sum/17", "… 23 + 45 - 12 =", data={"answer": "56"}).id
    'chain_sum/17'
    """

    id: str
    prompt: str
    data: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Tool:
    """What an agent is told of a tool. ``parameters`` is the JSON schema of its arguments.

    >>> Tool("add", "Add two numbers.", {"type": "object", "properties": {"a": {"type": "integer"}}}).name
    'add'
    """

    name: str
    description: str
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One use of a tool: what the agent asked for, and what it was answered.

    ``arguments`` is JSON as the agent wrote it. A call that could not be read (then it has no name), or failed, has its
    ``error`` set, and the ``output`` says why: that is what the agent is shown.

    >>> ToolCall("add", '{"a": 1, "b": 2}', output="3").output
    '3'
    """

    name: str
    arguments: str = "{}"
    output: str = ""
    error: bool = False
    seconds: float = 0.0
    index: int = 0  # among the calls of its episode
    round: int = 0  # turn of its action that made it


@dataclass(frozen=True, slots=True)
class Profile:
    """An agent's role: the paper's inst^i. ``answers`` marks the agent whose text is the team's answer; ``version`` is
    that of its instructions in their lineage, where they are learned, and 0 where they are the recipe's."""

    role: str
    instructions: str = ""
    guidance: str = ""
    answers: bool = False
    tools: tuple[Tool, ...] = ()
    version: int = 0


@dataclass(frozen=True, slots=True)
class Sampling:
    """How an agent samples. ``temperature = 0`` is greedy; ``top_p``, ``top_k`` are off at 1 and 0."""

    temperature: float = 1.0
    max_new_tokens: int = 512
    top_p: float = 1.0
    top_k: int = 0
    stop: tuple[str | Said, ...] = ()  # texts that end it, and marks that end it where they stand in no thought
    grammar: Grammar | None = None  # what a text must be
    alternatives: int = 0  # how many of the likeliest tokens are told beside each
    listener: Callable[[int], None] | None = field(default=None, compare=False)  # hears each token once it is sampled


@dataclass(frozen=True, slots=True, eq=False)
class Prompt:
    """A rendered rollout observation (ô_t^i): its ids, how many did not fit, and the chat and tools that it came of."""

    ids: TokenIds  # [T]
    truncated_tokens: int = 0
    chat: tuple[Mapping[str, Any], ...] = ()
    tools: tuple[Tool, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Completion:
    """What an engine returns for one prompt.

    ``tokens`` holds every sampled id, the end-of-turn token included; ``log_probs[j]`` is that of ``tokens[j]``
    at the sampling temperature (at temperature 1 for a greedy sample). ``text`` leaves out the end-of-turn token
    and everything from a stop string on. ``calls`` are the tools it calls, where the engine itself has read them.
    ``masks`` are those of a grammar, where it allowed for more than one token; where for one alone, that is ``forced``.
    """

    tokens: TokenIds  # [T]
    log_probs: LogProbs  # [T]
    text: str
    finish: Finish
    versions: Versions = Versions()
    calls: tuple[ToolCall, ...] | None = None
    usage: Usage | None = None
    masks: Masks | None = None
    forced: tuple[int, ...] = ()  # places
    alternatives: tuple[tuple[tuple[int, float], ...], ...] = ()  # of each token: ids and log-probs, likeliest first


@dataclass(frozen=True, slots=True, eq=False)
class Option:
    """Something that may be chosen: its ids, end of turn included, and Z, what its log-probability is divided by."""

    tokens: TokenIds  # [T]
    normaliser: float = 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """What an enumerated action was chosen from: ``log π(a) = log softmax over the options of log P(a)/Z_a``."""

    options: tuple[Option, ...]  # [A]
    chosen: int
    log_probs: LogProbs  # [A]
    usage: Usage | None = None  # what it took a remote model to choose


@dataclass(frozen=True, slots=True, eq=False)
class Action:
    """One whole generation of one agent (a_t^i), the macro-action of the game.

    ``sees`` holds the ids of the actions it was conditioned on: the realised dependency function D. ``state`` is what
    the critic reads when that is more than the prompt: the same with the step's earlier actions that the agent did not
    see. ``teammate_log_probs`` are those with which a teammate wrote the tokens that are marked as its own. An agent
    that calls tools goes on after their answers, whose tokens are marked as theirs; ``text`` is then what it says last,
    ``intermediate_texts`` what it said before. With a memory, its prompt holds actions of its own (``continues``) and
    all that they saw: ``restarted`` is why not by the very ids of the last. ``restarts`` are the places from which on
    its tokens were sampled after another context than what came before. Where nobody knows how likely something was to
    its author, as what a model behind an endpoint replied, it counts as sure: its log-prob is 0.

    >>> plan = Action(key=ActionKey("train/0", "t1", 0, 0, "reasoner", 0), policy="reasoner", index=0, sees=(),
    ...     prompt=np.array([7, 8, 9], np.int32), tokens=np.array([4, 5, 2], np.int32),
    ...     marks=np.zeros(3, np.uint8), log_probs=np.array([-0.1, -0.7, -0.2], np.float32),
    ...     text="23 + 45 = 68", finish="stop")
    >>> plan.id, plan.sampled.tolist()
    ('0/reasoner/0', [True, True, True])
    """

    key: ActionKey
    policy: str
    index: int  # order in which the episode asked for it
    sees: tuple[str, ...]
    prompt: TokenIds  # [P]
    tokens: TokenIds  # [T]
    marks: npt.NDArray[np.uint8]  # [T], a Mark per token
    log_probs: LogProbs  # [decisions]
    text: str
    finish: Finish
    versions: Versions = Versions()
    truncated_tokens: int = 0  # tokens of the rollout observation that did not fit
    started: float = 0.0  # seconds since the episode began
    ended: float = 0.0
    state: TokenIds | None = None  # [S]
    teammate_log_probs: LogProbs | None = None  # [number of teammate tokens]
    response_prefix: int = 0  # characters of the text that a teammate wrote, which the turn begins with
    thought: int = 0  # first characters of the text that nobody is told: a thought, where the agent's are dropped
    only_thought: bool = False  # the text is all a thought, which may not have ended: nothing was said
    message_tokens: tuple[int, ...] = ()  # of each message in ``sees``, as this agent reads it
    choice: Choice | None = None  # where the action was chosen from a list: then it is one decision, not one a token
    calls: tuple[ToolCall, ...] = ()
    intermediate_texts: tuple[str, ...] = ()
    usage: Usage | None = None
    continues: tuple[str, ...] = ()  # ids of the agent's own actions that its prompt holds, oldest first
    restarted: str = ""
    restarts: tuple[Restart, ...] = ()
    masks: Masks | None = None  # what a grammar allowed for, where a token was sampled
    consultations: tuple[Consultation, ...] = ()  # of helpers, whose replies stand in the text
    wishes: str = ""  # what a client asked for that is only recorded, such as a seed: JSON
    profile_version: int = 0  # of the agent's instructions, where they are learned

    @property
    def id(self) -> str:
        """The action's name inside its episode: ``step/agent/call``."""
        return f"{self.key.step}/{self.key.agent}/{self.key.call}"

    @property
    def agent(self) -> str:
        return self.key.agent

    @property
    def step(self) -> int:
        return self.key.step

    @property
    def own_text(self) -> str:
        """The text without what a teammate wrote before it, and helpers in it."""
        return self.own_texts[-1]

    @property
    def own_texts(self) -> tuple[str, ...]:
        """What the agent itself wrote in each of its turns."""
        texts = (*self.intermediate_texts, self.text[self.response_prefix :])
        asked = self.consultations
        return tuple(own_words(t, [c for c in asked if c.round == n]) for n, t in enumerate(texts)) if asked else texts

    @property
    def message(self) -> str:
        """The text as others are told it: without a thought that is dropped."""
        return self.text[self.thought :]

    @property
    def sampled(self) -> npt.NDArray[np.bool_]:
        """Mask of the tokens that the agent itself sampled, [T]."""
        return np.equal(self.marks, Mark.SAMPLED)

    @property
    def own(self) -> npt.NDArray[np.bool_]:
        """Mask of the tokens of the agent's own turns: those that it sampled, and those that a grammar forced, [T]."""
        return np.isin(self.marks, (Mark.SAMPLED, Mark.FORCED))

    @property
    def settled(self) -> bool:
        """Whether a grammar has left nothing to decide: then the last token stands for a decision, with log-prob 0."""
        return self.decisions == 1 and self.masks is not None and all(map(allows_one, self.masks.table))

    @property
    def decisions(self) -> int:
        """How many decisions the agent made, and has log-probs of: the sampled tokens, or one choice."""
        return 1 if self.choice else int(self.sampled.sum())

    @property
    def segments(self) -> tuple[Segment, ...]:
        """The stretches of its tokens that were each sampled after a context of their own."""
        return segments_of(self.prompt, len(self.tokens), self.restarts)

    @property
    def by_teammate(self) -> npt.NDArray[np.bool_]:
        """Mask of the tokens that a teammate wrote, [T]."""
        return np.equal(self.marks, Mark.TEAMMATE)


@dataclass(frozen=True, slots=True, eq=False)
class JointAction:
    """What the team did at one step. ``play`` fills in ``actions``; an organization may choose ``answer``,
    which otherwise is the last action of the agent whose profile says ``answers``."""

    answer: Action | None = None
    actions: tuple[Action, ...] = ()

    def of(self, role: str) -> Action | None:
        """The last action of one agent; None where it did not act."""
        return next((action for action in reversed(self.actions) if action.agent == role), None)


@dataclass(frozen=True, slots=True)
class Step:
    """What the environment returns for a joint action (Gymnasium's habits). ``success`` says whether the task was
    solved, where the environment can tell: it is what accuracy counts. ``info`` is the environment's own, but for the
    keys that :class:`marft.common.declared.Declared` names."""

    observation: Observation
    reward: float
    terminated: bool = False
    truncated: bool = False
    agent_rewards: Mapping[str, float] = field(default_factory=dict)
    success: bool | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Transition:
    """One environment step of an episode: what was observed, and what the step's joint action earned."""

    observation: Observation
    reward: float
    agent_rewards: Mapping[str, float] = field(default_factory=dict)
    terms: Mapping[str, float] = field(default_factory=dict)  # what composed rewards are made of: by term, term/agent
    declared: Declared = Declared()  # what the environment knows of the step, and some metrics need


class Fork(NamedTuple):
    """Where an episode departs from another one: up to there it holds that one's recorded actions."""

    origin: str  # the other episode's name
    at: str  # id of the action that was sampled anew, and after it everything


@dataclass(frozen=True, slots=True, eq=False)
class Episode:
    """Every action of one attempt at one task, in the order asked for (τ), with what it earned.

    ``failed`` and ``timed_out`` episodes could not be scored: they carry the reason in ``error``, leave the batch
    and are counted. A truncated one ends in a state worth something: ``bootstrap`` has its ids as each agent that has
    decided would see it, those of the last step first, in the order asked. A ``paused`` one shows what a step pays.

    >>> episode = Episode(Task("t1", "…"), stream="train/0", sample=0, actions=(), status="failed", error="boom")
    >>> episode.scored, episode.total_reward
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
    bootstrap: Mapping[str, TokenIds] = field(default_factory=dict)  # by agent, each [S]; empty unless truncated
    seconds: float = 0.0
    fork: Fork | None = None
    began: float = 0.0  # seconds since 1970, by the clock of the machine that played it; 0: not known
    answer: str = ""  # id of the action that somebody was answered with; "" where nobody has asked the whole team
    imagined: bool = False  # played in a world model: learned from, and never counted as one that was lived

    @property
    def name(self) -> str:
        """``stream task #sample``: one episode of a run."""
        return f"{self.stream} {self.task.id} #{self.sample}"

    @property
    def scored(self) -> bool:
        return self.status in ("terminated", "truncated", "paused")

    @property
    def total_reward(self) -> float:
        """Undiscounted team return."""
        return float(sum(transition.reward for transition in self.transitions))


@dataclass(frozen=True, slots=True, eq=False)
class Sample:
    """One action as the learner sees it: the ids the engine recorded, and a weight of credit for each decision.

    >>> Sample(action=None, normaliser=3.0, advantages=np.array([0.5])).advantages.tolist()
    [0.5]
    """

    action: Action
    normaliser: float  # Z of eq. 6: 1, the sampled tokens, or the words of the text
    advantages: npt.NDArray[np.float64]  # [1] at action level, [sampled tokens] at token level
    successful: bool = False  # its episode solved the task
    log_factor: float = 0.0  # joins the ratio: that of policies updated before (A2PO)


@dataclass(frozen=True, slots=True, eq=False)
class ActionCredit:
    """Credit of one action, with what its update measured. Arrays have one number a decision; None: not measured.

    >>> credit = ActionCredit(None, None, "t1", np.array([0.5]), None, None, None, None, gradient=None)
    >>> credit.raw.tolist(), credit.advantages
    ([0.5], None)

    Args:
        raw: advantages as credit was assigned; ``advantages`` as the objective was given them, where it was trained.
        group: the key of the group that it was compared in; "" for none.
        difference: the learner's log-probs minus the engine's, of the same weights.
        gradient: Σ |∂loss/∂log π| over its decisions; an agent's share of their sum is its gradient share.
    """

    episode: Episode
    action: Action
    group: str
    raw: npt.NDArray[np.float64]
    advantages: npt.NDArray[np.float64] | None
    values: npt.NDArray[np.float64] | None
    entropy: npt.NDArray[np.float64] | None
    difference: npt.NDArray[np.float64] | None
    gradient: float | None
