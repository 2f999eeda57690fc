"""Routing of requests to several engines, by policy or by agent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, SamplingParams, VersionRange
from marft.config.interfaces.engine import Engine, Sampler, Weights, engine_problem


class Router:
    """Engine router: a request goes to its policy's engine, or to the sampler for its agent.

    A request to a later engine holds the external wait of all engines before it, like a tool call. An engine with
    in-order admission then knows that its next request may depend on this request. The first engine never waits for
    another engine, so circular waits cannot occur.

    Args:
        engines: by policy. The order of first occurrence is the order of the engines.
        agent_samplers: samplers by role, for agents without a policy, such as people.
    """

    def __init__(self, engines: Mapping[str, Engine], agent_samplers: Mapping[str, Sampler] | None = None) -> None:
        self.engines, self.agent_samplers = dict(engines), dict(agent_samplers or {})
        self.unique_engines = list({id(engine): engine for engine in engines.values()}.values())

    async def sample(self, policy: str, prompt: Prompt, sampling: SamplingParams, key: ActionKey) -> Completion:
        """Sample one action with the policy's engine; raises the same errors."""
        sampler = self._find_sampler(policy, key)
        with self._wait_for_earlier(sampler):
            return await sampler.sample(policy, prompt, sampling, key)

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: SamplingParams, key: ActionKey
    ) -> tuple[Choice, VersionRange]:
        """Choose with the policy's engine; raises the same errors."""
        sampler = self._find_sampler(policy, key)
        with self._wait_for_earlier(sampler):
            return await sampler.choose(policy, prompt, options, sampling, key)

    @contextmanager
    def external_wait(self) -> Iterator[None]:
        """Let every engine expect more requests while an episode waits for an environment or a tool."""
        with ExitStack() as stack:
            for engine in self.unique_engines:
                stack.enter_context(engine.external_wait())
            yield

    def with_agent_samplers(self, agent_samplers: Mapping[str, Sampler]) -> Router:
        """Return a router with the same engines and additional agent samplers."""
        return Router(self.engines, {**self.agent_samplers, **agent_samplers})

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """Publish to every engine its own policies."""
        for engine in self.unique_engines:
            own_policies = {name: weights for name, weights in policies.items() if self.engines[name] is engine}
            if own_policies:
                await engine.publish(own_policies, version)

    async def wait_idle(self) -> None:
        """Wait until every engine finishes its running requests."""
        for engine in self.unique_engines:
            await engine.wait_idle()

    @property
    def problem(self) -> str:
        """Return the reason why an engine has failed; "" if every engine works."""
        return next((problem for engine in self.unique_engines if (problem := engine_problem(engine))), "")

    def version(self, policy: str) -> int:
        """Return the engine's version for a policy."""
        return self.engines[policy].version(policy)

    def usage(self) -> Mapping[str, float]:
        """Return the usage counters summed over engines, by metric name."""
        total = Counter[str]()
        for engine in self.unique_engines:
            total.update(engine.usage())
        return dict(total)

    async def close(self) -> None:
        """Close every engine."""
        for engine in self.unique_engines:
            await engine.close()

    def _find_sampler(self, policy: str, key: ActionKey) -> Sampler:
        return self.agent_samplers.get(key.agent) or self.engines[policy]

    @contextmanager
    def _wait_for_earlier(self, sampler: Sampler) -> Iterator[None]:
        with ExitStack() as stack:
            for engine in self.unique_engines:
                if engine is sampler:
                    break
                stack.enter_context(engine.external_wait())
            yield
