"""Who samples: the models of a run, the engines that ask them, and the thread that computes for them."""

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
    """What ``[engine]`` names."""

    def open(self, run: RunSettings, models: Models, policies: Sequence[str], thread: CallerThreadExecutor) -> Engine:
        """An engine that samples for ``policies``. What it computes here it computes on ``thread``."""
        ...


class Samplers:
    """Loads the models that a recipe names, and connects those that are elsewhere. Close it.

    Args:
        cancel: ends what coroutines may wait for on other threads, when an interrupt cancels them.
        for_parts: weights stay in the host's memory: a part of them alone will come to the device.

    Raises:
        ValueError: a model cannot be loaded, an endpoint's key is not there, or an agent's ``max_new_tokens`` fills its
            model's context.
    """

    def __init__(self, run: RunSettings, cancel: Callable[[], None] = lambda: None, for_parts: bool = False) -> None:
        with ExitStack() as started:  # what has been started ends, should the rest fail
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
        """Return what a policy's turn says, without its end and what its chat template begins each turn with."""
        return self.renderer.option_text(policy, ids)

    def publish(self, version: int) -> None:
        """The policies in training are at this version now."""
        trained = {name: self.models.policies[name] for name in self.run.trained_policies}
        self.wait_for(self.engine.publish(trained, version))

    def publish_versions(self, versions: Mapping[str, int]) -> None:
        """These policies were given other weights, each of a step."""
        for name, version in versions.items():
            self.wait_for(self.engine.publish({name: self.models.policies[name]}, version))

    def ask(self, policy: str, question: str, sampling: Sampling, key: ActionKey) -> tuple[str, int]:
        """What a policy says to a question that is no part of an episode, without what it thought first; and the
        tokens that it took, with the question's.

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
        """Run a coroutine that uses the engine. The engine computes on the thread that calls this."""
        return self._thread.wait_for(coroutine)

    def begin(self, coroutine: Coroutine[object, object, T]) -> Background[T]:
        """Run a coroutine in the background. It may ask engines apart alone: nothing is computed here meanwhile."""
        return self._thread.begin(coroutine)

    def end(self, begun: Sequence[Cancellable]) -> None:
        """Cancel what runs in the background, and wait some seconds until it has let go of what it holds."""
        self._thread.end(begun)

    def close(self) -> None:
        """End whatever was started."""
        self._started.close()


def _opened(run: RunSettings, models: Models, here: Sequence[str], thread: CallerThreadExecutor) -> Engine:
    """The engine that the recipe names; one of somebody else's is held to its seam.

    Raises:
        ValueError: what was opened is no engine.
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
    formats = {}
    for name, policy in models.policies.items():
        options = run.models[policy.base].template_options
        formats[name] = ChatFormat(
            policy.tokenizer, policy.context, options, policy.stop_ids, remote=name in remote,
            unheld=cannot_hold(run, policy.settings.model),
        )  # fmt: skip
    return ChatRenderer(formats)


def renderer_of(run: RunSettings, formats: Mapping[str, Format]) -> ChatRenderer:
    """Return how every policy of a recipe is spoken to, without its weights."""
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
