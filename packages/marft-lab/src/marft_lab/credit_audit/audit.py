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

from marft.common.errors import UserError
from marft.common.types import Episode
from marft.config.algorithm import AlgorithmSettings
from marft.config.interfaces.credit import Floats, flatten_actions
from marft.config.interfaces.objective import LossInputs
from marft.config.run import RunSettings
from marft.models.devices import DeferredReads
from marft.models.policy_registry import PolicyRegistry
from marft.rollout.fork_plans import get_fork_plan, select_on_policy
from marft.runs.checkpoints import CheckpointManager, load_critic
from marft.runs.episode_files import read_episodes
from marft.runs.run_folder import RunFolder, parse_step
from marft.runs.state import verify
from marft.trainer.batching import BatchCounts
from marft.trainer.credit.consistency import spearman
from marft.trainer.critic import compute_explained_variance
from marft.trainer.learner import CreditedBatch, Learner
from marft.trainer.learner_metrics import (
    MetricAccumulator,
    MicroBatchMetrics,
    advantage_metrics,
    compute_gradient_shares,
)
from marft.trainer.micro_batch import FixedLogProbs

FIT_FILES = 8  # maximum recorded steps to fit a critic on
FIT_EPOCHS = 25  # epochs of the fit
RERENDER_MARKER = "\n[the chat was rendered anew]\n"  # inserted before the first word of a later segment


@dataclass(frozen=True, slots=True, eq=False)
class CreditEstimate:
    """Credit by an algorithm: advantages per decision, in the form that its update uses."""

    algorithm: str
    advantages: Sequence[Floats | None]  # one array per action, over all episodes; None for untrained actions
    metrics: Mapping[str, float]  # group sizes, zero-variance groups, zero advantages
    gradient_share: Mapping[str, float]  # share of each agent in the first gradient
    critic: str = ""  # source of the critic; "" without a critic
    explained_variance: float = math.nan  # explained variance of the critic on these episodes
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True, eq=False)
class CreditAudit:
    """Credit by several algorithms on the same episodes.

    ``rank_agreement`` is Spearman's correlation between the mean advantages of actions. ``sign_agreement`` is the
    fraction of actions with the same sign of the mean advantage, among actions with nonzero values in both.
    """

    step: int
    episodes: Sequence[Episode]
    words: Sequence[Sequence[str]]  # text of every sampled token, one list per action over all episodes
    estimates: Sequence[CreditEstimate]
    rank_agreement: Mapping[tuple[str, str], float]
    sign_agreement: Mapping[tuple[str, str], float]

    def as_json(self) -> dict[str, object]:
        """Return the audit without the episodes' texts, for JSON output."""
        actions = [f"{episode.name} {action.id}" for episode in self.episodes for action in episode.actions]
        tables = []
        for estimate in self.estimates:
            table = asdict(estimate)
            table["advantages"] = {
                name: None if advantages is None else advantages.tolist()
                for name, advantages in zip(actions, estimate.advantages, strict=True)
            }
            tables.append(table)
        pairs = [
            {"algorithms": pair, "rank": rank, "sign": self.sign_agreement[pair]}
            for pair, rank in self.rank_agreement.items()
        ]
        return {"step": self.step, "episodes": len(self.episodes), "algorithms": tables, "agreement": pairs}


def audit_credit(
    folder: RunFolder,
    algorithms: Sequence[AlgorithmSettings],
    step: int = 0,
    on_done: Callable[[], None] = lambda: None,
) -> CreditAudit:
    """Compute credit for a recorded step's episodes with several algorithms.

    Args:
        folder: folder of the run.
        algorithms: settings of the algorithms.
        step: training step, counted from 1; 0 selects the last recorded step.
        on_done: callback after each algorithm.

    Raises:
        UserError: nothing was recorded, the step was not recorded, or no full episode of the step has a reward.
    """
    path, files = folder.find_recorded(step), folder.recorded_steps()
    number = parse_step(path)
    scored = _read_scored(path)
    on_policy = select_on_policy(scored)
    if not on_policy:
        raise UserError(f"{path}: no whole episode in it could be scored, so there is nothing to credit")
    run, estimates = folder.settings(), []
    models = PolicyRegistry(run)
    for settings in algorithms:
        estimates.append(_Estimator(folder, run, settings, models, files, number).estimate(on_policy, scored))
        on_done()
    rank, sign = _compute_agreement(estimates)
    return CreditAudit(number, on_policy, _decode_words(on_policy, models), estimates, rank, sign)


