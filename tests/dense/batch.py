"""Small episodes that hold everything at once: uneven groups, several steps, own rewards, a truncated end, a frozen
teammate, tools' answers and a teammate's text inside an action, chats that were rendered anew within one, a choice from a
list, states that say more than prompts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from marft.common.token_data import PromptReset, TokenSource
from marft.common.types import Action, ActionKey, Choice, Episode, Fork, Observation, Option, Task, Transition

LogProbs = Callable[[Action], list[float]]  # what the policies say of an action's decisions
ROLES = ("planner", "solver", "judge")
SHAPES = (  # task, environment steps of each of its attempts
    ("apart", (2, 1, 2)), ("alone", (1,)), ("alike", (1, 1)),
)  # fmt: skip


def first_of_the_last_step_first(actions: Sequence[Action]) -> list[Action]:
    """In the order in which agents would see the end of an episode."""
    return sorted(actions, key=lambda action: (-action.step, action.index))


@dataclass
class Writer:
    """Draws episodes.

    Args:
        score: log-probs under the policies as they are; none for frozen ones, whose numbers are drawn.
        drift: standard deviation of what the engine's numbers are off, in nats a token.
        policies: of each role.
    """

    score: LogProbs
    policies: dict[str, str]
    drift: float = 0.0
    extras: bool = True  # tools, teammates' text, choices, chats that were rendered anew
    seed: int = 0
    vocabulary: int = 400
    random: np.random.Generator = field(init=False)

    def __post_init__(self) -> None:
        self.random = np.random.default_rng(self.seed)

    def ids(self, low: int, high: int) -> np.ndarray:
        return self.random.integers(3, self.vocabulary, self.random.integers(low, high + 1)).astype(np.int32)

    def action(
        self, role: str, task: str, sample: int, step: int, index: int, sees: Sequence[Action] = (),
        kind: str = "plain", prompt: np.ndarray | None = None, stream: str = "train/0",
    ) -> Action:  # fmt: skip
        tokens = self.ids(1, 5)
        marks = np.zeros(len(tokens), np.uint8)
        choice, teammate, restarts = None, None, tuple[PromptReset, ...]()
        if kind == "tool":  # two turns with an answer between them
            tokens, marks = np.concatenate([tokens, self.ids(4, 4)]), np.concatenate([marks, [1, 1, 0, 0]])
        if kind == "anew":  # a second segment with an answer in it, and a third
            said = len(tokens)
            tokens, marks = np.concatenate([tokens, self.ids(6, 6)]), np.concatenate([marks, [0, 1, 0, 0, 0, 0]])
            restarts = tuple(PromptReset(said + n, self.ids(3, 7), n, "it was rewritten") for n in (0, 4))
        if kind == "begun":
            tokens, marks = (
                np.concatenate([self.ids(3, 3), tokens]),
                np.concatenate([[TokenSource.TEAMMATE] * 3, marks]),
            )
            teammate = self.random.normal(-5, 1, 3).astype(np.float32)
        if kind == "choice":
            options = tuple(Option(self.ids(n, n), z) for n, z in ((1, 1.0), (3, 3.0), (2, 1.0)))
            choice = Choice(options, 1, np.zeros(3, np.float32))
            tokens, marks = options[1].tokens, np.zeros(3, np.uint8)
        prompt = self.ids(2, 6) if prompt is None else prompt
        made = Action(
            key=ActionKey(stream, task, sample, step, role, 0), policy=self.policies[role], index=index,
            sees=tuple(a.id for a in sees), prompt=prompt, tokens=tokens.astype(np.int32), marks=marks.astype(np.uint8),
            log_probs=np.zeros(0, np.float32), text=" ".join(["word"] * int(self.random.integers(1, 4))), finish="stop",
            state=np.concatenate([prompt, self.ids(1, 3)]) if index % 3 == 1 else None,
            teammate_log_probs=teammate, choice=choice, restarts=restarts,
        )  # fmt: skip
        return replace(made, log_probs=self.recorded(made))

    def recorded(self, action: Action) -> np.ndarray:
        """What the engine says of an action's decisions."""
        off = self.random.normal(size=action.num_decisions)
        scores = self.score(action)
        known = np.array(scores) + self.drift * off if scores else off - 4.0  # of a frozen policy anything will do
        return known.astype(np.float32)

    def transition(self, own: bool = True) -> Transition:
        pays = {role: float(self.random.normal()) for role in ROLES if own and self.random.random() < 0.5}
        return Transition(Observation("o"), float(self.random.normal()), pays)

    def episode(self, task: str, sample: int, steps: int, rewards: Sequence[Transition] = ()) -> Episode:
        actions: list[Action] = []
        for step in range(steps):
            here: list[Action] = []
            speakers = [*(["judge"] if (sample + step) % 2 else []), "planner", "solver"]
            for place, role in enumerate(speakers):
                kinds = {1: "tool", 3: "begun", 4: "choice", 5: "anew"} if self.extras else {}
                kind = kinds.get((sample + 2 * step + place) % 6, "plain") if role != "judge" else "plain"
                seen = [a for a in here if a.agent != "judge" or sample % 2]
                here.append(self.action(role, task, sample, step, len(actions) + len(here), seen, kind))
            actions += here
        truncated = steps > 1 and sample % 2 == 0
        return Episode(
            Task(task, "o"), "train/0", sample, tuple(actions), "truncated" if truncated else "terminated",
            tuple(rewards) or tuple(self.transition() for _ in range(steps)), success=bool(sample % 2),
            bootstrap={a.agent: self.ids(3, 5) for a in first_of_the_last_step_first(actions)} if truncated else {},
        )  # fmt: skip

    def batch(self) -> list[Episode]:
        """Groups of three and of one, and one whose members all earn the same."""
        alike = self.transition()
        return [
            self.episode(task, sample, steps, [alike] if task == "alike" else ())
            for task, attempts in SHAPES
            for sample, steps in enumerate(attempts)
        ]

    # ---- forks

    def counterfactual(self) -> list[Episode]:
        """Attempts, and for each action of a trained agent two episodes in which it, and all after it, is new."""
        episodes = [self.episode(task, 0, 1 + n) for n, task in enumerate(("one", "two"))]
        forks = []
        for episode in episodes:
            for k, action in enumerate(episode.actions):
                if action.agent == "judge":  # it is frozen
                    continue
                for number in range(2):
                    stream = f"train/0/fork/{action.id}/{number}"
                    anew = tuple(self._again(a, stream) for a in episode.actions[k:])
                    forks.append(replace(
                        episode, stream=stream, actions=(*episode.actions[:k], *anew),
                        transitions=tuple(self.transition() for _ in episode.transitions),
                        fork=Fork(episode.name, action.id),
                    ))  # fmt: skip
        return [*episodes, *forks]

    def tree(self, candidates: int = 3) -> list[Episode]:
        """Candidates for the planner's action, then for the solver's after the one that was carried on."""
        played = []
        for task in ("one", "two"):
            settled: list[Action] = []
            for role in ("planner", "solver"):
                first = self.action(role, task, 0, 0, len(settled), settled)
                tried = [first, *(self._again(first, f"train/0/tree/{role}/{n}") for n in range(candidates - 1))]
                for candidate in tried:
                    rest = [] if role == "solver" else [self.action("solver", task, 0, 0, 1, [candidate])]
                    fork = Fork(f"train/0 {task} #0", candidate.id)
                    played.append(Episode(
                        Task(task, "o"), candidate.key.stream, 0, (*settled, candidate, *rest), "terminated",
                        (self.transition(),), fork=fork,
                    ))  # fmt: skip
                settled.append(tried[1])
        return played

    def crossed(self, samples: int = 3) -> list[Episode]:
        """Every pair of what planner and solver said, unseen by each other, at two tasks."""
        played = []
        for task in ("one", "two"):
            said = [[self.action(role, task, n, 0, place) for n in range(samples)]
                    for place, role in enumerate(("planner", "solver"))]  # fmt: skip
            for n, plan in enumerate(said[0]):
                for m, answer in enumerate(said[1]):
                    played.append(Episode(
                        Task(task, "o"), "train/0" if n == m else f"train/0/cross/{n}/{m}", n, (plan, answer), "terminated",
                        (self.transition(),), fork=None if n == m else Fork(f"train/0 {task} #{n}", answer.id),
                    ))  # fmt: skip
        return played

    def _again(self, action: Action, stream: str) -> Action:
        """Another draw from the same state."""
        other = self.action(
            action.agent,
            action.key.task,
            action.key.sample,
            action.step,
            action.index,
            prompt=action.prompt,
            stream=stream,
        )
        return replace(other, sees=action.sees, state=action.state)
