"""Credit audit: recompute the advantages in recorded episodes with several algorithms.

No episode is played and no policy is trained. A credit that needs values uses the run's own critic from an earlier
checkpoint, if that critic has the same settings. Otherwise a new critic is fitted to Monte-Carlo returns of other
recorded episodes, as at the start of a run. A stateful credit first processes the earlier recorded steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from marft.common.types import Episode
from marft.config.algorithm import AlgorithmSettings
from marft.config.run import RunSettings
from marft.models.devices import Awaited
from marft.models.pool import Models
from marft.rollout.forking.interface import as_played, forking_of
from marft.runs.checkpoints import Checkpoints, load_critic, verify
from marft.runs.episodes import read_episodes
from marft.runs.folder import RunFolder, step_of
from marft.trainer.batching import Denominators, FixedLogProbs
from marft.trainer.credit.consistency import spearman
from marft.trainer.critic import explained_variance
from marft.trainer.interfaces import Floats, LossInputs, Stateful, all_actions
from marft.trainer.learner import CreditedEpisodes, Learner
from marft.trainer.measuring import advantage_metrics, gradient_shares, measure_gradient_share
from marft.trainer.metering import Meter

FITTING_FILES = 8  # maximum recorded steps to fit a critic on
FITTING_PASSES = 25  # epochs of the fit
ANEW = "\n[the chat was rendered anew]\n"  # inserted before the first word of a later segment


@dataclass(frozen=True, slots=True, eq=False)
class Opinion:
    """Credit by an algorithm: advantages per decision, in the form that its update uses."""

    algorithm: str
    advantages: Sequence[Floats | None]  # one array per action, over all episodes; None for untrained actions
    metrics: Mapping[str, float]  # group sizes, zero-variance groups, zero advantages
    gradient_share: Mapping[str, float]  # share of each agent in the first gradient
    critic: str = ""  # source of the critic; "" without a critic
    explained_variance: float = math.nan  # explained variance of the critic on these episodes
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, eq=False)
class Audit:
    """Credit by several algorithms on the same episodes.

    ``rank_agreement`` is Spearman's correlation between the mean advantages of actions. ``sign_agreement`` is the
    fraction of actions with the same sign of the mean advantage, among actions with nonzero values in both.
    """

    step: int
    episodes: Sequence[Episode]
    words: Sequence[Sequence[str]]  # text of every sampled token, one list per action over all episodes
    opinions: Sequence[Opinion]
    rank_agreement: Mapping[tuple[str, str], float]
    sign_agreement: Mapping[tuple[str, str], float]

    def as_json(self) -> dict[str, object]:
        """Return the audit without the episodes' texts, for JSON output."""
        actions = [f"{episode.name} {action.id}" for episode in self.episodes for action in episode.actions]
        opinions = []
        for opinion in self.opinions:
            table = asdict(opinion)
            table["advantages"] = {
                name: None if mine is None else mine.tolist()
                for name, mine in zip(actions, opinion.advantages, strict=True)
            }
            opinions.append(table)
        pairs = [
            {"algorithms": pair, "rank": rank, "sign": self.sign_agreement[pair]}
            for pair, rank in self.rank_agreement.items()
        ]
        return {"step": self.step, "episodes": len(self.episodes), "algorithms": opinions, "agreement": pairs}


def replay(
    folder: RunFolder, algorithms: Sequence[AlgorithmSettings], step: int = 0,
    on_done: Callable[[], None] = lambda: None,
) -> Audit:  # fmt: skip
    """Compute credit for a recorded step's episodes with several algorithms.

    Args:
        folder: folder of the run.
        algorithms: settings of the algorithms.
        step: training step, counted from 1; 0 selects the last recorded step.
        on_done: callback after each algorithm.

    Raises:
        ValueError: nothing was recorded, the step was not recorded, or no full episode of the step has a reward.
    """
    path, files = folder.recorded(step), folder.recorded_steps()
    number = step_of(path)
    scored = _scored(path)
    own = as_played(scored)
    if not own:
        raise ValueError(f"{path}: no whole episode in it could be scored, so there is nothing to credit")
    run, opinions = folder.settings(), []
    models = Models(run)
    for settings in algorithms:
        opinions.append(_Judge(folder, run, settings, models, files, number).opinion(own, scored))
        on_done()
    rank, sign = _agreement(opinions)
    return Audit(number, own, _words(own, models), opinions, rank, sign)


