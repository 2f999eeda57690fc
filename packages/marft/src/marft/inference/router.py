"""Several engines behind one door: each policy has its own, and agents whom people play have theirs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from marft.agents.engine import Engine, Sampler, Weights, problem_of
from marft.common.types import ActionKey, Choice, Completion, Option, Prompt, Sampling, Versions


class Router:
    """Hands every request to the engine of its policy, or to whoever sits in its agent's seat.

    A request to a later engine holds the external wait of all engines before it, as a tool would: one that admits
    requests in order then knows that its next request may depend on this one. The first engine waits for nobody, so
    nobody waits in a circle.

    Args:
        engines: by policy; their order is that in which they first come.
        seats: by role, for agents that are nobody's policy: people.
    """

    def __init__(self, engines: Mapping[str, Engine], seats: Mapping[str, Sampler] | None = None) -> None:
        self.engines, self.seats = dict(engines), dict(seats or {})
        self.distinct = list({id(engine): engine for engine in engines.values()}.values())

    async def sample(self, policy: str, prompt: Prompt, sampling: Sampling, key: ActionKey) -> Completion:
        """Sample one action with the policy's engine; raises what that raises."""
        sampler = self._of(policy, key)
        with self._ahead_wait(sampler):
            return await sampler.sample(policy, prompt, sampling, key)

    async def choose(
        self, policy: str, prompt: Prompt, options: Sequence[Option], sampling: Sampling, key: ActionKey
    ) -> tuple[Choice, Versions]:
        """Choose with the policy's engine; raises what that raises."""
        sampler = self._of(policy, key)
        with self._ahead_wait(sampler):
            return await sampler.choose(policy, prompt, options, sampling, key)

    @contextmanager
    def external_wait(self) -> Iterator[None]:
        """Every engine knows that more may come."""
        with ExitStack() as held:
            for engine in self.distinct:
                held.enter_context(engine.external_wait())
            yield

    def seating(self, seats: Mapping[str, Sampler]) -> Router:
        """The same engines, with somebody else in some agents' seats."""
        return Router(self.engines, {**self.seats, **seats})

    async def publish(self, policies: Mapping[str, Weights], version: int) -> None:
        """Give every engine the policies that are its own."""
        for engine in self.distinct:
            mine = {name: weights for name, weights in policies.items() if self.engines[name] is engine}
            if mine:
                await engine.publish(mine, version)

    async def settle(self) -> None:
        """Wait until no engine computes anything any more."""
        for engine in self.distinct:
            await engine.settle()

    @property
    def problem(self) -> str:
        """Why one of the engines cannot go on; "" where all can."""
        return next((problem for engine in self.distinct if (problem := problem_of(engine))), "")

    def version(self, policy: str) -> int:
        """The version of a policy at its engine."""
        return self.engines[policy].version(policy)

    def usage(self) -> Mapping[str, float]:
        """What all engines have sampled so far, by the name of a metric."""
        total = Counter[str]()
        for engine in self.distinct:
            total.update(engine.usage())
        return dict(total)

    async def close(self) -> None:
        """End every engine."""
        for engine in self.distinct:
            await engine.close()

    def _of(self, policy: str, key: ActionKey) -> Sampler:
        return self.seats.get(key.agent) or self.engines[policy]

    @contextmanager
    def _ahead_wait(self, sampler: Sampler) -> Iterator[None]:
        with ExitStack() as held:
            for engine in self.distinct:
                if engine is sampler:
                    break
                held.enter_context(engine.external_wait())
            yield
