"""Checks of episodes, as pure functions on the evidence.

Topics: observations and information declared with steps; rewards (finite, in range, informative); determinism (an
episode depends only on its task, its seed and its actions); robustness (errors, odd inputs, endless episodes, leaked
resources); speed, blocking and external access.
"""

from __future__ import annotations

import ast
import json
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import median

from marft.common.texts import truncate
from marft.envs.math import Math
from marft.envs.scripted_policy import OraclePolicy
from marft.envs.table import Table
from marft.envs.task_prompts import TASK_LOST_REMEDY, roles_that_lose_task
from marft_envs.env_check.collection import CheckData, format_terms
from marft_envs.env_check.loading import SPLITS, serialize_tasks
from marft_envs.env_check.players import NONSENSE_PLAYERS, PERFECT_PLAYER
from marft_envs.env_check.process_replay import HASH_SEEDS, ProcessResult
from marft_envs.env_check.records import EpisodeRecord, FaultKind, TimedCall, first_mismatch
from marft_envs.env_check.report import Finding, summarize


def check_observations(data: CheckData) -> Iterator[Finding]:
    """Check that observations are valid texts for roles in the team, not too long, and repeat the task."""
    yield from _faults_of_kind(
        data, "observation", "an observation", "see marft.common.types.Observation for what it may hold"
    )
    longest, longest_record = 0, None
    for candidate in [*data.records, *data.odd_records]:
        for observation in candidate.observations:
            length = max(len(observation.for_role(role)) for role in ("", *observation.views))
            longest, longest_record = (length, candidate) if length > longest else (longest, longest_record)
    if longest_record is not None and longest > data.limits.max_observation_chars:
        yield Finding(
            "warning",
            f"{longest:,} characters are shown to one agent at a time ({longest_record.name})",
            f"show what a prompt has room for, {data.limits.max_observation_chars:,} characters; cut what agents said",
        )
    yield from _lost_tasks(data)


def _lost_tasks(data: CheckData) -> Iterator[Finding]:
    """Yield a finding if agents of a recipe, without memory, do not read the task in later steps."""
    target = data.target
    if target.writes_prompts:
        return
    profiles = {profile.role: profile for profile in target.profiles if profile.role not in target.memory_roles}
    for record in data.valid_records:
        turns = [
            (profiles[role], observation.for_role(role))
            for observation, replies in zip(record.observations, record.replies, strict=False)
            for role in replies
            if role in profiles
        ]
        if roles := roles_that_lose_task(record.task.prompt, turns):
            cause = f"{', '.join(roles)}: later prompts do not contain the task ({record.name})"
            yield Finding("warning", cause, TASK_LOST_REMEDY)
            return


def check_step_info(data: CheckData) -> Iterator[Finding]:
    """Check the info in each step for invalid values."""
    yield from _faults_of_kind(data, "declared", "a step", "docs: environments, what a metric needs")


def check_steps(data: CheckData) -> Iterator[Finding]:
    """Check for step results with another type than Step."""
    yield from _faults_of_kind(
        data, "step", "a call", "return marft.common.types.Step with True or False where that is asked for"
    )


def _faults_of_kind(data: CheckData, kind: FaultKind, subject: str, hint: str) -> Iterator[Finding]:
    faults = [(record, fault) for record in data.records for fault in record.faults if fault.kind == kind]
    for record, fault in faults[:1]:
        yield Finding("failure", f"{record.name}: {subject} of {fault.call}() {fault.message}", hint)


TOLERANCE = 1e-6
MAX_ANSWERS = 100  # maximum right answers to grade
MAX_SHOWN = 60  # maximum characters of an answer in a message


def check_numbers(data: CheckData) -> Iterator[Finding]:
    """Check that each reward is a finite number for a role in the team."""
    faults = [(record, fault) for record in data.records for fault in record.faults if fault.kind == "reward"]
    for record, fault in faults[:1]:
        yield Finding(
            "failure", f"{record.name}: a step {fault.message}", "return a finite number, for roles of the team alone"
        )