class _Judge:
    """Algorithm, prepared to credit a recorded step."""

    def __init__(
        self, folder: RunFolder, run: RunSettings, settings: AlgorithmSettings, models: Models, files: Sequence[Path],
        step: int,
    ) -> None:  # fmt: skip
        self.folder, self.run, self.settings, self.step = folder, run, settings, step
        self.learner = Learner(run.model_copy(update={"algorithm": _unclipped(settings)}), models)
        self.notes: list[str] = []
        self.critic = self._prepare_critic(files) if self.learner.critic else ""
        if isinstance(self.learner.credit, Stateful):
            for path in files:
                if step_of(path) < step:
                    self.learner.assign_credit(as_played(_scored(path)), FixedLogProbs())

    def opinion(self, own: Sequence[Episode], with_forks: Sequence[Episode]) -> Opinion:
        """Compute the algorithm's credit.

        Args:
            own: scored on-policy episodes.
            with_forks: all scored episodes.
        """
        forking = forking_of(self.settings)
        if forking and not any(episode.fork for episode in with_forks):
            self.notes.append(
                "its episodes would be played again from single actions on, and these were not" + forking.without
            )
        cut = sum(episode.status == "truncated" and not episode.bootstrap for episode in own)
        if cut and self.learner.critic:
            self.notes.append(f"{cut} truncated episodes count as worth nothing at their end: the run had no critic")
        batch = list(with_forks if forking else own)
        recorded = {action.key: action.log_probs.astype(np.float64) for action in all_actions(batch)}
        fixed = replace(self.learner.score_before_update(batch), old=recorded)  # that step's weights are gone
        credited = self.learner.assign_credit(batch, fixed)
        found = {s.action.key: s.advantages for s in credited.samples}
        metrics = {**credited.credits.metrics, **advantage_metrics(credited.samples, credited.raw)}
        explained = math.nan
        if credited.inputs.values is not None and credited.credits.monte_carlo:
            values, targets = credited.inputs.values.actions, credited.credits.monte_carlo
            explained = explained_variance(np.concatenate(values), np.concatenate(targets))
        return Opinion(
            algorithm=self.settings.name,
            advantages=[found.get(action.key) for episode in own for action in episode.actions],
            metrics=metrics,
            gradient_share=self._gradient_shares(credited),
            critic=self.critic,
            explained_variance=explained,
            notes=self.notes,
        )

    def _prepare_critic(self, files: Sequence[Path]) -> str:
        """Prepare the critic → description of its source.

        Prefer the run's own critic from before the step, else fit a new critic to other recorded episodes.
        """
        alike = _what_values_mean(self.settings) == _what_values_mean(self.run.algorithm)
        before = [p for p in Checkpoints(self.folder, self.run.checkpoints).steps() if step_of(p) < self.step]
        if alike and before:
            verify(before[-1])
            if load_critic(before[-1], self.learner):
                return f"the run's, of {before[-1].name}"
        others = [path for path in files if step_of(path) != self.step]
        near = sorted(others, key=lambda p: abs(step_of(p) - self.step))[:FITTING_FILES]
        batch = [episode for path in near for episode in as_played(_scored(path))]
        if not batch:
            self.notes.append("its critic is untrained: the run recorded no other step to fit one to")
            return "untrained"
        critic = self.learner.critic
        assert critic is not None
        credited = self.learner.assign_credit(batch, FixedLogProbs())
        assert credited.inputs.values is not None
        for number in range(FITTING_PASSES):
            critic.update(credited.inputs.values, credited.credits.monte_carlo, number)
        return f"fitted to {len(batch)} recorded episodes"

    def _gradient_shares(self, credited: CreditedEpisodes) -> dict[str, float]:
        """Return each agent's share of |∂loss/∂log π| in the first gradient."""
        meter, awaited, samples = Meter(), Awaited(), credited.samples
        pooled = self.settings.denominator == "pooled"
        for batch in self.learner.packing.micro_batches(samples, Denominators.of(samples, pooled)) if samples else []:
            log_probs = batch.engine_log_probs.clone().requires_grad_()
            inputs = LossInputs(batch.units(log_probs), batch.units(log_probs.detach()), batch.advantages)
            (self.learner.objective(inputs).terms * batch.unit_weights).sum().backward()
            assert log_probs.grad is not None
            measure_gradient_share(awaited, meter, batch, log_probs.grad)
        awaited.read()
        shares = gradient_shares(meter, self.learner.roles)
        return {role: shares[f"agents/{role}/gradient_share"] for role in self.learner.roles}


