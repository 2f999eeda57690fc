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
    "Rewards and success": [
        Metric("reward", "reward", "mean team reward of scored episodes", better="higher"),
        Metric("reward_std", "reward deviation", "standard deviation of the team reward between scored episodes; step "
               "lines show ± before the value",
               hint="near 0, episodes teach nothing: use other tasks, or a reward with more levels"),
        Metric("accuracy", "accuracy", "share of scored episodes with a solved task, among episodes with known success",
               better="higher"),
        Metric("pass@*", "pass at k", "probability that at least one of k attempts solves a task, 1 − C(n − c, k) / "
               "C(n, k) for c solved of n attempts (Chen et al. 2021), averaged over tasks with at least k attempts",
               better="higher",
               hint="far above accuracy: the team can solve the tasks, but not every time; 0: no attempt succeeds"),
        Metric("pass^*", "pass hat k", "probability that k of k attempts solve a task, C(c, k) / C(n, k) for c solved "
               "of n attempts (Yao et al. 2024), averaged over tasks with at least k attempts", better="higher",
               hint="far below accuracy: the team is unreliable, because some attempts at the same task fail"),
        Metric("avg@*", "average at k", "share of solved attempts at a task, c / n, averaged over tasks with at least "
               "k attempts", better="higher"),
        Metric("success_unknown", "success unknown", "number of scored episodes without a success value from the "
               "environment", ".0f", hide_zero=True),
        Metric("validation_accuracy", "validation", "sampled accuracy on the validation split", better="higher"),
        Metric("validation_reward", "validation reward", "mean team reward on the validation split, sampled",
               better="higher"),
        Metric("rewards/*", "reward term", "mean contribution of one reward term per episode", "+.3f",
               scopes=TEAM_AND_AGENT),
        Metric("own_reward", "own reward", "mean reward of this agent alone, per episode", scopes=("agent",),
               better="higher", hide_zero=True),
    ],
    "Episodes, actions and tokens": [
        Metric("episodes", "episodes", "number of attempts at tasks", ".0f"),
        Metric("episodes_dropped", "dropped", "number of episodes without a score, left out of the batch", ".0f",
               better="lower", hide_zero=True, hint="`marft show RUN --failed` lists the reasons"),
        Metric("episodes_failed", "failed", "number of episodes dropped after an exception or an unusable value", ".0f",
               better="lower"),
        Metric("episodes_timed_out", "timed out", "number of episodes dropped after a timeout", ".0f", better="lower",
               hint="raise rollout.timeout_seconds, or make the environment faster"),
        Metric("environment/*", "measured", "measurement by the environment: last declared value in an episode, "
               "averaged over scored episodes with a value"),
        Metric("curriculum/level", "level", "hardest level of the drawn tasks; 1 is the easiest", ".0f"),
        Metric("curriculum/solved/*", "solved at it", "share of solved episodes at one level", ".0%"),
        Metric("league/rating", "rating", "Elo rating of the learner from matches against past versions; the untuned "
               "version has 0", "+.0f", better="higher"),
        Metric("league/members", "versions", "number of past versions in the opponent pool", ".0f"),
        Metric("league/win_rate", "won", "recent share of matches won against each past version, averaged over "
               "versions; a draw counts one half", ".0%", better="higher"),
        Metric("league/hardest_win_rate", "won against the hardest", "recent share of matches won against the hardest "
               "past version; a draw counts one half", ".0%", better="higher",
               hint="far below one half: the learner has forgotten how to beat an earlier version; set selection = "
               "'prioritized', or keep more versions (pool.size)"),
        Metric("league/hardest_step", "the hardest", "training step of the hardest past version", ".0f"),
        Metric("prompt_version", "instructions", "version of the agent's learned instructions after this step; 0 is "
               "the recipe's text", ".0f", scopes=("agent",)),
        Metric("prompt_optimization/proposals", "tried", "number of instructions tried in a round", ".0f"),
        Metric("prompt_optimization/accepted", "accepted", "number of tried instructions that agents use from this "
               "step on", ".0f"),
        Metric("prompt_optimization/gain", "gain", "gain in held-out success of accepted instructions over their "
               "predecessors, mean", "+.1%", better="higher"),
        Metric("prompt_optimization/tokens", "tokens of rounds", "tokens of a round's episodes and proposers, prompts "
               "included; no other metric counts these tokens", ".0f", "tokens"),
        Metric("environment_steps", "environment steps", "number of environment steps in scored episodes", ".0f"),
        Metric("sampled_actions", "sampled actions", "number of sampled actions, forks included; a replayed action "
               "counts once", ".0f"),
        Metric("actions", "actions", "number of actions in scored episodes", ".0f", scopes=TEAM_AND_AGENT),
        Metric("action_length", "length", "sampled tokens per action, mean", ".1f", "tokens", TEAM_AND_AGENT,
               hint="steady growth, or a fall to a few tokens, suggests reward hacking: read the texts"),
        Metric("truncation_rate", "truncated", "share of actions cut off at max_new_tokens", ".0%",
               scopes=TEAM_AND_AGENT, better="lower", hide_zero=True,
               hint="raise sampling.max_new_tokens, or put a price on length"),
        Metric("prompt_tokens", "prompt", "prompt tokens per action, mean", ".1f", "tokens", TEAM_AND_AGENT),
        Metric("prefill/prompt_tokens", "prompts' tokens", "tokens of each prompt given to the engine, summed", ".0f",
               "tokens"),
        Metric("prefill/computed_tokens", "of them computed", "prompt tokens computed by the engine; a common prefix "
               "of attempts, turns or tasks counts once", ".0f", "tokens", better="lower",
               hint="close to prefill/prompt_tokens although episodes have several turns: raise "
               "engine.prefix_cache_mb"),
        Metric("truncated_tokens", "tokens cut", "prompt tokens cut to fit the context, summed", ".0f", "tokens",
               TEAM_AND_AGENT, better="lower", hide_zero=True, hint="raise the model's context, or shorten messages"),
        Metric("token_share", "share of tokens", "this agent's share of the tokens sampled by the team", ".0%",
               scopes=("agent",)),
        Metric("repetition", "repeats", "1 − |different 4-grams| / |4-grams| of an action's own tokens, averaged over "
               "actions with a 4-gram (seq-rep-4, Welleck et al. 2020)", ".0%", scopes=("agent",), better="lower",
               hint="growth without more solved tasks suggests reward hacking: read the texts"),
        Metric("other_script", "other scripts", "share of letters in a script absent from the task and from the "
               "environment's texts", ".0%", scopes=("agent",),
               hint="a rise means a change of language: name the language in the instructions"),
        Metric("characters/*", "characters", "share of one kind of character in the agent's text: letters, digits, "
               "spaces, breaks (of lines) or marks (the rest)", ".0%", scopes=("agent",)),
        Metric("format_rate", "format", "share of actions that match the agent's pattern in guards.formats", ".0%",
               scopes=("agent",), better="higher"),
        Metric("message_tokens", "messages", "tokens of other agents' messages read per episode; for an agent, tokens "
               "of its messages read by others", ".1f", "tokens", TEAM_AND_AGENT),
        Metric("message_information", "told", "mutual information I between an agent's private observation (`hidden`) "
               "and its message, adjusted for chance: Ĥ (I − null) / (H − null). Null is the mean I over 20 shuffles "
               "of the pairs, H the entropy of the observation, Ĥ the bias-corrected H (`hidden_entropy`)", ".2f",
               "bits", ("agent",), better="higher",
               hint="near 0: messages carry nothing of the observation; near `hidden_entropy`: everything; noisy below "
               "about 4 episodes per message"),
        Metric("hidden_entropy", "to be told", "entropy Ĥ of an agent's declared private observation, the upper limit "
               "of message_information; needs `hidden`", ".2f", "bits", ("agent",)),
        Metric("prompt_resets", "restarts", "number of chats rendered again instead of continued by token ids: prompts "
               "of agents with a memory, and turns after tool answers", ".0f", scopes=TEAM_AND_AGENT, better="lower",
               hide_zero=True,
               hint="`marft show` prints the reason: a full context, or a chat template that changes earlier turns"),
        Metric("gateway/segments/*", "new segments", "number of program requests that do not continue the chat by "
               "exact token ids, by reason: edited or trimmed history, other tools, or a chat template that rewrites "
               "earlier turns", ".0f", scopes=TEAM_AND_AGENT, better="lower", hide_zero=True,
               hint="`marft show` prints the reason; send earlier messages back unchanged"),
        Metric("gateway/idle_timeouts", "overdue", "number of times that sampling went on without a program after "
               "team.idle_timeout_seconds without a request", ".0f", better="lower", hide_zero=True,
               hint="raise the timeout, or let the program report its waits; runs are then reproducible again"),
        Metric("tool_use_rate", "uses tools", "share of actions with a tool call", ".0%", scopes=TEAM_AND_AGENT),
        Metric("tool_calls", "calls", "number of tool calls", ".0f", scopes=TEAM_AND_AGENT),
        Metric("tool_errors", "failed calls", "number of failed or unreadable tool calls", ".0f", scopes=TEAM_AND_AGENT,
               better="lower", hint="`marft show` prints the tools' answers"),
        Metric("tool_tokens", "tools' tokens", "tokens of tool answers, except in chats rendered again", ".0f",
               "tokens", TEAM_AND_AGENT),
        Metric("tool_seconds", "seconds a call", "duration of a tool call, mean", ".2f", "s", TEAM_AND_AGENT,
               better="lower"),
        Metric("helper_call_rate", "asks helpers", "share of actions with a helper call in the middle of a turn", ".0%",
               scopes=TEAM_AND_AGENT),
        Metric("helper_calls", "questions", "number of helper calls", ".0f", scopes=TEAM_AND_AGENT),
        Metric("teammate_tokens", "teammates' tokens", "tokens of helper replies in agents' turns, and of turn "
               "beginnings written by teammates", ".0f", "tokens", TEAM_AND_AGENT),
        Metric("forks", "forks", "number of episodes replayed and sampled anew from one action on", ".0f"),
        Metric("forks_failed", "forks failed", "number of forks without a score", ".0f", better="lower",
               hint="the environment or the organization is not deterministic under the same seed"),
        Metric("groups_discarded", "groups discarded", "number of groups with equal rewards, discarded and drawn again",
               ".0f"),
        Metric("threads_abandoned", "threads given up", "number of hanging threads of sessions, tools or reward terms",
               ".0f", better="lower"),
        Metric("sessions_not_closed", "not closed", "number of sessions and organizations with an error in close()",
               ".0f", better="lower"),
        Metric("workers_lost", "workers lost", "number of worker processes that exited or hung", ".0f", better="lower",
               hide_zero=True, hint="stderr contains the last output of each process"),
        Metric("episodes_retried", "played again", "number of attempts lost with a worker process and played again "
               "under the same keys", ".0f", better="lower", hide_zero=True),
        Metric("tasks_excluded", "set aside", "number of tasks excluded from drawing: each ended 1 + "
               "rollout.max_retries worker processes without another task in the process", ".0f", better="lower",
               hide_zero=True, hint="`marft show --failed` lists the tasks, and the exit of the last process"),
        Metric("ranks_lost", "ranks lost", "number of restarts of the learner's ranks; a restart repeats the update of "
               "the step", ".0f", better="lower", hide_zero=True,
               hint="give the ranks more memory, or raise training.rank_timeout_seconds"),
        Metric("engine_restarts", "engine restarts", "number of restarts of an engine in its own process", ".0f",
               better="lower", hide_zero=True, hint="give the engine more memory, or raise engine.timeout_seconds"),
    ],
    "The joint trajectory": [
        Metric("goal_progress", "progress", "declared progress p_T after the last step, averaged over episodes with a "
               "value; needs `progress`", better="higher"),
        Metric("trajectory_score", "trajectory", "declared progress averaged over steps, Σ_t p_t / T, and over "
               "episodes with a value; late or lost progress lowers the score; needs `progress`", better="higher"),
        Metric("step_efficiency", "step efficiency", "S · L / max(L, T), averaged over episodes: S is 1 for a solved "
               "task, else 0; L is the minimum number of steps, T the number taken; needs `fewest_steps`",
               better="higher"),
        Metric("tool_selection_accuracy", "right tools", "share of tool calls with a right tool for the step, among "
               "calls that name a tool; needs `right_tools`", ".0%", scopes=TEAM_AND_AGENT, better="higher",
               hint="describe the tool's purpose in the instructions or in the tool description"),
        Metric("tool_error_rate", "calls failed", "share of failed or unreadable tool calls", ".0%",
               scopes=TEAM_AND_AGENT, better="lower", hint="`marft show` prints the tools' answers"),
        Metric("handoff_loop_rate", "hand-off loops", "share of episodes with a loop: two agents pass control back and "
               "forth (a → b → a) more than twice in an environment step, each after reading the other. For an agent: "
               "episodes with this agent in the loop", ".0%", scopes=TEAM_AND_AGENT, better="lower", hide_zero=True,
               hint="`marft graph` shows the loop; name the deciding agent in the instructions"),
        Metric("re_ask_rate", "asks again", "share of actions that ask an answered question, among actions that have "
               "read a message of another agent. Answered: one such message contains each word of the question, "
               "English function words aside, and the observation does not contain the question", ".0%",
               scopes=TEAM_AND_AGENT, better="lower", hide_zero=True,
               hint="long or cut messages are not read: put a price on message_tokens"),
        Metric("role_adherence", "in role", "share of actions that call only the role's allowed tools, among agents "
               "with a declaration; needs `allowed_tools`", ".0%", scopes=TEAM_AND_AGENT, better="higher",
               hint="do not offer forbidden tools to the agent"),
        Metric("cost_tokens", "tokens per episode", "tokens read and written, Σ_a |prompt| + |tokens|, averaged over "
               "episodes", ".0f", "tokens", TEAM_AND_AGENT, better="lower"),
        Metric("cost_seconds", "seconds of work", "busy time of agents, Σ_a ended − started, averaged over episodes",
               ".2f", "s", TEAM_AND_AGENT, better="lower"),
        Metric("cost_money", "paid", "payment to endpoints for completed actions at the recipe's prices, averaged over "
               "episodes", ".4f", "currency", TEAM_AND_AGENT, better="lower", hide_zero=True),
        Metric("critical_path_seconds", "critical path", "duration of the longest chain of dependent actions, summed "
               "over environment steps and averaged over episodes; parallel actions cannot shorten the chain", ".2f",
               "s", better="lower"),
    ],
    "Safety": [
        Metric("attack_success", "attacks obeyed", "share of attacked episodes in which the team did as the attack "
               "asked, without attacks that reached no agent in any episode; this and the following metrics come from "
               "`marft eval --suite`", ".1%", better="lower",
               hint="findings.jsonl beside the evaluation lists agents, actions and places"),
        Metric("attack_reached", "attacks read", "share of attacked episodes in which an agent read the planted text",
               ".1%"),
        Metric("attack_success_reached", "read and obeyed", "attack_success over episodes in which an agent read the "
               "planted text", ".1%", better="lower"),
        Metric("utility_under_attack", "solved under attack", "share of attacked episodes solved without doing as the "
               "attack asked, among episodes with known success", ".1%", better="higher"),
        Metric("attacks/*/success", "attack obeyed", "attack_success of one attack", ".1%", better="lower"),
        Metric("attacks/*/reached", "attack read", "attack_reached of one attack", ".1%"),
        Metric("attacks/*/utility", "solved under it", "utility_under_attack of one attack", ".1%", better="higher"),
        Metric("attacks/*/unprompted", "unprompted", "share of episodes without an attack in which the team did as "
               "this attack asks", ".1%", better="lower"),
        Metric("content_violation_rate", "rules broken", "share of episodes without an attack that broke a rule", ".1%",
               better="lower"),
        Metric("content_violation_rate_under_attack", "broken under attack",
               "share of attacked episodes that broke a rule", ".1%", better="lower"),
        Metric("rules/*/rate", "rule broken", "content_violation_rate of one rule", ".1%", better="lower"),
        Metric("rules/*/rate_under_attack", "rule broken under attack", "content_violation_rate_under_attack of one "
               "rule", ".1%", better="lower"),
        Metric("false_refusal_rate", "refused", "share of episodes without an attack that ended with a refusal and "
               "were not solved", ".1%", better="lower"),
    ],
    "Credit": [
        Metric("zero_advantage_fraction", "zero advantages", "share of decisions with advantage 0; such decisions "
               "teach nothing", ".0%", scopes=TEAM_AND_AGENT, better="lower", hide_zero=True,
               hint="tasks are always or never solved: use easier or harder tasks, or algorithm.dynamic_sampling"),
        Metric("groups", "groups", "number of compared groups of attempts", ".0f"),
        Metric("group_size", "group size", "attempts per group, mean", ".1f"),
        Metric("group_size_min", "smallest group", "attempts in the smallest group", ".0f"),
        Metric("singleton_groups", "groups of one", "number of groups with one scored attempt, and so without a "
               "baseline", ".0f", better="lower"),
        Metric("zero_variance_groups", "equal groups", "number of groups with equal rewards", ".0f", better="lower"),
        Metric("groups_without_local_signal", "no local signal", "number of groups in which an agent's own rewards are "
               "equal (CoMAM)", ".0f"),
        Metric("global_weight", "global weight", "weight of the team reward beside the agent's own reward, averaged "
               "over groups with different team rewards (CoMAM)", scopes=TEAM_AND_AGENT),
        Metric("fallback_fraction", "fell back", "share of these groups with weight `fallback_weight`, because the "
               "agent's own rewards are equal (CoMAM)", ".0%", scopes=TEAM_AND_AGENT),
        Metric("preference/pairs", "pairs", "number of comparisons between a better and a worse side (DPO)", ".0f"),
        Metric("preference/equal_pairs", "equal pairs", "number of pairs dropped, because both sides earned the same",
               ".0f", better="lower"),
        Metric("imitation/selected", "repeated", "number of attempts, or of agents' parts of attempts, selected for "
               "training (RFT)", ".0f"),
        Metric("imitation/duplicates", "said before", "number of attempts left out: same messages at the same task",
               ".0f"),
        Metric("imitation/truncated", "cut off", "number of attempts left out: a text was cut off at max_new_tokens",
               ".0f", better="lower"),
        Metric("imitation/surplus", "spare", "number of attempts left out beyond credit.max_per_task", ".0f"),
        Metric("baseline", "baseline", "running mean of returns, used as the baseline (RAE)", scopes=("agent",)),
        Metric("likelihood/successes", "successes", "share of successful episodes, which the likelihood term trains",
               ".0%"),
        Metric("likelihood/judged_by_reward", "judged by reward", "number of episodes judged by reward, because the "
               "environment reports no success", ".0f"),
    ],
    "The policies' update": [
        Metric("policy_loss", "policy loss", "surrogate loss plus extra terms, averaged over minibatches", "+.3f"),
        Metric("preference/loss", "pair loss", "loss of comparisons before each optimizer step, averaged over "
               "minibatches", ".3f", better="lower",
               hint="log 2 = 0.693: the policies do not yet tell better from worse sides"),
        Metric("preference/accuracy", "pairs right", "share of comparisons in which the better side has the larger "
               "log-ratio to the reference; a tie counts one half", ".0%", better="higher"),
        Metric("preference/margin", "margin", "log-ratio of the better side minus log-ratio of the worse side, "
               "averaged over comparisons; for an agent, its own part", "+.3f", "nats", TEAM_AND_AGENT,
               better="higher"),
        Metric("preference/chosen_log_ratio", "better", "Σ (log π − log π_ref) / Z over a better side's actions, "
               "averaged over comparisons", "+.3f", "nats",
               hint="a fall means that the policies also move away from good texts: set "
               "algorithm.objective.nll_coefficient"),
        Metric("preference/rejected_log_ratio", "worse", "Σ (log π − log π_ref) / Z over a worse side's actions, "
               "averaged over comparisons", "+.3f", "nats"),
        Metric("entropy", "entropy", "entropy of the policy, averaged over sampled tokens", ".3f", "nats",
               TEAM_AND_AGENT, hint="near 0, the policy explores no longer; a surge often precedes a collapse"),
        Metric("kl", "KL", "KL divergence of the whole update, from the policy before the step to the policy after it. "
               "Estimator: k3, averaged over sampled tokens of guards.probes random actions per agent, with at least "
               "256 tokens", ".4f", "nats", TEAM_AND_AGENT,
               hint="above 0.05, the step is large: lower the learning rate, or use fewer epochs and minibatches"),
        Metric("kl_before_step", "KL before", "KL divergence from the policy at the start of the step: k3, averaged "
               "over the tokens of each minibatch before its optimizer step. The first minibatch gives 0. Limit: "
               "algorithm.kl_stop", ".4f", "nats", TEAM_AND_AGENT),
        Metric("kl_to_base", "KL to base", "KL divergence from the untuned base: k3, averaged over sampled tokens",
               ".3f", "nats", TEAM_AND_AGENT),
        Metric("distillation/reverse_kl", "KL to the teacher", "KL divergence from the policy that sampled to its "
               "teacher: k1, averaged over sampled tokens of taught agents", ".3f", "nats", TEAM_AND_AGENT, "lower"),
        Metric("distillation/weight", "teacher's weight", "weight of the teachers' advantages in this step"),
        Metric("base_surprisal", "surprisal", "−log π_base of sampled tokens at the sampling temperature: how unlikely "
               "the untuned base finds the text; over the actions of kl_to_base", ".3f", "nats", TEAM_AND_AGENT,
               hint="far above the first steps: the base would not write such texts; algorithm.kl limits the change"),
        Metric("dependence/*", "owed to", "(log π(a | inputs) − log π(a | others)) / tokens of an answering agent's "
               "action, median over guards.probes actions. Others: the whole prompt of another task (inputs) or only "
               "its messages (messages). Estimates how much an action depends on its inputs (after CLUB, Cheng et al. "
               "2020)", ".2f", "nats", ("agent",),
               hint="near 0, the text does not depend on the question or on the messages"),
        Metric("held_out_loss", "held-out text", "−log π of the tokens of guards.held_out_text at temperature 1 before "
               "the step, mean", ".3f", "nats", ("policy",), better="lower",
               hint="a rise means that the policy forgets: lower the learning rate, or set algorithm.kl"),
        Metric("clip_fraction", "clipped", "share of units (tokens or actions) whose gradient the clip removes", ".1%",
               scopes=TEAM_AND_AGENT,
               hint="above 30 %, much of the batch teaches nothing: use a lower learning rate or fewer epochs"),
        Metric("gradient_share", "gradient share", "this agent's share of the policies' gradient", ".0%",
               scopes=("agent",), hint="near 0, the agent does not learn"),
        Metric("sampler_weight", "sampler weight", "weight of the sampler correction, mean", scopes=TEAM_AND_AGENT),
        Metric("teammate_weight", "others' text", "weight of teammates' tokens in an agent's turn, mean"),
        Metric("ess", "effective sample", "effective sample size of the sampler correction's weights w over N units, "
               "as a share: (Σw)² / (N Σw²); equal weights give 100 % (Kish 1965)", ".0%", scopes=TEAM_AND_AGENT,
               better="higher", hint="below 50 %, a few units decide: lower rollout.reuse or rollout.max_policy_lag"),
        Metric("reused_episodes", "learned again", "number of episodes of earlier steps used again for training",
               ".0f"),
        Metric("log_prob_difference", "engine to learner", "|log π − log μ| of sampled tokens between learner (π) and "
               "engine (μ), mean", ".1e", "nats", TEAM_AND_AGENT, better="lower",
               hint="above 0.05, set algorithm.sampler_correction"),
        Metric("log_prob_difference_max", "engine−learner", "largest |log π − log μ| of a sampled token between "
               "learner (π) and engine (μ)", ".1e", "nats", TEAM_AND_AGENT, better="lower"),
        Metric("packing_difference", "packing", "largest change of a log-probability when the text is packed with "
               "other texts", ".1e", "nats", better="lower",
               hint="above 0 on a device with inexact kernels: set epochs = 1 if clips are narrow"),
        Metric("policy_lag", "lag", "updates between the sampling policy and the current policy, mean over actions",
               ".0f", scopes=TEAM_AND_AGENT, better="lower", hide_zero=True),
        Metric("policy_lag_max", "oldest", "largest number of updates between the sampling policy of a trained token "
               "and the current policy", ".0f", better="lower"),
        Metric("kl_stops", "KL stops", "number of phases ended by the KL stop", ".0f", hide_zero=True,
               hint="at every step: lower the learning rate"),
        Metric("skipped_updates", "skipped updates", "share of optimizer steps skipped because of a non-finite "
               "gradient", scopes=("team", "policy"), better="lower", hide_zero=True),
        Metric("reverted_steps", "undone", "1 if the step was undone because of a non-finite value, else 0", ".0f",
               better="lower", hide_zero=True, hint="lower the learning rate; the log message names the policy"),
        Metric("gradient_norm", "gradient norm", "gradient norm before clipping, averaged over optimizer steps", ".3f",
               scopes=("team", "policy")),
        Metric("learning_rate", "rate", "learning rate of this step", ".1e", scopes=("policy",)),
        Metric("idle_phase_fraction", "idle phases", "share of update phases whose policies had no actions"),
        Metric("team_kl", "team KL", "KL divergence of the joint policy from the start of the step to its end: k3 per "
               "environment step", ".4f", "nats"),
        Metric("accepted_fraction", "accepted", "accepted fraction of an update (HATRPO, team_kl)", better="higher",
               hint="below 0.5 at most steps: much work is discarded; lower the learning rate or raise the KL limit"),
        Metric("rollbacks", "rolled back", "share of updates undone completely (HATRPO)", better="lower"),
    ],
    "The critic": [
        Metric("critic/loss", "value loss", "value loss, averaged over minibatches", ".3f", better="lower"),
        Metric("critic/explained_variance", "explained", "share of the returns' variance explained by the critic: 1 − "
               "Var(returns − values) / Var(returns)", better="higher",
               hint="0 or less: the critic predicts nothing; use a longer warm-up or a higher learning rate"),
        Metric("critic/value", "value", "value of the batch's decisions, mean", ".3f"),
        Metric("critic/gradient_norm", "value gradient", "gradient norm of the critic before clipping, averaged over "
               "optimizer steps", ".3f"),
        Metric("critic/skipped_updates", "skipped value updates", "share of the critic's optimizer steps skipped "
               "because of a non-finite gradient", better="lower"),
    ],
    "Guards": [
        Metric("guards/rolled_back_to", "back to step", "step of the checkpoint to which the run returned after this "
               "step", ".0f",
               hint="the log gives the reason; later learning rates are multiplied by guards.rollback_lr_factor"),
        Metric("guards/*", "guard", "1 in a step with a warning of this guard; otherwise absent", ".0f", better="lower",
               hide_zero=True, hint="`marft train` and the report show the finding and the remedy"),
    ],
    "Warm starts from traces": [
        Metric("sft/loss", "imitation loss", "negative log-likelihood of the step's recorded turns before the update, "
               "averaged over tokens", ".3f", "nats", TEAM_AND_AGENT, better="lower"),
        Metric("sft/held_out_loss", "held out", "negative log-likelihood of held-out turns, averaged over tokens",
               ".3f", "nats", TEAM_AND_AGENT, better="lower",
               hint="a rise: stop there, with fewer epochs or a lower sft.learning_rate"),
        Metric("sft/tokens", "imitated", "number of trained tokens", ".0f", "tokens"),
        Metric("sft/epoch", "epoch", "number of the pass over the turns, counted from 1", ".0f"),
    ],
    "Imagined episodes": [
        Metric("imagined/enabled", "world model", "1 while the world model is trusted, 0 while MARFT has switched it "
               "off for wrong predictions of real episodes", ".0f", better="higher",
               hint="the log gives the reason; set a longer dyna.history_length, another dyna.model, or none"),
        Metric("imagined/share", "imagined", "share of imagined episodes in the training episodes", ".0%"),
        Metric("imagined/episodes", "imagined episodes", "number of imagined episodes, rejected episodes included; no "
               "other metric counts imagined episodes", ".0f"),
        Metric("imagined/rejected", "cut off", "number of imagined episodes left out, because the model's uncertainty "
               "about a step exceeds dyna.max_uncertainty", ".0f",
               hint="equal to imagined/episodes: the model knows too little; use a model that generalizes, a longer "
               "warm-up, or a larger dyna.max_uncertainty"),
        Metric("imagined/failed", "not imagined", "number of imagined episodes without a score", ".0f", better="lower",
               hide_zero=True),
        Metric("imagined/reward", "imagined reward", "return of imagined training episodes, mean"),
        Metric("imagined/uncertainty", "uncertainty", "disagreement of the ensemble about the steps of imagined "
               "training episodes, mean", ".3f"),
        Metric("imagined/fit_steps", "fitted to", "number of real environment steps used to fit the model", ".0f"),
        Metric("imagined/certain_fraction", "known", "share of certain steps in the newest real episodes: uncertainty "
               "of at most dyna.max_uncertainty, before the model was fitted to the episodes", ".0%", better="higher"),
        Metric("imagined/prediction_error", "missed", "1 − the model's probability of the true next result, averaged "
               "over certain steps; includes chance in the world itself", ".1%", better="lower"),
        Metric("imagined/reward_error", "reward error", "|Σ (r − E r)| over the certain steps of an episode, averaged "
               "over episodes", better="lower"),
    ],
    "Asynchronous training": [
        Metric("async/groups_ready", "groups waiting", "number of finished groups that wait for a later step, after "
               "the step has taken its groups", ".0f"),
        Metric("async/groups_in_flight", "groups in play", "number of groups in progress at the same moment", ".0f"),
        Metric("async/groups_dropped", "groups dropped", "number of groups dropped: older than rollout.max_policy_lag, "
               "or sampled by a policy before a rollback", ".0f", better="lower", hide_zero=True),
        Metric("async/learner_idle_seconds", "learner idle", "time that the learner waited for the step's groups",
               ".2f", "s", better="lower", hint="far above 0: the sampler or the environment is the bottleneck"),
        Metric("async/sampler_idle_seconds", "sampler idle", "time without a running episode since the last step's "
               "groups, because the lag limit allowed no new group", ".2f", "s", better="lower",
               hint="far above 0: the learner is the bottleneck; a larger lag does not help"),
        Metric("async/overlap", "overlap", "share of the learner's working time during which episodes were running",
               ".0%", better="higher"),
    ],
    "Time, memory and cost": [
        Metric("seconds", "step seconds", "duration of the whole step", ".1f", "s", better="lower"),
        Metric("seconds/*", "seconds", "duration of one phase of a step: sampling, learning, prompt_optimization, "
               "recording", ".2f", "s", better="lower"),
        Metric("credit_bytes", "credit", "size of the credit records of the step's actions", ".0f", "bytes",
               better="lower", hint="training.record_credit = false records no credit"),
        Metric("episodes_per_second", "episodes/s", "episodes per second of the whole step", ".0f", better="higher"),
        Metric("tokens_per_second", "tokens/s", "sampled tokens per second of the whole step", ".0f", better="higher"),
        Metric("tokens_per_second/*", "tokens/s", "tokens per second: sampled, or read while learning", ".0f",
               better="higher"),
        Metric("device/peak_memory", "peak memory", "peak memory of tensors on the learner's GPU during the step "
               "(first rank only, without the allocator's reserve); absent on a CPU", ".0f", "bytes", better="lower",
               hint="`marft plan` lists the parts; a smaller training.tokens_per_micro_batch lowers the peak"),
        Metric("learner/mfu", "MFU", "model FLOPs utilization (Chowdhery et al. 2022): operations of the policies' "
               "forward and backward passes, divided by the GPUs' data-sheet operations in the seconds of learning. "
               "Recomputation counts once; the critic and scoring before the update do not count. Absent on a CPU, and "
               "for GPUs and models with sizes unknown to `marft plan`", ".1%", better="higher",
               hint="small micro-batches and short rows lower the utilization: raise training.tokens_per_micro_batch"),
        Metric("remote_*", "remote", "usage of teammates behind endpoints: prompt_tokens, completion_tokens, retries",
               ".0f", scopes=TEAM_AND_AGENT),
        Metric("remote_cost", "cost", "cost of teammates behind endpoints, in the currency of the recipe's prices",
               ".4f", scopes=TEAM_AND_AGENT, better="lower", hide_zero=True),
        Metric("judge/*", "judge", "usage of judges: questions, requests, cache_hits, not_cached, tokens, retries",
               ".0f"),
        Metric("judge/cost", "judge's cost", "cost of judges, in the currency of the recipe's prices", ".4f",
               better="lower", hide_zero=True),
    ],
}  # fmt: skip