def check_range(data: CheckData) -> Iterator[Finding]:
    """Check that each episode's return lies in the declared reward range."""
    low, high = data.target.environment.reward_range
    outside = []
    for record in data.valid_records:
        rewards = {"the team": record.total}
        for step in record.steps:
            for role, reward in step.agent_rewards.items():
                rewards[role] = rewards.get(role, 0.0) + reward
        outside += [
            f"{name} earns {reward:g} ({record.name})"
            for name, reward in rewards.items()
            if not low - TOLERANCE <= reward <= high + TOLERANCE
        ]
    if outside:
        yield Finding(
            "failure",
            f"outside of {low:g} to {high:g}: {summarize(outside, 2)}",
            "scale it; or declare what is meant: reward_range: ClassVar[tuple[float, float]] = (…, …)",
        )


def check_signal(data: CheckData) -> Iterator[Finding]:
    """Check that different behavior gets different rewards."""
    records = data.valid_records
    if not data.target.environment.grades_answers or len({record.player for record in records}) < 2:
        return
    by_task: dict[str, set[tuple[object, ...]]] = defaultdict(set)
    for record in records:
        agent_rewards = tuple(
            sorted((role, reward) for step in record.steps for role, reward in step.agent_rewards.items())
        )
        by_task[record.task.id].add((round(record.total, 9), agent_rewards))
    if all(len(returns) == 1 for returns in by_task.values()):
        total = records[0].total
        yield Finding(
            "failure" if data.has_script else "warning",
            f"whatever is done earns the same: {total:g} in all {len(records)} episodes",
            "see what step() compares with what; or give the environment a script that plays well, so that checks see "
            "more than poor play",
        )


def check_success(data: CheckData) -> Iterator[Finding]:
    """Check that solved tasks earn more than unsolved tasks."""
    by_task: dict[str, list[EpisodeRecord]] = defaultdict(list)
    for record in data.valid_records:
        by_task[record.task.id].append(record)
    for records in by_task.values():
        solved = [record for record in records if record.success]
        others = [record for record in records if record.success is False]
        if solved and others:
            worst, best = min(solved, key=lambda record: record.total), max(others, key=lambda record: record.total)
            if worst.total <= best.total:
                yield Finding(
                    "failure",
                    f"{worst.task.id} is solved by {worst.player} for {worst.total:g}, and not by {best.player} for "
                    f"{best.total:g}",
                    "pay most for what success says is right, or have success say something else",
                )
                return
    scripted = [record for record in data.valid_records if record.player == PERFECT_PLAYER]
    failed = [record.task.id for record in scripted if record.success is False]
    if failed:
        yield Finding(
            "warning",
            f"its own script of skill 1 loses {len(failed)} of {len(scripted)} tasks: {summarize(failed)}",
            "see what it is shown and what it says, or whether the task can be solved",
        )
    ungradable = list(_ungradable_tasks(data))
    if ungradable:
        yield Finding(
            "warning",
            f"no plain answer is right in {len(ungradable)} tasks: {summarize(ungradable)}",
            "see what stands in the column of answers: it holds JSON, or is refused when it is said as it stands",
        )