def _agreement(opinions: Sequence[Opinion]) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    rank, sign = {}, {}
    for a, b in combinations(opinions, 2):
        both = [
            (float(x.mean()), float(y.mean()))
            for x, y in zip(a.advantages, b.advantages, strict=True)
            if x is not None and y is not None
        ]
        x, y = np.array(both).reshape(-1, 2).T
        pushed = (x != 0) & (y != 0)
        defined = bool(both) and np.ptp(x) > 0 and np.ptp(y) > 0
        rank[a.algorithm, b.algorithm] = spearman(x, y) if defined else math.nan
        sign[a.algorithm, b.algorithm] = (
            float(np.mean(np.sign(x[pushed]) == np.sign(y[pushed]))) if pushed.any() else math.nan
        )
    return rank, sign


def _scored(path: Path) -> list[Episode]:
    return [episode for episode in read_episodes(path) if episode.scored and episode.actions]


def _unclipped(algorithm: AlgorithmSettings) -> AlgorithmSettings:
    """Disable the value clip for the fit of a critic; the clip would keep all epochs near the initial values."""
    return algorithm.model_copy(update={"critic": algorithm.critic.model_copy(update={"value_clip": 0.0})})


def _what_values_mean(algorithm: AlgorithmSettings) -> list[object]:
    """Return the settings that two algorithms must share to exchange a critic."""
    credit = [getattr(algorithm.credit, key, None) for key in ("successor", "gamma_token", "gamma_agent", "gamma_step")]
    critic = [getattr(algorithm.critic, key) for key in ("kind", "body", "heads", "hidden", "normalise_values")]
    return [algorithm.level, algorithm.reward, *credit, *critic]


def _words(episodes: Sequence[Episode], models: Models) -> list[list[str]]:
    found = []
    for episode in episodes:
        for action in episode.actions:
            tokenizer, ids = models.policies[action.policy].tokenizer, action.tokens[action.own].tolist()
            words = _word_by_word([str(tokenizer.decode(ids[: n + 1])) for n in range(len(ids))])
            words = _of_decisions(words, action.sampled[action.own].tolist())
            for restart in action.restarts:
                first = int(action.sampled[: restart.at].sum())
                if first < len(words):  # false if all later tokens were forced
                    words[first] = ANEW + words[first]
            found.append(words)
    return found


def _of_decisions(words: Sequence[str], sampled: Sequence[bool]) -> list[str]:
    """Return the words for sampled tokens, with forced tokens attached.

    Each word includes the forced tokens before it; the last word also includes those after it.

    >>> _of_decisions(["a", "b", "c", "d"], [False, True, True, False])
    ['ab', 'cd']
    >>> _of_decisions(["a", "b"], [False, False])
    []
    """
    found, waiting = list[str](), ""
    for word, decided in zip(words, sampled, strict=True):
        waiting += word
        if decided:
            found.append(waiting)
            waiting = ""
    return [*found[:-1], found[-1] + waiting] if found else []


def _word_by_word(texts: Sequence[str]) -> list[str]:
    r"""Return the text added by each token, given the decoded text up to each token.

    A character of several tokens belongs to its last token. If a longer prefix decodes to less text, the token adds
    nothing, until the text grows again.

    >>> _word_by_word(["a", "a\ufffd", "aπ", "aπ!"])
    ['a', '', 'π', '!']
    >>> _word_by_word(["ab", "a", "ac", "abc"])
    ['ab', '', '', 'c']
    """
    words, shown = [], ""
    for text in texts:
        whole = text.rstrip("\ufffd")
        words.append(whole[len(shown) :] if whole.startswith(shown) else "")
        shown = whole if whole.startswith(shown) else shown
    return words