class _Estimator:
    """Algorithm, prepared to credit a recorded step."""

    def __init__(
        self,
        folder: RunFolder,
        run: RunSettings,
        settings: AlgorithmSettings,
        models: PolicyRegistry,
        files: Sequence[Path],
        step: int,
    ) -> None:
        self.folder, self.run, self.settings, self.step = folder, run, settings, step
        self.learner = Learner(run.model_copy(update={"algorithm": _disable_value_clip(settings)}), models)
        self.notes: list[str] = []
        self.critic = self._prepare_critic(files) if self.learner.critic else ""
        if self.learner.credit.keeps_state:
            for path in files:
                if parse_step(path) < step:
                    self.learner.assign_credit(select_on_policy(_read_scored(path)), FixedLogProbs())

    def estimate(self, on_policy: Sequence[Episode], with_forks: Sequence[Episode]) -> CreditEstimate:
        """Compute the algorithm's credit.

        Args:
            on_policy: scored on-policy episodes.
            with_forks: all scored episodes.
        """
        fork_plan = get_fork_plan(self.settings)
        if fork_plan and not any(episode.fork for episode in with_forks):
            self.notes.append(
                "its episodes would be played again from single actions on, and these were not" + fork_plan.missing_note
            )
        truncated_count = sum(episode.status == "truncated" and not episode.bootstrap for episode in on_policy)
        if truncated_count and self.learner.critic:
            self.notes.append(
                f"{truncated_count} truncated episodes count as worth nothing at their end: the run had no critic"
            )
        batch = list(with_forks if fork_plan else on_policy)
        recorded = {action.key: action.log_probs.astype(np.float64) for action in flatten_actions(batch)}
        fixed = replace(self.learner.score_before_update(batch), old=recorded)  # that step's weights are gone
        credited_batch = self.learner.assign_credit(batch, fixed)
        by_key = {s.action.key: s.advantages for s in credited_batch.samples}
        metrics = {
            **credited_batch.credit.metrics,
            **advantage_metrics(credited_batch.samples, credited_batch.unnormalized),
        }
        critic_variance = math.nan
        if credited_batch.inputs.values is not None and credited_batch.credit.monte_carlo:
            values, targets = credited_batch.inputs.values.actions, credited_batch.credit.monte_carlo
            critic_variance = compute_explained_variance(np.concatenate(values), np.concatenate(targets))
        return CreditEstimate(
            algorithm=self.settings.name,
            advantages=[by_key.get(action.key) for episode in on_policy for action in episode.actions],
            metrics=metrics,
            gradient_share=self._compute_gradient_shares(credited_batch),
            critic=self.critic,
            explained_variance=critic_variance,
            notes=self.notes,
        )

    def _prepare_critic(self, files: Sequence[Path]) -> str:
        """Prepare the critic → description of its source.

        Prefer the run's own critic from before the step, else fit a new critic to other recorded episodes.
        """
        is_compatible = _critic_key(self.settings) == _critic_key(self.run.algorithm)
        before = [p for p in CheckpointManager(self.folder, self.run.checkpoints).steps() if parse_step(p) < self.step]
        if is_compatible and before:
            verify(before[-1])
            if load_critic(before[-1], self.learner):
                return f"the run's, of {before[-1].name}"
        other_files = [path for path in files if parse_step(path) != self.step]
        nearest = sorted(other_files, key=lambda p: abs(parse_step(p) - self.step))[:FIT_FILES]
        batch = [episode for path in nearest for episode in select_on_policy(_read_scored(path))]
        if not batch:
            self.notes.append("its critic is untrained: the run recorded no other step to fit one to")
            return "untrained"
        critic = self.learner.critic
        assert critic is not None
        credited_batch = self.learner.assign_credit(batch, FixedLogProbs())
        assert credited_batch.inputs.values is not None
        for number in range(FIT_EPOCHS):
            critic.update(credited_batch.inputs.values, credited_batch.credit.monte_carlo, number)
        return f"fitted to {len(batch)} recorded episodes"

    def _compute_gradient_shares(self, credited_batch: CreditedBatch) -> dict[str, float]:
        """Return each agent's share of |∂loss/∂log π| in the first gradient."""
        accumulator, deferred, samples = MetricAccumulator(), DeferredReads(), credited_batch.samples
        pooled = self.settings.denominator == "pooled"
        for batch in (
            self.learner.packing.micro_batches(samples, BatchCounts.from_samples(samples, pooled)) if samples else []
        ):
            log_probs = batch.engine_log_probs.clone().requires_grad_()
            inputs = LossInputs(
                batch.unit_log_probs(log_probs),
                batch.unit_log_probs(log_probs.detach()),
                batch.advantages,
                batch.unit_log_probs(log_probs.detach()),
            )
            (self.learner.objective(inputs).terms * batch.unit_weights).sum().backward()
            assert log_probs.grad is not None
            MicroBatchMetrics(batch, accumulator, deferred).add_gradients(log_probs.grad)
        deferred.read_pending()
        shares = compute_gradient_shares(accumulator, self.learner.roles)
        return {role: shares[f"agents/{role}/gradient_share"] for role in self.learner.roles}


