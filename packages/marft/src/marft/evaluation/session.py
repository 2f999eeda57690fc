"""Evaluation session: several checkpoints and the untuned base on the same held-out tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marft.agents.game import Attempt
from marft.agents.organizations import Turns
from marft.common.atomic import digest_of_json
from marft.common.errors import UserError
from marft.common.log import get_logger
from marft.common.types import Episode, Task
from marft.common.version import __version__
from marft.config.helpers import without_helpers
from marft.config.interfaces.environment import Split
from marft.config.run import RunSettings
from marft.envs.tasks import digest_tasks, read_tasks
from marft.evaluation.evaluate import (
    Evaluation,
    Mode,
    ProgressCallback,
    aggregate_episodes,
    build_attempts,
    evaluation_name,
    shuffle_episodes,
    team_for_mode,
)
from marft.evaluation.scenarios import ScenarioSet
from marft.evaluation.store import EvaluationStore, lock_folder, play_attempts
from marft.evaluation.tool_definitions import ToolDefinitions, collect_definitions, diff_definitions, summarize_changes
from marft.models.digest_cache import list_model_files, load_digests, save_digests
from marft.rollout.runner import RolloutRunner
from marft.runs.changes import hash_user_code
from marft.runs.checkpoints import CheckpointManager, load_policies
from marft.runs.run_files import STATE_FILE
from marft.runs.run_folder import RunFolder
from marft.runs.state import read_learned_prompts, verify

if TYPE_CHECKING:
    from marft.rollout.local_runner import LocalRolloutRunner
    from marft.rollout.workers.worker_runner import WorkerRolloutRunner

logger = get_logger(__name__)
BASE = "base"
EPISODE_KEYS = {  # keys of a recipe that determine the episodes
    "models", "policies", "tools", "agents", "team", "channel", "environment", "rewards", "engine", "seed",
}  # fmt: skip
# keys of its rollout that determine the episodes
ROLLOUT_KEYS = {"max_concurrent_episodes", "max_steps", "timeout_seconds"}


@dataclass(frozen=True, slots=True)
class StorageOptions:
    """Storage of evaluations.

    Args:
        folder: folder of evaluations.
        overwrite: play again even if an evaluation is saved.
    """

    folder: Path
    overwrite: bool = False


@dataclass(frozen=True, slots=True)
class EvaluationPlan:
    """Checkpoints, conditions and size of an evaluation.

    Args:
        checkpoints: ``base``, ``last``, ``best`` or names such as ``step_000050``; several names of one checkpoint
            count once.
        tasks: number of held-out tasks.
        shuffled_too: evaluate again with messages of other tasks.
        attempts: number of attempts at each task.
        scenarios: replaces modes, tasks and attempts.
        reorganized: differences between the evaluated team and the trained team, recorded in the evaluations.
    """

    checkpoints: Sequence[str]
    modes: Sequence[Mode]
    tasks: int
    shuffled_too: bool = False
    attempts: int = 1
    scenarios: ScenarioSet | None = None
    reorganized: Mapping[str, Any] = field(default_factory=dict)


def evaluate_checkpoints(
    run: RunSettings,
    folder: RunFolder | None,
    plan: EvaluationPlan,
    advance: ProgressCallback,
    check: Callable[[Mapping[str, str]], None] = lambda _: None,
    storage: StorageOptions | None = None,
) -> list[Evaluation]:
    """Evaluate each checkpoint once in each mode.

    If all evaluations are saved and the model files are unchanged, no model is loaded and nothing is written.

    Args:
        check: receives the digests of the models before play; its exceptions propagate.
        storage: storage of evaluations; None plays everything and saves nothing.

    Raises:
        UserError: a checkpoint is missing or damaged; the test split is empty; tasks differ from the scenarios.
        UserError: messages cannot be shuffled, because the team is a program or passes no messages.
        UserError: another process evaluates into the same folder; episodes cannot be saved there.
    """
    if plan.shuffled_too and run.team.writes_prompts:
        raise UserError("messages cannot be shuffled: the team is a program, which passes them on itself")
    if (
        plan.shuffled_too
        and isinstance(run.team, Turns)
        and (run.team.visible, run.team.order) == ("none", "simultaneous")
    ):
        raise UserError(
            "messages cannot be shuffled: the team passes none on (team.visible = 'none'); what agents say reaches "
            "others through the environment, if at all"
        )
    if scenarios := plan.scenarios:
        run = run.model_copy(update={"seed": scenarios.seed})
        plan = replace(plan, modes=scenarios.modes, attempts=scenarios.attempts)
    paths = resolve_checkpoints(run, folder, plan.checkpoints)
    selected = select_tasks(run, plan.tasks, scenarios)
    requests = [(name, mode) for name in paths for mode in plan.modes]
    advance(len(requests) * (1 + plan.shuffled_too) * len(selected) * plan.attempts)
    session = _EvaluationSession(run, plan, storage, paths, selected, advance)
    files = list_model_files(run)
    digests = load_digests(run, files)
    results = session.read_all(digests, requests) if digests else None
    if results is not None and digests:
        check(digests)
    else:
        with (
            lock_folder(storage.folder if storage else None) as storage_problem,
            open_evaluation_runner(run) as rollouts,
        ):
            digests = rollouts.models.compute_digests()
            save_digests(run, files, digests)
            check(digests)
            results = session.read_all(digests, requests, collect_definitions(rollouts.team))
            if results is None and storage_problem:
                raise UserError(storage_problem)
            results = results or replace(session, models=digests).run_all(rollouts, requests)
    if session.reused:
        logger.info(
            f"{len(session.reused)} of {len(results)} evaluations were kept from before; --rerun plays them anew"
        )
    return results


def open_evaluation_runner(run: RunSettings) -> LocalRolloutRunner | WorkerRolloutRunner:
    """Open the rollouts of a run without helpers; imports PyTorch."""
    from marft.rollout.local_runner import open_rollout_runner

    return open_rollout_runner(without_helpers(run))


def select_tasks(run: RunSettings, tasks: int, scenarios: ScenarioSet | None) -> list[Task]:
    """Return the first held-out tasks, or those of the scenarios.

    Raises:
        UserError: the split is empty, or its tasks differ from those of the scenarios.
    """
    return [*read_tasks(run.environment, "test")[:tasks]] if scenarios is None else scenarios.load_tasks(run)


EvaluationResult = tuple[Evaluation, list[Episode]]


@dataclass(frozen=True, slots=True)
class _EvaluationSession:
    """Shared state for the evaluations in a session."""

    run: RunSettings
    plan: EvaluationPlan
    storage: StorageOptions | None
    paths: Mapping[str, Path | None]  # paths of checkpoints; None is the base
    tasks: Sequence[Task]
    advance: ProgressCallback
    models: Mapping[str, str] = field(default_factory=dict)  # model digests
    reused: list[str] = field(default_factory=list)  # names of the evaluations that were read instead of played
    is_silent: bool = False  # True logs no reasons to play anew

    def read_all(
        self, models: Mapping[str, str], requests: Sequence[tuple[str, Mode]], tools: ToolDefinitions | None = None
    ) -> list[Evaluation] | None:
        """Return every evaluation from storage.

        The result is None if any evaluation is missing, is damaged or was played with other tools.
        """
        silent = replace(self, models=models, advance=lambda _=None: None, reused=[], is_silent=True)
        results = []
        for name, mode in requests:
            message_episodes: Sequence[Episode] | None = None
            for _ in range(1 + self.plan.shuffled_too):
                result = silent.read_saved(name, mode, message_episodes, tools)
                if result is None:
                    return None
                results.append(result[0])
                message_episodes = shuffle_episodes(result[1], self.run.seed)
        for _ in range(len(results) * len(self.tasks) * self.plan.attempts):
            self.advance()
        self.reused.extend(silent.reused)
        return results

    def run_all(
        self, rollouts: LocalRolloutRunner | WorkerRolloutRunner, requests: Sequence[tuple[str, Mode]]
    ) -> list[Evaluation]:
        """Return every evaluation, playing unsaved ones."""
        results, loaded = list[Evaluation](), None
        tools = collect_definitions(rollouts.team)
        for name, mode in requests:
            if name != loaded:
                load_checkpoint(rollouts, self.paths[name], self.plan.reorganized.get("told"))
                loaded = name
            message_episodes: Sequence[Episode] | None = None
            for _ in range(1 + self.plan.shuffled_too):
                saved = self.read_saved(name, mode, message_episodes, tools)
                evaluation, episodes = saved or self.play(rollouts, name, mode, message_episodes)
                results.append(evaluation)
                message_episodes = shuffle_episodes(episodes, self.run.seed)
        return results

    def read_saved(
        self, name: str, mode: Mode, message_episodes: Sequence[Episode] | None, tools: ToolDefinitions | None = None
    ) -> EvaluationResult | None:
        """Return a saved evaluation with its episodes. The result is None if the evaluation has to be played.

        Args:
            message_episodes: episodes with the messages that agents see instead of their own team's.
            tools: current tool definitions; evaluations with other definitions are played again.
        """
        if self.storage is None or self.storage.overwrite:
            return None
        store = self._get_store(name, mode, message_episodes is not None)
        episodes = store.read_episodes(self._build_attempts(mode, message_episodes))
        if episodes is None:
            return None
        saved_tools = store.read_result().get("tools")
        changes = diff_definitions(saved_tools, tools)
        if changes:
            if not self.is_silent:
                logger.warning(
                    f"{store.name} was played with other tools, and is played anew: {summarize_changes(changes)}"
                )
            return None
        self.reused.append(f"{name}-{mode}")
        for _ in episodes:
            self.advance()
        return replace(self._aggregate(name, mode, message_episodes, episodes), tools=saved_tools), episodes

    def play(
        self, rollouts: RolloutRunner, name: str, mode: Mode, message_episodes: Sequence[Episode] | None
    ) -> EvaluationResult:
        """Play an evaluation with the loaded weights and save the result."""
        store = self._get_store(name, mode, message_episodes is not None) if self.storage else None
        if store and self.storage:
            store.prepare(self.storage.overwrite)
        team, size = team_for_mode(mode, rollouts.team), self.run.evaluation.save_every
        episodes = play_attempts(
            rollouts, self._build_attempts(mode, message_episodes), team, size, store, self.advance
        )
        evaluation = replace(
            self._aggregate(name, mode, message_episodes, episodes), tools=collect_definitions(rollouts.team)
        )
        if store:
            store.finish(episodes, evaluation.as_json())
        return evaluation, episodes

    @property
    def _split(self) -> Split:
        return self.plan.scenarios.split if self.plan.scenarios else "test"

    def _build_attempts(self, mode: Mode, message_episodes: Sequence[Episode] | None) -> list[Attempt]:
        return build_attempts(self.tasks, self.plan.attempts, mode, self._split, message_episodes)

    def _aggregate(
        self, name: str, mode: Mode, message_episodes: Sequence[Episode] | None, episodes: Sequence[Episode]
    ) -> Evaluation:
        roles, shuffled, plan = [agent.role for agent in self.run.agents], message_episodes is not None, self.plan
        evaluation = aggregate_episodes(
            roles, name, mode, episodes, split=self._split, shuffled=shuffled, attempts=plan.attempts
        )
        scenario_info = {"name": plan.scenarios.name, "digest": plan.scenarios.digest} if plan.scenarios else {}
        key = self._compute_key(name, mode, shuffled)
        return replace(evaluation, key=key, scenarios=scenario_info, reorganized=plan.reorganized)

    def _get_store(self, name: str, mode: Mode, shuffled: bool) -> EvaluationStore:
        assert self.storage is not None
        scenarios, team = self.plan.scenarios, self.plan.reorganized.get("name", "")
        store_name = evaluation_name(name, mode, shuffled, scenarios.name if scenarios else "", team)
        return EvaluationStore(self.storage.folder, store_name, self._compute_key(name, mode, shuffled), self.is_silent)

    def _compute_key(self, name: str, mode: Mode, shuffled: bool) -> str:
        conditions = [mode, self._split, self.plan.attempts, shuffled]
        return episodes_key(self.run, self.models, self.paths[name], self.tasks, conditions)


def episodes_key(
    run: RunSettings, models: Mapping[str, str], path: Path | None, tasks: Sequence[Task], conditions: object
) -> str:
    """Return a digest over the inputs that determine the episodes.

    Args:
        models: digests of the models.
        path: folder of the checkpoint; None for the base.
        conditions: playing conditions, as JSON values.
    """
    table: dict[str, object] = {
        "version": __version__,
        "models": models,
        "weights": (path / STATE_FILE).read_text(encoding="utf-8") if path else BASE,  # digests of every file
        "recipe": run.model_dump(mode="json", include=EPISODE_KEYS),
        "limits": run.rollout.model_dump(mode="json", include=ROLLOUT_KEYS),
        "save_every": run.evaluation.save_every,
        "code": hash_user_code(run),
        "tasks": digest_tasks(tasks),
        "played": conditions,
    }
    return digest_of_json(table)


def load_checkpoint(
    rollouts: LocalRolloutRunner | WorkerRolloutRunner, path: Path | None, prompt_roles: Mapping[str, str] | None = None
) -> None:
    """Load the weights and the learned prompts of a checkpoint.

    The base has its initial weights and the prompts of the recipe.

    Args:
        path: folder of the checkpoint; None for the base.
        prompt_roles: for a reorganized team, the trained role whose prompt each role gets; None gives each role its
            own.
    """
    trained = rollouts.run.trained_policies
    for policy in trained:
        rollouts.models.reset_policy(policy)
    if path is not None:
        load_policies(path, rollouts.models, dict.fromkeys(trained))
    versions = {version.role: version for version in read_learned_prompts(path)}
    prompt_roles = {role: role for role in versions} if prompt_roles is None else prompt_roles
    roles = [(role, source) for role, source in prompt_roles.items() if source in versions]
    rollouts.set_prompt_versions([replace(versions[source], role=role) for role, source in roles])


def resolve_checkpoints(
    run: RunSettings, folder: RunFolder | None, checkpoints: Sequence[str]
) -> dict[str, Path | None]:
    """Return checkpoint paths by canonical name. The path of the base is None.

    Raises:
        UserError: a checkpoint is missing or damaged.
    """
    paths: dict[str, Path | None] = {}
    names_by_checkpoint: dict[str, list[str]] = {}
    for name in dict.fromkeys(checkpoints):
        path = find_checkpoint(run, folder, name)
        paths[path.name if path else BASE] = path
        names_by_checkpoint.setdefault(path.name if path else BASE, []).append(name)
    for name, names in names_by_checkpoint.items():
        if len(names) > 1:
            logger.info(f"{' and '.join(names)} are one checkpoint, {name}: it is evaluated once")
    return paths


def find_checkpoint(run: RunSettings, folder: RunFolder | None, name: str) -> Path | None:
    """Return the folder of a checkpoint; None for the untuned base.

    Raises:
        UserError: the checkpoint is missing or damaged.
    """
    if name == BASE:
        return None
    if folder is None:
        raise UserError(f"checkpoint {name!r}: a recipe has none; give the folder of a run")
    path = CheckpointManager(folder, run.checkpoints).find(name)
    verify(path)
    return path
