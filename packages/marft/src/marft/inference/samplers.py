"""Inference runtime for a run: models, engines, endpoints and the compute thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from typing import Protocol, TypeVar, cast

from marft.agents.engine import Engine
from marft.agents.rendering import Cut
from marft.common.registry import bundled_parts
from marft.common.types import ActionKey, Profile, Sampling, TokenIds
from marft.config.models import local_model
from marft.config.references import cannot_hold
from marft.config.run import RunSettings, check_room
from marft.inference.caller_thread import Background, CallerThreadExecutor, Cancellable
from marft.inference.endpoints.client import Endpoint
from marft.inference.foreign import ForeignEngine
from marft.inference.remote import RemoteEngine, RemotePolicy
from marft.inference.renderer import ChatFormat, ChatRenderer
from marft.inference.router import Router
from marft.models.formats import Format, policy_context
from marft.models.pool import Models

T = TypeVar("T")
ENGINE = ("sample", "choose", "external_wait", "publish", "settle", "version", "usage", "close")


class EngineKind(Protocol):
    """Settings type of ``[engine]`` with a factory method."""

    def open(self, run: RunSettings, models: Models, policies: Sequence[str], thread: CallerThreadExecutor) -> Engine:
        """Open an engine for ``policies``. Its local tensor work runs on ``thread``."""
        ...


class Samplers:
    """Inference runtime: loads local models and connects to endpoints. Call :meth:`close` after use.

    Args:
        cancel: callback that stops blocking waits on other threads, called when an interrupt cancels the coroutines.
        for_parts: keep weights in CPU memory, because only a shard of them will move to the device.

    Raises:
        ValueError: a model cannot be loaded, an endpoint's API key is missing, or an agent's ``max_new_tokens`` fills
            its model's context.
    """

    def __init__(self, run: RunSettings, cancel: Callable[[], None] = lambda: None, for_parts: bool = False) -> None:
        with ExitStack() as started:  # closes started resources if a later step fails
            self._begin(run, cancel, for_parts, started)
            self._started = started.pop_all()

    def _begin(self, run: RunSettings, cancel: Callable[[], None], for_parts: bool, started: ExitStack) -> None:
        self.run = run
        endpoints: dict[str, Endpoint] = {}
        for name, model in run.models.items():
            if model.endpoint:
                endpoints[name] = Endpoint(name, model.endpoint, model.path)
                started.callback(endpoints[name].close)
        self.models = Models(run, for_parts=for_parts)
        check_room(run, {name: policy.context for name, policy in self.models.policies.items()})
        self._thread = CallerThreadExecutor(cancel)
        started.callback(self._thread.shutdown)
        remote = {
            name: RemotePolicy(endpoints[policy.settings.model], policy.context)
            for name, policy in self.models.policies.items()
            if policy.settings.model in endpoints
        }
        here = [name for name in self.models.policies if name not in remote]
        self.renderer = _renderer(run, self.models, remote)
        mine = _opened(run, self.models, here, self._thread)
        behind = RemoteEngine(self.renderer, remote, decode=self.decode, seed=run.seed)
        self.engine = Router(dict.fromkeys(here, mine) | dict.fromkeys(remote, behind))
        started.callback(lambda: self.wait_for(self.engine.close()))

    def decode(self, policy: str, ids: TokenIds) -> str:
        """Decode a policy's turn, without its end-of-turn token and the header from the chat template."""
        return self.renderer.option_text(policy, ids)

    def publish(self, version: int) -> None:
        """Publish the trained policies at a new version."""
        trained = {name: self.models.policies[name] for name in self.run.trained_policies}
        self.wait_for(self.engine.publish(trained, version))

    def publish_versions(self, versions: Mapping[str, int]) -> None:
        """Publish policies with replaced weights, each with its own version."""
        for name, version in versions.items():
            self.wait_for(self.engine.publish({name: self.models.policies[name]}, version))

    def ask(self, policy: str, question: str, sampling: Sampling, key: ActionKey) -> tuple[str, int]:
        """Ask a policy a question outside an episode; return the text without reasoning, and the token count.

        The count covers the prompt and the answer.

        Raises:
            PromptTooLongError: the question does not fit the model's context.
        """
        cut = Cut("nothing")
        prompt = self.renderer.render(
            policy, Profile(key.agent), question, (), reserve=sampling.max_new_tokens, cut=cut
        )
        said = self.wait_for(self.engine.sample(policy, prompt, sampling, key))
        return said.text[self.renderer.thought(policy, said.text) :], len(prompt.ids) + len(said.tokens)

    def wait_for(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine with access to the engine. The engine computes on the calling thread."""
        return self._thread.wait_for(coroutine)

    def begin(self, coroutine: Coroutine[object, object, T]) -> Background[T]:
        """Run a coroutine in the background. It may use only subprocess engines, because no local computation runs."""
        return self._thread.begin(coroutine)

    def end(self, begun: Sequence[Cancellable]) -> None:
        """Cancel background coroutines and wait a few seconds for their cleanup."""
        self._thread.end(begun)

    def close(self) -> None:
        """Close the engines, endpoints and compute thread."""
        self._started.close()


def _opened(run: RunSettings, models: Models, here: Sequence[str], thread: CallerThreadExecutor) -> Engine:
    """Open the engine from the recipe; a plugin engine gets a validating wrapper.

    Raises:
        ValueError: the opened object lacks an engine method.
    """
    engine = cast("EngineKind", run.engine).open(run, models, here, thread)
    if run.engine.name in bundled_parts("engines"):
        return engine
    missing = [name for name in ENGINE if not callable(getattr(engine, name, None))]
    if missing:
        raise ValueError(
            f"engine {run.engine.name!r}: open() returned a {type(engine).__name__}, which has no "
            f"{', no '.join(missing)}"
        )
    heads = {name: len(models.policies[name].backbone.head.weight) for name in here}
    return ForeignEngine(run.engine.name, engine, heads, run.engine.tells_tokens)


def _renderer(run: RunSettings, models: Models, remote: Mapping[str, RemotePolicy]) -> ChatRenderer:
    """Build the renderer with the chat format of every loaded policy."""
    formats = {}
    for name, policy in models.policies.items():
        options = run.models[policy.base].template_options
        formats[name] = ChatFormat(
            policy.tokenizer, policy.context, options, policy.stop_ids, remote=name in remote,
            unheld=cannot_hold(run, policy.settings.model),
        )  # fmt: skip
    return ChatRenderer(formats)


def renderer_of(run: RunSettings, formats: Mapping[str, Format]) -> ChatRenderer:
    """Build the renderer for a recipe's policies without loading weights."""
    contexts = {name: format.context for name, format in formats.items()}
    known = {}
    for name, policy in run.policies.items():
        base = local_model(run.models, policy.model)
        format = formats[base]
        context = policy_context(run, policy.model, base, contexts)
        options = run.models[base].template_options
        known[name] = ChatFormat(
            format.tokenizer, context, options, format.stop_ids, remote=run.is_remote(policy.model)
        )
    return ChatRenderer(known)