def _compute_agreement(
    estimates: Sequence[CreditEstimate],
) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], float]]:
    rank, sign = {}, {}
    for a, b in combinations(estimates, 2):
        mean_pairs = [
            (float(x.mean()), float(y.mean()))
            for x, y in zip(a.advantages, b.advantages, strict=True)
            if x is not None and y is not None
        ]
        x, y = np.array(mean_pairs).reshape(-1, 2).T
        is_nonzero = (x != 0) & (y != 0)
        defined = bool(mean_pairs) and np.ptp(x) > 0 and np.ptp(y) > 0
        rank[a.algorithm, b.algorithm] = spearman(x, y) if defined else math.nan
        sign[a.algorithm, b.algorithm] = (
            float(np.mean(np.sign(x[is_nonzero]) == np.sign(y[is_nonzero]))) if is_nonzero.any() else math.nan
        )
    return rank, sign


def _read_scored(path: Path) -> list[Episode]:
    return [episode for episode in read_episodes(path) if episode.is_scored and episode.actions]


def _disable_value_clip(algorithm: AlgorithmSettings) -> AlgorithmSettings:
    """Disable the value clip for the fit of a critic; the clip would keep all epochs near the initial values."""
    return algorithm.model_copy(update={"critic": algorithm.critic.model_copy(update={"value_clip": 0.0})})


def _critic_key(algorithm: AlgorithmSettings) -> list[object]:
    """Return the settings that two algorithms must share to exchange a critic."""
    credit = [getattr(algorithm.credit, key, None) for key in ("successor", "gamma_token", "gamma_agent", "gamma_step")]
    critic = [getattr(algorithm.critic, key) for key in ("kind", "body", "heads", "hidden_size", "normalize_values")]
    return [algorithm.level, algorithm.reward, *credit, *critic]


def _decode_words(episodes: Sequence[Episode], models: PolicyRegistry) -> list[list[str]]:
    decoded = []
    for episode in episodes:
        for action in episode.actions:
            tokenizer, ids = models.policies[action.policy].tokenizer, action.tokens[action.own_mask].tolist()
            words = _split_words([str(tokenizer.decode(ids[: n + 1])) for n in range(len(ids))])
            words = _merge_forced_words(words, action.sampled_mask[action.own_mask].tolist())
            for restart in action.restarts:
                first = int(action.sampled_mask[: restart.at].sum())
                if first < len(words):  # false if all later tokens were forced
                    words[first] = RERENDER_MARKER + words[first]
            decoded.append(words)
    return decoded


def _merge_forced_words(words: Sequence[str], sampled: Sequence[bool]) -> list[str]:
    """Return the words for sampled tokens, with forced tokens attached.

    Each word includes the forced tokens before it; the last word also includes those after it.

    >>> _merge_forced_words(["a", "b", "c", "d"], [False, True, True, False])
    ['ab', 'cd']
    >>> _merge_forced_words(["a", "b"], [False, False])
    []
    """
    merged, forced = list[str](), ""
    for word, is_sampled in zip(words, sampled, strict=True):
        forced += word
        if is_sampled:
            merged.append(forced)
            forced = ""
    return [*merged[:-1], merged[-1] + forced] if merged else []


def _split_words(texts: Sequence[str]) -> list[str]:
    r"""Return the text added by each token, given the decoded text up to each token.

    A character of several tokens belongs to its last token. If a longer prefix decodes to less text, the token adds
    nothing, until the text grows again.

    >>> _split_words(["a", "a\ufffd", "aπ", "aπ!"])
    ['a', '', 'π', '!']
    >>> _split_words(["ab", "a", "ac", "abc"])
    ['ab', '', '', 'c']
    """
    words, previous = [], ""
    for text in texts:
        complete = text.rstrip("\ufffd")
        words.append(complete[len(previous) :] if complete.startswith(previous) else "")
        previous = complete if complete.startswith(previous) else previous
    return words
