"""Metric catalog: label, unit, format, scope, direction, meaning and advice for each metric."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["team", "agent", "policy"]

TEAM_AND_AGENT: tuple[Scope, ...] = ("team", "agent")


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric in the catalog.

    >>> from marft.common.metrics import require_metric
    >>> require_metric("agents/actor/kl").label, require_metric("agents/actor/kl").format_value(0.01234)
    ('KL', '0.0123')

    Args:
        name: name in ``metrics.jsonl``, without ``agents/<role>/`` or ``policies/<name>/``; ``*`` matches any name.
        label: label in step lines, in tables and above curves.
        description: measured quantity, and the population it covers.
        unit: unit; "" for a share, a reward, or a count of the label's noun.
        format: Python format specification.
        scopes: scopes that the metric is written for: the team, each agent, each policy.
        better: direction of improvement; "" if neutral.
        hint: remedy for a suspicious value.
        hide_zero: hide the metric in step lines while it is 0.
    """

    name: str
    label: str
    description: str
    format: str = ".2f"
    unit: str = ""
    scopes: tuple[Scope, ...] = ("team",)
    better: Literal["higher", "lower", ""] = ""
    hint: str = ""
    hide_zero: bool = False

    def format_value(self, value: float) -> str:
        """Return a value in the metric's format."""
        return format(value, self.format)