def _ungradable_tasks(data: CheckData) -> Iterator[str]:
    """Yield tasks with a right answer in JSON, or with a right answer that the grader rejects."""
    environment = data.target.environment
    script = environment.script(1.0) if isinstance(environment, Table | Math) else None
    if not isinstance(script, OraclePolicy) or not isinstance(environment, Table | Math):
        return
    for task in data.loaded.all_tasks[:: max(1, len(data.loaded.all_tasks) // MAX_ANSWERS)]:
        right = script.get_answer(task)
        if _is_json(right) or environment.answer_grade(task, right).success is False:
            yield f"{task.id} ({truncate(right, MAX_SHOWN)!r})"


def _is_json(text: str) -> bool:
    value: object = None
    for parse in (json.loads, ast.literal_eval) if text.strip()[:1] in ("{", "[") else ():
        try:
            value = value or parse(text.strip())
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            continue
    return isinstance(value, dict) or (isinstance(value, list) and any(isinstance(item, str) for item in value))


def check_nonsense(data: CheckData) -> Iterator[Finding]:
    """Check that nonsense solves no task, or earns less than good play where success is undefined."""
    best: dict[str, float] = {}
    for record in data.valid_records:
        if record.player == PERFECT_PLAYER:
            best[record.task.id] = max(record.total, best.get(record.task.id, -math.inf))
    nonsense_records: dict[str, list[EpisodeRecord]] = defaultdict(list)
    for record in [*data.valid_records, *(record for record in data.odd_records if record.is_valid)]:
        if record.player in NONSENSE_PLAYERS and (record.task.id in best or record.success is not None):
            nonsense_records[record.player].append(record)
    rewarded = {
        player: records
        for player, records in nonsense_records.items()
        if all(
            record.total >= best[record.task.id] - TOLERANCE if record.success is None else record.success
            for record in records
        )
    }
    totals = {record.total for record in data.valid_records}
    if rewarded and len(totals) > 1:
        player, records = next(iter(rewarded.items()))
        others = f"; and so does {summarize(list(rewarded)[1:])}" if len(rewarded) > 1 else ""
        yield Finding(
            "warning",
            f"{player} earns {records[0].total:g} for {records[0].task.id}, "
            f"{'as much as good play' if best else 'which is solved with that'}{others}",
            "a reader that finds the answer anywhere in a text, or fails open, is what a model will learn to use",
        )


SEED_HINT = "draw from a random.Random(seed) of the session's own, with the seed that start(task, seed) is given"


def check_repeatable(data: CheckData) -> Iterator[Finding]:
    """Check that the same task, seed and actions give the same result, also in a new process."""
    process_mismatch = _compare_processes(data)
    if process_mismatch:
        yield Finding("failure", *process_mismatch)
        return
    alone = not isinstance(data.process_results, str)  # if two processes agree, the cause is in earlier episodes
    mismatch = "" if alone else _first_mismatch(data.repeatable, data.repeated)
    if mismatch:
        yield Finding(
            "failure",
            f"the same seed and actions come to something else the second time: {mismatch}",
            f"{SEED_HINT}, not from the clock or the system, and keep nothing from one episode to the next",
        )


def check_isolation(data: CheckData) -> Iterator[Finding]:
    """Check that episodes do not depend on earlier or concurrent episodes."""
    hint = "keep what an episode changes in its session: not in the module, the class, the environment or the task"
    writing_tasks = list(dict.fromkeys(record.task.id for record in data.records if record.wrote_task))
    if writing_tasks:
        yield Finding(
            "warning",
            f"sessions write into Task.data ({summarize(writing_tasks)}): each attempt has its own copy, and changes "
            "are lost",
            "copy what a session changes, or keep it in the session",
        )
    if data.writing_terms:
        yield Finding(
            "warning",
            f"reward terms write into Task.data: {format_terms(data.writing_terms)}; each term has its own copy, and "
            "changes are lost",
            "copy what a term changes: what it gives must depend on the episode alone",
        )
    again = _first_mismatch(data.repeatable, data.repeated)
    if again:
        if not isinstance(data.process_results, str) and not _compare_processes(data):
            yield Finding("failure", f"an episode comes to something else once others were played: {again}", hint)
        return
    together = _first_mismatch(data.repeatable, data.concurrent)
    if together:
        yield Finding("failure", f"episodes that are played at the same time disturb each other: {together}", hint)


def check_no_global_random(data: CheckData) -> Iterator[Finding]:
    """Check that sessions draw no numbers from the global random generators."""
    if _first_mismatch(data.repeatable, data.repeated):
        return  # already not repeatable
    mismatch = _first_mismatch(data.repeated, data.reseeded)
    if mismatch:
        yield Finding(
            "failure",
            f"it draws from random, numpy.random or torch, which all of a process shares: {mismatch}",
            SEED_HINT,
        )


def _compare_processes(data: CheckData) -> tuple[str, str] | None:
    """Return the difference between two new processes or their tasks and ours, with its remedy; None if equal."""
    if isinstance(data.process_results, str):
        return None
    first, second = data.process_results
    own_tasks = {split: serialize_tasks(data.loaded.tasks.get(split, ())) for split in SPLITS}
    for split in SPLITS:
        lists = [own_tasks[split], list(first.tasks[split]), list(second.tasks[split])]
        if lists[0] != lists[1] or lists[1] != lists[2]:
            other = next(tasks for tasks in lists if tasks != lists[0])
            return (
                f"another process has other {split} tasks: {first_mismatch(lists[0], other)}",
                "draw tasks from a random.Random of the environment's own seed, and sort what comes from sets, "
                f"hash() and folders (PYTHONHASHSEED was {' and '.join(HASH_SEEDS)})",
            )
    outcome_mismatch = _compare_outcomes(data.repeatable, first, second)
    if outcome_mismatch:
        return f"two processes come to something else with the same seed and actions: {outcome_mismatch}", (
            f"{SEED_HINT}, not from the clock or the system, and sort what comes from sets and hash()"
        )
    return None


def _compare_outcomes(records: Sequence[EpisodeRecord], first: ProcessResult, second: ProcessResult) -> str:
    for record, first_outcome, second_outcome in zip(records, first.outcomes, second.outcomes, strict=False):
        if first_outcome != second_outcome:
            return f"{record.name}: {first_mismatch(first_outcome, second_outcome)}"
    return ""


def _first_mismatch(records: Sequence[EpisodeRecord], others: Sequence[EpisodeRecord]) -> str:
    """Return the first episode with another outcome, and the mismatch; "" if none."""
    for record, other in zip(records, others, strict=True):
        if record.outcome != other.outcome:
            return f"{record.name}: {first_mismatch(record.outcome, other.outcome)}"
    return ""


ERROR_KINDS = ("raised", "hung")


def check_episodes(data: CheckData) -> Iterator[Finding]:
    """Check that ordinary episodes run without errors and timeouts."""
    faults = [(record, fault) for record in data.records for fault in record.faults if fault.kind in ERROR_KINDS]
    for record, fault in faults[:1]:
        verb = "raised" if fault.kind == "raised" else "hung:"
        yield Finding(
            "failure",
            f"{record.name}: {fault.call}() {verb} {fault.message}",
            f"put right what {fault.call}() does there: an episode in which that happens is lost",
        )


def check_odd_outputs(data: CheckData) -> Iterator[Finding]:
    """Check that odd model outputs cause neither errors, timeouts nor invalid results."""
    known_faults = {(fault.kind, fault.call) for record in data.records for fault in record.faults}
    faults = [
        (record, fault)
        for record in data.odd_records
        for fault in record.faults
        if (fault.kind, fault.call) not in known_faults and fault.kind != "close"
    ]
    if faults:
        record, fault = faults[0]
        verb = {"raised": "raised", "hung": "hung:"}.get(fault.kind, "was wrong: it")
        others = f"; and {summarize([other.player for other, _ in faults[1:]])}" if len(faults) > 1 else ""
        yield Finding(
            "failure",
            f"{record.name}: {fault.call}() {verb} {fault.message}{others}",
            "a model's mistake is no error: tell it in the next observation, and let it cost what the rules say",
        )


def check_termination(data: CheckData) -> Iterator[Finding]:
    """Check that episodes end without an external limit."""
    records = data.valid_records
    if records and not any(record.ended for record in records):
        yield Finding(
            "failure",
            f"none of {len(records)} episodes ended within {data.max_steps} steps",
            "return terminated=True when the task is over, and truncated=True when it has taken too long; where it "
            "takes more steps than that, allow them: max_steps of [rollout] in its recipe",
        )
        return
    unended = [
        record.name for record in [*records, *data.odd_records] if record.is_valid and record.steps and not record.ended
    ]
    if unended:
        yield Finding(
            "warning",
            f"{len(unended)} episodes did not end within {data.max_steps} steps: {summarize(unended, 1)}",
            "end an episode that comes to nothing with truncated=True, after a number of steps that is a key",
        )


def check_closing(data: CheckData) -> Iterator[Finding]:
    """Check that sessions close without errors, at the end and before."""
    for record in [*data.records, *data.odd_records]:
        for fault in record.faults:
            if fault.kind == "close":
                yield Finding(
                    "failure",
                    f"{record.name}: close() raised {fault.message}",
                    "close what was opened, also where nothing was",
                )
                return


def check_leaks(data: CheckData) -> Iterator[Finding]:
    """Check that finished episodes leave no threads, processes or files open."""
    episodes = len(data.repeatable)
    grown = [f"{count} {kind}" for kind, count in data.leaks.items() if count >= max(1, episodes // 2)]
    if grown:
        yield Finding(
            "failure", f"after {episodes} episodes there are {', '.join(grown)} more", "let go of them in close()"
        )


MAX_IDLE_SHARE = 0.5  # CPU time per wall-clock time, below which a thread waits


def call_seconds(data: CheckData) -> dict[str, list[float]]:
    """Return the best time for each call, in seconds, by kind of call.

    Each call was made several times. The best time excludes other load on the machine.
    """
    seconds: dict[str, list[float]] = defaultdict(list)
    for pair in _repeated_calls(data):
        seconds[pair[0].name].append(min(call.seconds for call in pair))
    return dict(seconds)


def check_slow_calls(data: CheckData) -> Iterator[Finding]:
    """Check for slow calls and slow loading."""
    limits = data.limits
    if data.loaded.seconds > limits.max_load_seconds:
        yield Finding(
            "warning",
            f"the tasks of all splits take {data.loaded.seconds:.1f} s",
            "every run waits for them; draw fewer",
        )
    slow = []
    for name, seconds in call_seconds(data).items():
        if median(seconds) > limits.max_median_seconds or max(seconds) > limits.max_call_seconds:
            slow.append(f"{name}() takes {median(seconds):.3g} s in the middle, {max(seconds):.3g} s at most")
    if slow:
        yield Finding(
            "warning",
            "; ".join(slow),
            "do what is slow once, in tasks(); or play in processes beside the run (rollout.workers)",
        )


def check_blocking(data: CheckData) -> Iterator[Finding]:
    """Check that no call blocks its thread for long without awaiting."""
    blocking: dict[str, list[TimedCall]] = defaultdict(list)
    for pair in _repeated_calls(data):
        shortest = min(pair, key=lambda call: call.blocking_seconds)
        if shortest.blocking_seconds > data.limits.max_blocking_seconds:
            blocking[shortest.name].append(shortest)
    for name, calls in blocking.items():
        worst = max(calls, key=lambda call: call.blocking_seconds)
        waits = worst.cpu_seconds < MAX_IDLE_SHARE * worst.blocking_seconds
        yield Finding(
            "warning",
            f"{name}() keeps its thread for {1000 * worst.blocking_seconds:.0f} ms without awaiting, in {len(calls)} "
            f"calls: it {'sleeps, or waits for a disk or a network' if waits else 'computes'}",
            "await asyncio.sleep(…), or a library that awaits"
            if waits
            else "compute it once, when tasks are drawn, or in a process of its own",
        )


def check_outside_access(data: CheckData) -> Iterator[Finding]:
    """Check that sessions open no connections and start no programs."""
    outside_events = list(dict.fromkeys(data.outside_events))
    if outside_events:
        yield Finding(
            "warning",
            f"a session {summarize(outside_events)}",
            "what is answered there follows from no seed, and may be slow or gone: bring it along, or record it",
        )


def _repeated_calls(data: CheckData) -> Iterator[Sequence[TimedCall]]:
    """Yield the repetitions of each call."""
    for records in zip(data.repeatable, data.repeated, data.reseeded, strict=True):
        calls_by_record = [record.calls for record in records]
        if len({tuple(call.name for call in calls) for calls in calls_by_record}) == 1:
            yield from zip(*calls_by_record, strict=True)
