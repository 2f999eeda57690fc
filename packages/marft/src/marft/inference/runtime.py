"""Inference runtime for a run: models, engines, endpoints and the compute thread."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from typing import TypeVar

from marft.agents.prompt_messages import TruncationPolicy
from marft.common.errors import UserError
from marft.common.packages import bundled_plugins
from marft.common.types import ActionKey, AgentProfile, SamplingParams, TokenIds
from marft.config.interfaces.engine import Engine
from marft.config.models import local_model
from marft.config.recipe_checks import grammar_unsupported
from marft.config.run import RunSettings, check_prompt_space
from marft.inference.caller_thread import BackgroundTask, CallerThreadExecutor, CancelableTask
from marft.inference.chat_messages import ChatFormat
from marft.inference.endpoints.client import Endpoint
from marft.inference.plugin_engine import PluginEngine
from marft.inference.remote import EndpointEngine, RemotePolicy
from marft.inference.renderer import ChatRenderer
from marft.inference.router import Router
from marft.models.policy_registry import PolicyRegistry
from marft.models.tokenizer_format import TokenizerFormat, policy_context_length

T = TypeVar("T")
ENGINE_METHODS = ("sample", "choose", "external_wait", "publish", "wait_idle", "version", "usage", "close")


class InferenceRuntime:
    """Inference runtime: loads local models and connects to endpoints. Call :meth:`close` after use.

    Args:
        cancel: callback that stops blocking waits on other threads, called when an interrupt cancels the coroutines.
        keep_on_cpu: keep weights in CPU memory, because only a shard of them will move to the device.

    Raises:
        UserError: a model cannot be loaded, an endpoint's API key is missing, or an agent's ``max_new_tokens`` fills
            its model's context.
    """

    def __init__(self, run: RunSettings, cancel: Callable[[], None] = lambda: None, keep_on_cpu: bool = False) -> None:
        with ExitStack() as resources:  # closes started resources if a later step fails
            self._open(run, cancel, keep_on_cpu, resources)
            self._resources = resources.pop_all()

    def _open(self, run: RunSettings, cancel: Callable[[], None], keep_on_cpu: bool, resources: ExitStack) -> None:
        self.run = run
        endpoints: dict[str, Endpoint] = {}
        for name, model in run.models.items():
            if model.endpoint:
                endpoints[name] = Endpoint(name, model.endpoint, model.path)
                resources.callback(endpoints[name].close)
        self.models = PolicyRegistry(run, keep_on_cpu=keep_on_cpu)
        check_prompt_space(run, {name: policy.context for name, policy in self.models.policies.items()})
        self._thread = CallerThreadExecutor(cancel)
        resources.callback(self._thread.shutdown)
        remote = {
            name: RemotePolicy(endpoints[policy.settings.model], policy.context)
            for name, policy in self.models.policies.items()
            if policy.settings.model in endpoints
        }
        local_policies = [name for name in self.models.policies if name not in remote]
        self.renderer = build_renderer(run, self.models.formats, for_engine=True)
        local_engine = _open_engine(run, self.models, local_policies, self._thread)
        remote_engine = EndpointEngine(self.renderer, remote, decode=self.decode, seed=run.seed)
        self.engine = Router(dict.fromkeys(local_policies, local_engine) | dict.fromkeys(remote, remote_engine))
        resources.callback(lambda: self.wait_for(self.engine.close()))

    def decode(self, policy: str, ids: TokenIds) -> str:
        """Decode a policy's turn, without its end-of-turn token and the header from the chat template."""
        return self.renderer.decode_option(policy, ids)

    def publish(self, version: int) -> None:
        """Publish the trained policies at a new version."""
        trained = {name: self.models.policies[name] for name in self.run.trained_policies}
        self.wait_for(self.engine.publish(trained, version))

    def publish_versions(self, versions: Mapping[str, int]) -> None:
        """Publish policies with replaced weights, each with its own version."""
        for name, version in versions.items():
            self.wait_for(self.engine.publish({name: self.models.policies[name]}, version))

    def ask_policy(self, policy: str, question: str, sampling: SamplingParams, key: ActionKey) -> tuple[str, int]:
        """Ask a policy a question outside an episode; return the text without reasoning, and the token count.

        The count covers the prompt and the answer.

        Raises:
            PromptTooLongError: the question does not fit the model's context.
        """
        cut = TruncationPolicy("none")
        prompt = self.renderer.render(
            policy, AgentProfile(key.agent), question, (), reserve=sampling.max_new_tokens, cut=cut
        )
        completion = self.wait_for(self.engine.sample(policy, prompt, sampling, key))
        return completion.text[self.renderer.reasoning_length(policy, completion.text) :], len(prompt.ids) + len(
            completion.tokens
        )

    def wait_for(self, coroutine: Coroutine[object, object, T]) -> T:
        """Run a coroutine with access to the engine. The engine computes on the calling thread."""
        return self._thread.wait_for(coroutine)

    def start_background(self, coroutine: Coroutine[object, object, T]) -> BackgroundTask[T]:
        """Run a coroutine in the background. It may use only subprocess engines, because no local computation runs."""
        return self._thread.start_background(coroutine)

    def cancel_background(self, tasks: Sequence[CancelableTask]) -> None:
        """Cancel background coroutines and wait a few seconds for their cleanup."""
        self._thread.cancel_background(tasks)

    def close(self) -> None:
        """Close the engines, endpoints and compute thread."""
        self._resources.close()


def _open_engine(
    run: RunSettings, models: PolicyRegistry, policies: Sequence[str], thread: CallerThreadExecutor
) -> Engine:
    """Open the engine from the recipe; a plugin engine gets a validating wrapper.

    Raises:
        UserError: the opened object lacks an engine method.
    """
    engine = run.engine.open(run, models, policies, thread)
    if run.engine.name in bundled_plugins("engines"):
        return engine
    missing = [name for name in ENGINE_METHODS if not callable(getattr(engine, name, None))]
    if missing:
        raise UserError(
            f"engine {run.engine.name!r}: open() returned a {type(engine).__name__}, which has no "
            f"{', no '.join(missing)}"
        )
    heads = {name: len(models.policies[name].backbone.head.weight) for name in policies}
    return PluginEngine(run.engine.name, engine, heads, run.engine.streams_tokens)


def build_renderer(run: RunSettings, formats: Mapping[str, TokenizerFormat], for_engine: bool = False) -> ChatRenderer:
    """Build the renderer with the chat format of every policy.

    Args:
        formats: tokenizers of the run's local models, by model name.
        for_engine: whether the run's engine samples. The renderer then includes the versions in opponent pools, and
            refuses grammars that the engine does not support.
    """
    contexts = {name: format.context for name, format in formats.items()}
    chat_formats = {}
    for name, policy in (run.loaded_policies if for_engine else run.policies).items():
        base = local_model(run.models, policy.model)
        chat_formats[name] = ChatFormat(
            formats[base].tokenizer,
            policy_context_length(run, policy.model, base, contexts),
            run.models[base].template_options,
            formats[base].stop_ids,
            remote=run.is_remote(policy.model),
            grammar_error=grammar_unsupported(run, policy.model) if for_engine else "",
        )
    return ChatRenderer(chat_formats)