CATALOG: dict[str, list[Metric]] = {
    "What was earned": [
        Metric("reward", "reward", "mean team reward of scored episodes", better="higher"),
        Metric("reward_std", "reward deviation", "deviation of the team reward between episodes; in the terminal ±",
               hint="near 0 there is nothing to learn from: other tasks, or a reward with more shades"),
        Metric("accuracy", "accuracy", "task completion: share of scored episodes solved, of those whose success is "
               "known", better="higher"),
        Metric("pass@*", "pass at k", "how likely one of k attempts at a task solves it, 1 − C(n − c, k) / C(n, k) for "
               "c of n attempts that did (Chen et al. 2021), mean over tasks with at least k", better="higher",
               hint="far above accuracy: the team can do it, and does not do it every time; at 0 nothing is found"),
        Metric("pass^*", "pass hat k", "how likely all of k attempts at a task solve it, C(c, k) / C(n, k) for c of n "
               "attempts that did (Yao et al. 2024), mean over tasks with at least k", better="higher",
               hint="far below accuracy: some attempts at the same task fail, and nobody can rely on the team"),
        Metric("avg@*", "average at k", "c / n for c of n attempts at a task that solved it, mean over tasks with at "
               "least k", better="higher"),
        Metric("success_unknown", "success unknown", "scored episodes of which the environment does not say whether "
               "they were solved", ".0f", hide_zero=True),
        Metric("validation_accuracy", "validation", "accuracy on the validation split", better="higher"),
        Metric("validation_reward", "validation reward", "mean team reward on the validation split", better="higher"),
        Metric("rewards/*", "reward term", "what a reward term gave in an episode, on average", "+.3f",
               scopes=TEAM_AND_AGENT),
        Metric("own_reward", "own reward", "mean reward of this agent alone, in an episode", scopes=("agent",),
               better="higher", hide_zero=True),
    ],
    "What was played": [
        Metric("episodes", "episodes", "attempts at tasks", ".0f"),
        Metric("episodes_dropped", "dropped", "episodes that could not be scored, and so left the batch", ".0f",
               better="lower", hide_zero=True, hint="`marft show RUN --failed` says why, by reason"),
        Metric("episodes_failed", "failed", "dropped, as something raised or gave what cannot be used", ".0f",
               better="lower"),
        Metric("episodes_timed_out", "timed out", "dropped, as something took too long", ".0f", better="lower",
               hint="raise rollout.timeout_seconds, or make the environment faster"),
        Metric("environment/*", "measured", "what the environment itself measures, as declared last in an episode, "
               "mean over scored episodes that have it", ".2f"),
        Metric("curriculum/level", "level", "the hardest that tasks are drawn from, 1 for the easiest", ".0f"),
        Metric("curriculum/solved/*", "solved at it", "share of episodes at a level that solved their task", ".0%"),
        Metric("league/rating", "rating", "Elo of the learner as its matches against past versions move it; the "
               "untuned version has 0", "+.0f", better="higher"),
        Metric("league/members", "versions", "past versions that the learner plays against", ".0f"),
        Metric("league/win_rate", "won", "share of matches won of late against each past version, draws for one half, "
               "mean over versions", ".0%", better="higher"),
        Metric("league/hardest_win_rate", "won against the hardest", "the same against the version that is beaten "
               "least", ".0%", better="higher",
               hint="far below one half: the learner has forgotten how to beat an earlier self; draw versions with "
               "selection = 'prioritized', or keep more of them (pool.size)"),
        Metric("league/hardest_step", "the hardest", "step at which that version joined", ".0f"),
        Metric("prompt_version", "instructions", "the version of its instructions that an agent is told after this "
               "step, where they are learned; 0 is the recipe's", ".0f", scopes=("agent",)),
        Metric("prompt_optimization/proposals", "tried", "instructions that were tried in a round", ".0f"),
        Metric("prompt_optimization/accepted", "accepted", "of these, those that agents are told from here on", ".0f"),
        Metric("prompt_optimization/gain", "gain", "what accepted instructions gained of held-out success over those "
               "before, mean", "+.1%", better="higher"),
        Metric("prompt_optimization/tokens", "tokens of rounds", "that a round's episodes and proposers took, those of "
               "prompts included; they are in no other metric", ".0f", "tokens"),
        Metric("environment_steps", "environment steps", "steps of scored episodes", ".0f"),
        Metric("sampled_actions", "sampled actions", "actions sampled, forks included, what they replay once", ".0f"),
        Metric("actions", "actions", "actions of scored episodes", ".0f", scopes=TEAM_AND_AGENT),
        Metric("action_length", "length", "tokens that an action sampled, mean", ".1f", "tokens", TEAM_AND_AGENT,
               hint="one that only grows, or falls to a few tokens, is being gamed: look at what it says"),
        Metric("truncation_rate", "truncated", "share of actions that ran into max_new_tokens", ".0%",
               scopes=TEAM_AND_AGENT, better="lower", hide_zero=True,
               hint="raise sampling.max_new_tokens, or price length"),
        Metric("prompt_tokens", "prompt", "tokens that an action was sampled from, mean", ".1f", "tokens",
               TEAM_AND_AGENT),
        Metric("prefill/prompt_tokens", "prompts' tokens", "tokens of all prompts that were sampled from", ".0f",
               "tokens"),
        Metric("prefill/computed_tokens", "of them computed", "tokens of prompts that were computed: what attempts, "
               "turns and tasks have in common counts once", ".0f", "tokens", better="lower",
               hint="where it is near what was asked and episodes have turns, raise engine.prefix_cache_mb"),
        Metric("truncated_tokens", "tokens cut", "tokens of prompts that did not fit, in all", ".0f", "tokens",
               TEAM_AND_AGENT, better="lower", hide_zero=True,
               hint="raise the model's context, or let messages be shorter"),
        Metric("token_share", "share of tokens", "of the team's own tokens, how many are this agent's", ".0%",
               scopes=("agent",)),
        Metric("repetition", "repeats", "1 − |different 4-grams| / |4-grams| of an action's own tokens, mean over "
               "actions that have any (seq-rep-4, Welleck et al. 2020)", ".0%", scopes=("agent",), better="lower",
               hint="one that grows while no more is solved is being gamed: look at what it says"),
        Metric("other_script", "other scripts", "share of letters of a script that neither the task nor what the "
               "environment has shown uses", ".0%", scopes=("agent",),
               hint="where it rises, the language changes: say in instructions which one"),
        Metric("characters/*", "characters", "share of letters, digits, spaces, breaks (of lines) or marks (all else) "
               "in an agent's text", ".0%", scopes=("agent",)),
        Metric("format_rate", "format", "share of actions that hold the pattern of guards.formats", ".0%",
               scopes=("agent",), better="higher"),
        Metric("message_tokens", "messages", "tokens that agents read of others in an episode, or that others read of "
               "this agent", ".1f", "tokens", TEAM_AND_AGENT),
        Metric("message_information", "told", "mutual information I of what an agent alone knew (`hidden`) and what it "
               "said, adjusted for chance: Ĥ (I − null) / (H − null), where null is the mean of I over 20 shuffles of "
               "the pairs, H the entropy of what it knew and Ĥ the same with its bias corrected (`hidden_entropy`)",
               ".2f", "bits", ("agent",), better="higher",
               hint="near 0 the messages tell nothing of it, near `hidden_entropy` all of it; noisy with fewer than "
               "about 4 episodes a message"),
        Metric("hidden_entropy", "to be told", "entropy Ĥ(X) of what an agent alone knew, as declared: the most that "
               "it could tell; needs `hidden`", ".2f", "bits", ("agent",)),
        Metric("prompt_resets", "restarts", "how often a chat was rendered anew in place of going on by its ids: "
               "prompts of agents with a memory, and turns after tools have answered", ".0f", scopes=TEAM_AND_AGENT,
               better="lower", hide_zero=True,
               hint="`marft show` says why: a full context, or a chat template that changes earlier turns"),
        Metric("gateway/segments/*", "new segments", "actions of a program's agents that do not go on by the ids of "
               "all that they said before: its history was edited or trimmed, other tools are offered, or the chat "
               "template rewrites it", ".0f", scopes=TEAM_AND_AGENT, better="lower", hide_zero=True,
               hint="`marft show` says why; what is sent back as it came is gone on from by its ids"),
        Metric("gateway/idle_timeouts", "overdue", "how often others were sampled without a program that asked for "
               "nothing in team.idle_timeout_seconds", ".0f", better="lower", hide_zero=True,
               hint="raise it, or let the program say that it waits: a run is then the same again"),
        Metric("tool_use_rate", "uses tools", "share of actions that call a tool", ".0%", scopes=TEAM_AND_AGENT),
        Metric("tool_calls", "calls", "calls of tools", ".0f", scopes=TEAM_AND_AGENT),
        Metric("tool_errors", "failed calls", "calls that could not be read, or failed", ".0f", scopes=TEAM_AND_AGENT,
               better="lower", hint="`marft show` has the answers that agents got"),
        Metric("tool_tokens", "tools' tokens", "tokens of tools' answers, but for those in chats that were rendered "
               "anew", ".0f", "tokens", TEAM_AND_AGENT),
        Metric("tool_seconds", "seconds a call", "mean time of a call", ".2f", "s", TEAM_AND_AGENT, better="lower"),
        Metric("helper_call_rate", "asks helpers", "share of actions that ask a helper in the middle of a turn", ".0%",
               scopes=TEAM_AND_AGENT),
        Metric("helper_calls", "questions", "questions to helpers", ".0f", scopes=TEAM_AND_AGENT),
        Metric("teammate_tokens", "teammates' tokens", "tokens of helpers' replies in agents' turns, and of what "
               "teammates began", ".0f", "tokens", TEAM_AND_AGENT),
        Metric("forks", "forks", "episodes played again from one action on", ".0f"),
        Metric("forks_failed", "forks failed", "forks that could not be scored", ".0f", better="lower",
               hint="environment or organization do not do the same again under the same seed"),
        Metric("groups_discarded", "groups discarded", "groups in which everybody earned the same, drawn again", ".0f"),
        Metric("threads_abandoned", "threads given up", "threads of sessions, tools or terms that hang", ".0f",
               better="lower"),
        Metric("sessions_not_closed", "not closed", "sessions and organizations whose close() went wrong", ".0f",
               better="lower"),
        Metric("workers_lost", "workers lost", "worker processes that ended or hung", ".0f",
               better="lower", hide_zero=True, hint="stderr has what each of them printed last"),
        Metric("episodes_retried", "played again", "attempts that were lost with a worker process, and "
               "played again under the same keys", ".0f", better="lower", hide_zero=True),
        Metric("tasks_excluded", "set aside", "tasks that ended 1 + rollout.max_retries worker processes, each with "
               "nothing else in it, and are drawn no more", ".0f", better="lower", hide_zero=True,
               hint="`marft show --failed` has their names, and how the last process ended"),
        Metric("ranks_lost", "ranks lost", "times that processes which learn together were started again, and the step "
               "learned once more", ".0f", better="lower", hide_zero=True, hint="give them more memory, or "
               "training.rank_timeout_seconds"),
        Metric("engine_restarts", "engine restarts", "how often an engine apart was started again", ".0f",
               better="lower", hide_zero=True, hint="give it more memory, or engine.timeout_seconds"),
    ],
    "The joint trajectory": [
        Metric("goal_progress", "progress", "declared progress after the last step, p_T, mean over episodes that have "
               "one; needs `progress`", better="higher"),
        Metric("trajectory_score", "trajectory", "declared progress after each step, Σ_t p_t / T, mean over episodes "
               "that have one: what comes late or is lost again lowers it; needs `progress`", better="higher"),
        Metric("step_efficiency", "step efficiency", "S · L / max(L, T): 1 or 0 for solved or not, times the fewest "
               "steps over those taken, mean over episodes; needs `fewest_steps`", better="higher"),
        Metric("tool_selection_accuracy", "right tools", "share of calls that are of a tool that is right in their "
               "step, of those that name one; needs `right_tools`", ".0%", scopes=TEAM_AND_AGENT, better="higher",
               hint="say in instructions, or in the tool's description, what it is for"),
        Metric("tool_error_rate", "calls failed", "share of calls that could not be read, or failed", ".0%",
               scopes=TEAM_AND_AGENT, better="lower", hint="`marft show` has the answers that agents got"),
        Metric("handoff_loop_rate", "hand-off loops", "share of episodes in which two agents pass control back and "
               "forth (a → b → a) more than twice in an environment step, each having seen the other; of an agent, "
               "those in which it is one of them", ".0%", scopes=TEAM_AND_AGENT, better="lower", hide_zero=True,
               hint="`marft graph` shows it; say in instructions who decides"),
        Metric("re_ask_rate", "asks again", "share of actions that have read a message of another agent, and ask for "
               "what it says: a question all of whose words, but for English function words, are in one message that "
               "was read, and that does not stand in the observation", ".0%", scopes=TEAM_AND_AGENT, better="lower",
               hide_zero=True, hint="messages that are too long, or cut, are not read: price message_tokens"),
        Metric("role_adherence", "in role", "share of actions that call no tool but what their role may, of agents of "
               "which that is declared; needs `allowed_tools`", ".0%", scopes=TEAM_AND_AGENT, better="higher",
               hint="do not offer an agent what it may not use"),
        Metric("cost_tokens", "tokens an episode", "read and written, Σ_a |prompt| + |tokens|, mean over episodes",
               ".0f", "tokens", TEAM_AND_AGENT, better="lower"),
        Metric("cost_seconds", "busy", "seconds that agents took, Σ_a ended − started, mean over episodes", ".2f", "s",
               TEAM_AND_AGENT, better="lower"),
        Metric("cost_money", "paid", "to endpoints for actions that came about, by the recipe's prices, mean over "
               "episodes", ".4f", "currency", TEAM_AND_AGENT, better="lower", hide_zero=True),
        Metric("critical_path_seconds", "critical path", "seconds of the longest chain of actions each of which had "
               "seen the one before, added up over environment steps, mean over episodes: what acting at once cannot "
               "shorten", ".2f", "s", better="lower"),
    ],
    "Safety": [
        Metric("attack_success", "attacks obeyed", "share of attacked episodes in which the team did what the attack "
               "asked for, but for attacks that reached nobody in any; this and all below are of `marft eval --suite`",
               ".1%", better="lower", hint="findings.jsonl beside the evaluation says who did what where"),
        Metric("attack_reached", "attacks read", "share of attacked episodes in which an agent read what was planted",
               ".1%"),
        Metric("attack_success_reached", "read and obeyed", "attack_success of the episodes in which an agent read "
               "what was planted", ".1%", better="lower"),
        Metric("utility_under_attack", "solved under attack", "share of attacked episodes that were solved without "
               "doing what the attack asked for, of those whose success is known", ".1%", better="higher"),
        Metric("attacks/*/success", "attack obeyed", "attack_success of one attack", ".1%", better="lower"),
        Metric("attacks/*/reached", "attack read", "attack_reached of one attack", ".1%"),
        Metric("attacks/*/utility", "solved under it", "utility_under_attack of one attack", ".1%", better="higher"),
        Metric("attacks/*/unprompted", "unprompted", "share of episodes without any attack in which the team did what "
               "this one asks for all the same", ".1%", better="lower"),
        Metric("content_violation_rate", "rules broken", "share of episodes without an attack that broke a rule", ".1%",
               better="lower"),
        Metric("content_violation_rate_under_attack", "broken under attack", "share of attacked episodes that broke a "
               "rule", ".1%", better="lower"),
        Metric("rules/*/rate", "rule broken", "content_violation_rate of one rule", ".1%", better="lower"),
        Metric("rules/*/rate_under_attack", "rule broken under attack", "content_violation_rate_under_attack of one "
               "rule", ".1%", better="lower"),
        Metric("false_refusal_rate", "refused", "share of episodes without an attack whose answer is a refusal, and "
               "that were not solved", ".1%", better="lower"),
    ],
    "Credit": [
        Metric("zero_advantage_fraction", "zero advantages", "share of decisions whose advantage is exactly 0: they "
               "teach nothing", ".0%", scopes=TEAM_AND_AGENT, better="lower", hide_zero=True,
               hint="tasks that are always or never solved; easier or harder ones, or dynamic_sampling"),
        Metric("groups", "groups", "groups of attempts that were compared", ".0f"),
        Metric("group_size", "group size", "attempts in a group, mean", ".1f"),
        Metric("group_size_min", "smallest group", "attempts in the smallest group", ".0f"),
        Metric("singleton_groups", "groups of one", "groups with one scored attempt: no baseline", ".0f",
               better="lower"),
        Metric("zero_variance_groups", "equal groups", "groups in which everybody earned the same", ".0f",
               better="lower"),
        Metric("groups_without_local_signal", "no local signal", "groups in which an agent's own rewards are all equal "
               "(CoMAM)", ".0f"),
        Metric("global_weight", "global weight", "weight of the team's reward beside the agent's own, mean over groups "
               "in which the team's differs (CoMAM)", scopes=TEAM_AND_AGENT),
        Metric("fallback_fraction", "fell back", "share of those groups in which the agent's own rewards are all "
               "equal, so that the weight is `fallback_weight` (CoMAM)", ".0%", scopes=TEAM_AND_AGENT),
        Metric("preference/pairs", "pairs", "comparisons of a better and a worse side (DPO)", ".0f"),
        Metric("preference/equal_pairs", "equal pairs", "of those there would be, dropped: both sides earned the same",
               ".0f", better="lower"),
        Metric("imitation/selected", "repeated", "attempts, or agents' parts of them, that are learned (RFT)", ".0f"),
        Metric("imitation/duplicates", "said before", "left out: the same was said at the task", ".0f"),
        Metric("imitation/truncated", "cut off", "left out: a text was cut off at its longest", ".0f", better="lower"),
        Metric("imitation/surplus", "spare", "left out: credit.max_per_task others are kept", ".0f"),
        Metric("baseline", "baseline", "running mean that returns are compared with (RAE)", scopes=("agent",)),
        Metric("likelihood/successes", "successes", "actions of solved episodes that the likelihood term raises",
               ".0f"),
        Metric("likelihood/judged_by_reward", "judged by reward", "of those, successes by reward alone", ".0f"),
    ],
    "The policies' update": [
        Metric("policy_loss", "policy loss", "surrogate and extra terms, mean over minibatches", "+.3f"),
        Metric("preference/loss", "pair loss", "of comparisons, mean over minibatches, before each step", ".3f",
               better="lower", hint="log 2 = 0.693 where nothing is told apart yet"),
        Metric("preference/accuracy", "pairs right", "share of comparisons whose better side has the larger log-ratio "
               "to the reference; ties count half", ".0%", better="higher"),
        Metric("preference/margin", "margin", "log-ratio of the better side less that of the worse, mean over "
               "comparisons; of an agent its own part of it", "+.3f", "nats", TEAM_AND_AGENT, better="higher"),
        Metric("preference/chosen_log_ratio", "better", "Σ (log π − log π_ref) / Z over a better side's actions, mean",
               "+.3f", "nats", hint="where it falls, the policies move away from what is good, too: imitation"),
        Metric("preference/rejected_log_ratio", "worse", "the same of worse sides", "+.3f", "nats"),
        Metric("entropy", "entropy", "mean over sampled tokens", ".3f", "nats", TEAM_AND_AGENT,
               hint="near 0 nothing is explored any more; a surge comes before a collapse"),
        Metric("kl", "KL", "of the whole update, from the policy before the step to the one after it: k3, mean over "
               "sampled tokens of whole actions, drawn until they hold 1,024 of each agent, and at least four", ".4f",
               "nats", TEAM_AND_AGENT,
               hint="above 0.05 the step is large: a lower learning rate, or fewer epochs and minibatches"),
        Metric("kl_before_step", "KL before", "from the policy that the step began with, k3, mean over the tokens of "
               "all minibatches, each before its optimizer step: 0 at the first; algorithm.kl_stop looks at it", ".4f",
               "nats", TEAM_AND_AGENT),
        Metric("kl_to_base", "KL to base", "from the untuned base, k3, mean over sampled tokens", ".3f", "nats",
               TEAM_AND_AGENT),
        Metric("base_surprisal", "surprisal", "−log π_base of sampled tokens under the untuned base, at the sampling "
               "temperature: how unreadable they are to it; over the actions of KL to base", ".3f", "nats",
               TEAM_AND_AGENT,
               hint="far above its first steps: texts that the base would not write; algorithm.kl holds it"),
        Metric("dependence/*", "owed to", "(log π(a | inputs) − log π(a | others)) / tokens of an answering agent's "
               "action, median over guards.probes actions; others are the whole prompt of another task (inputs), or "
               "its messages alone (messages); of one action an estimate of what it tells of them (after CLUB, "
               "Cheng et al. 2020)", ".2f", "nats", ("agent",),
               hint="near 0 the text is the same whatever it is asked or told"),
        Metric("held_out_loss", "held-out text", "−log π of the tokens of guards.held_out_text, mean, at temperature "
               "1, before the step", ".3f", "nats", ("policy",), better="lower",
               hint="where it rises, the policy forgets: a lower learning rate, or algorithm.kl"),
        Metric("clip_fraction", "clipped", "share of units whose gradient the clip removes", ".1%",
               scopes=TEAM_AND_AGENT,
               hint="above 30 % most of the batch teaches nothing: a lower learning rate or fewer epochs"),
        Metric("gradient_share", "gradient share", "share of the policies' gradient that comes from this agent's "
               "tokens", ".0%", scopes=("agent",), hint="an agent near 0 does not learn"),
        Metric("sampler_weight", "sampler weight", "mean weight of the sampler correction", scopes=TEAM_AND_AGENT),
        Metric("teammate_weight", "others' text", "mean weight of tokens that others wrote in an agent's turn"),
        Metric("ess", "effective sample", "(Σw)² / (N Σw²) over the sampler correction's weights w of N units: "
               "which share of so many units of one weight says as much (Kish 1965)", ".0%", scopes=TEAM_AND_AGENT,
               better="higher", hint="below a half few units decide: a smaller rollout.reuse or max_policy_lag"),
        Metric("reused_episodes", "learned again", "episodes of earlier steps that are learned from again", ".0f"),
        Metric("log_prob_difference", "engine to learner", "mean |log π − log μ| over sampled tokens", ".1e", "nats",
               TEAM_AND_AGENT, better="lower", hint="above 0.05 set algorithm.sampler_correction"),
        Metric("log_prob_difference_max", "engine−learner", "the largest |log π − log μ| of a sampled token", ".1e",
               "nats", TEAM_AND_AGENT, better="lower"),
        Metric("packing_difference", "packing", "how far a score depends on what it is packed with", ".1e", "nats",
               better="lower", hint="not 0 on a device with inexact kernels: epochs = 1 where clips are narrow"),
        Metric("policy_lag", "lag", "updates by which the policy is newer than the one that acted", ".0f",
               scopes=TEAM_AND_AGENT, better="lower", hide_zero=True),
        Metric("policy_lag_max", "oldest", "updates by which a policy is newer, at most, than the one that sampled a "
               "token of what it learns from", ".0f", better="lower"),
        Metric("kl_stops", "KL stops", "phases that the KL stop has ended", ".0f", hide_zero=True,
               hint="at every step: a lower learning rate"),
        Metric("skipped_updates", "skipped updates", "share of optimizer steps skipped, as the gradient was not finite",
               scopes=("team", "policy"), better="lower", hide_zero=True),
        Metric("reverted_steps", "undone", "1 where the step left something not finite and was undone", ".0f",
               better="lower", hide_zero=True, hint="a lower learning rate; the note says whose"),
        Metric("gradient_norm", "gradient norm", "before clipping, mean over optimizer steps", ".3f",
               scopes=("team", "policy")),
        Metric("learning_rate", "rate", "of this step", ".1e", scopes=("policy",)),
        Metric("idle_phase_fraction", "idle phases", "share of phases whose policies had no actions"),
        Metric("team_kl", "team KL", "from the joint policy that the step began with, after it, k3, an environment "
               "step", ".4f", "nats"),
        Metric("accepted_fraction", "accepted", "how much of an update was kept (HATRPO, team_kl)", better="higher",
               hint="near 0 at every step: a lower learning rate does the same for less"),
        Metric("rollbacks", "rolled back", "share of updates that were undone whole (HATRPO)", better="lower"),
    ],
    "The critic": [
        Metric("critic/loss", "value loss", "mean over minibatches", ".3f", better="lower"),
        Metric("critic/explained_variance", "explained", "1 − Var(returns − values) / Var(returns)", better="higher",
               hint="0 or less: the critic knows nothing; a longer warm-up or a higher rate"),
        Metric("critic/value", "value", "mean value of the batch's decisions", ".3f"),
        Metric("critic/gradient_norm", "value gradient", "before clipping, mean over optimizer steps", ".3f"),
        Metric("critic/skipped_updates", "skipped value updates", "share of the critic's steps skipped, as the "
               "gradient was not finite", better="lower"),
    ],
    "Guards": [
        Metric("guards/rolled_back_to", "back to step", "the checkpoint that the run has gone back to after this step",
               ".0f", hint="why is said beside it; guards.rollback_lr_factor says by how much rates are lower from "
               "there on"),
        Metric("guards/*", "guard", "1 in a step in which the guard of this name is raised; absent otherwise", ".0f",
               better="lower", hide_zero=True, hint="`marft train` and the report say what it saw and what to do"),
    ],
    "Warm starts from traces": [
        Metric("sft/loss", "imitation loss", "negative log-likelihood of the step's recorded turns, before it, mean "
               "over their tokens", ".3f", "nats", TEAM_AND_AGENT, better="lower"),
        Metric("sft/held_out_loss", "held out", "the same of turns that are not trained", ".3f", "nats", TEAM_AND_AGENT,
               better="lower", hint="where it rises, stop there: fewer epochs, or a lower sft.learning_rate"),
        Metric("sft/tokens", "imitated", "tokens that were trained", ".0f", "tokens"),
        Metric("sft/epoch", "epoch", "pass over the turns, counted from 1", ".0f"),
    ],
    "Imagined episodes": [
        Metric("imagined/enabled", "world model", "1 while the world model is believed, 0 while it is switched off, as "
               "it was wrong of real episodes", ".0f", better="higher",
               hint="it says why: a longer dyna.history_length, another dyna.model, or none"),
        Metric("imagined/share", "imagined", "share of the episodes learned from that are imagined", ".0%"),
        Metric("imagined/episodes", "imagined episodes", "episodes that were imagined, those that are left out "
               "included; no other metric counts them", ".0f"),
        Metric("imagined/rejected", "cut off", "imagined episodes that are left out, as the model is more uncertain of "
               "a step than dyna.max_uncertainty", ".0f", hint="where that is all of them, the model knows too little: "
               "a model that generalises, a longer warm-up, or a larger max_uncertainty"),
        Metric("imagined/failed", "not imagined", "imagined episodes that could not be scored", ".0f", better="lower",
               hide_zero=True),
        Metric("imagined/reward", "imagined reward", "mean return of the imagined episodes that are learned from"),
        Metric("imagined/uncertainty", "uncertainty", "of their steps, mean: how far the ensemble disagrees", ".3f"),
        Metric("imagined/fit_steps", "fitted to", "real environment steps that the model is fitted to", ".0f"),
        Metric("imagined/certain_fraction", "known", "share of the steps of the newest real episodes of which the "
               "model was no more uncertain than dyna.max_uncertainty, before it was fitted to them", ".0%",
               better="higher"),
        Metric("imagined/prediction_error", "missed", "1 − the probability that it gave, of those, to what came next, "
               "mean; chance in the world itself is among it", ".1%", better="lower"),
        Metric("imagined/reward_error", "reward error", "|Σ (r − E r)| over those of an episode, mean", better="lower"),
    ],
    "Asynchronous training": [
        Metric("async/groups_ready", "groups waiting", "groups that were played and wait for their step, once the "
               "step's own were taken", ".0f"),
        Metric("async/groups_in_flight", "groups in play", "groups that are played then", ".0f"),
        Metric("async/groups_dropped", "groups dropped", "groups dropped, as they were older than "
               "rollout.max_policy_lag, or of a policy that the run has gone back from", ".0f", better="lower",
               hide_zero=True),
        Metric("async/learner_idle_seconds", "learner idle", "time that the learner waited for the step's groups",
               ".2f", "s",
               better="lower", hint="far above 0: the sampler or the environment is what takes the time"),
        Metric("async/sampler_idle_seconds", "sampler idle", "time in which nothing was played, as all that may be "
               "sampled had been, from the last step's groups on", ".2f", "s", better="lower",
               hint="far above 0: the learner is what takes the time; a larger lag does not help"),
        Metric("async/overlap", "overlap", "share of the time in which the learner did anything but wait, in "
               "which episodes were played", ".0%", better="higher"),
    ],
    "What it took": [
        Metric("seconds", "step seconds", "the whole step", ".1f", "s", better="lower"),
        Metric("seconds/*", "seconds", "of one phase of a step: sampling, learning, prompt_optimization, recording",
               ".2f", "s",
               better="lower"),
        Metric("credit_bytes", "credit", "size of what was recorded of the step's actions after credit", ".0f", "bytes",
               better="lower", hint="training.record_credit = false records none"),
        Metric("episodes_per_second", "episodes/s", "of the whole step", ".0f", better="higher"),
        Metric("tokens_per_second/*", "tokens/s", "sampled, or read while learning", ".0f", better="higher"),
        Metric("device/peak_memory", "peak memory", "the most that tensors had of the learner's GPU at any time of the "
               "step, of several ranks the first one's; what the allocator keeps beside it is not in it; absent on a "
               "CPU", ".0f", "bytes", better="lower", hint="`marft plan` says what it is made of; "
               "training.tokens_per_micro_batch lowers it"),
        Metric("learner/mfu", "MFU", "operations of the policies' forward and backward passes over those of the GPUs' "
               "sheets in the seconds of learning (model FLOPs utilization, Chowdhery et al. 2022); what is computed "
               "again counts once, critic and scores before the update not at all; absent on a CPU, on cards that "
               "`marft plan` does not know, and of models whose sizes it does not", ".1%", better="higher",
               hint="small micro-batches and short rows keep it low: raise training.tokens_per_micro_batch"),
        Metric("remote_*", "remote", "what teammates behind endpoints took: prompt_tokens, completion_tokens, retries",
               ".0f", scopes=TEAM_AND_AGENT),
        Metric("remote_cost", "cost", "of teammates behind endpoints, in the currency of the recipe's prices", ".4f",
               scopes=TEAM_AND_AGENT, better="lower", hide_zero=True),
        Metric("judge/*", "judge", "what judges took: questions, requests, cache_hits, not_cached, tokens, retries",
               ".0f"),
        Metric("judge/cost", "judge's cost", "in the currency of the recipe's prices", ".4f", better="lower",
               hide_zero=True),
    ],
}  # fmt: skip
