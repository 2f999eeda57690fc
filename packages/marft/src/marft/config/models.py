"""Base models, local and remote, and the policies on them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field, Strict, field_validator
from pydantic_core import PydanticCustomError

from marft.common.atomic import read_text
from marft.config.algorithm import LearningRate
from marft.config.endpoint import TeammateEndpoint
from marft.config.folders import AtHome
from marft.config.settings import Count, CountOrNone, Felt, Filled, Names, Plain, Positive, Settings, did_you_mean


def _is_day(text: str) -> str:
    try:
        return date.fromisoformat(text).isoformat()
    except ValueError:
        raise ValueError("must be a day, as in 2024-07-26") from None


class ModelSettings(Settings):
    """A base model: ``"tiny"`` (bundled; ``"tiny-tools"`` can call tools), a folder, or a Hugging Face id; or, with an
    ``endpoint``, a remote one."""

    path: Annotated[Filled, AtHome]  # "tiny", a folder, or a Hugging Face id; of a remote model its name there
    endpoint: TeammateEndpoint | None = None  # where a remote model is reached
    revision: Filled = "main"  # of a Hugging Face id: branch, tag or commit
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"  # that is computed in; auto: float32 on CPU, bfloat16 on GPU
    context: CountOrNone = 0  # tokens, prompt and action together; 0: what it, or its reader, is made for
    chat_template: Annotated[str, AtHome] = ""  # a Jinja file that replaces the tokenizer's own
    template_options: Plain = {}  # passed to the chat template, e.g. enable_thinking = false
    date: Annotated[str, AfterValidator(_is_day)] = "2024-07-26"  # today, to chat templates that show it
    gradient_checkpointing: bool = False  # less memory, more time; changes nothing else
    # which of training.ranks learn on it, e.g. [0, 1]; []: all. Models of different ranks are learned on at one time
    ranks: Annotated[tuple[Annotated[int, Field(ge=0, lt=1024)], ...], Strict(False)] = ()


MOST_RANK = 65_536  # of an adapter
UNADAPTED = ("lm_head", "embed_out", "embed_tokens", "wte")  # names that output layers and embeddings go by


def unadapted(targets: Iterable[str]) -> list[str]:
    """Return the targets that name an output layer or an embedding, on which no adapter is computed."""
    return [target for target in targets if target.rpartition(".")[2] in UNADAPTED]


class LoraSettings(Settings):
    rank: Annotated[int, Field(ge=1, le=MOST_RANK)] = 8  # of the change to each layer
    alpha: Annotated[Positive, Felt] = 16.0  # the change counts alpha / rank times
    targets: Annotated[Names, Field(min_length=1)] = ("q_proj", "v_proj")  # names of linear layers
    # B: A stays as it began, half as much learns, and averages of adapters are averages of what they change (FFA-LoRA)
    trains: Literal["both", "B"] = "both"

    @field_validator("targets")
    @classmethod
    def _are_in_the_decoder(cls, targets: Names) -> Names:
        if outside := unadapted(targets):
            raise PydanticCustomError(
                "targets",
                "{target} is an output layer or an embedding, and adapters are computed on linear layers of the "
                "decoder alone, such as q_proj, v_proj or down_proj; leave it out, or set train = 'full'",
                {"target": repr(outside[0])},
            )
        return targets


class PoolSettings(Settings):
    """Opponents: past versions of a policy in training, all loaded, of which every task is played against one."""

    of: str  # the policy in training whose versions they are
    size: Annotated[int, Field(ge=1, le=64)] = 4  # versions at the same time, the untuned one among them
    every: Count = 5  # steps from one version that joins to the next
    # which a task is played against: any, the newest, or rather those against whom fewer matches are won
    choose: Literal["uniform", "latest", "prioritised"] = "uniform"
    power: Positive = 2.0  # of the share of matches not won, which prioritised versions are drawn by


class PolicySettings(Settings):
    """Weights by name. Agents that name the same policy share it."""

    model: str  # the base that it is on
    train: Literal["lora", "full", "frozen"] = "lora"  # an adapter, all weights, or nothing
    lora: LoraSettings = LoraSettings()  # of train = "lora"
    adapter: Annotated[str, AtHome] = ""  # a PEFT adapter folder to start from
    learning_rate: LearningRate | None = None  # in place of the algorithm's
    pool: PoolSettings | None = None  # it is a pool of another one's past versions, all frozen


BUNDLED = {
    file.parent.name.replace("_", "-"): file.parent
    for file in sorted((Path(__file__).parents[1] / "models").glob("tiny*/config.json"))
}
Models = Mapping[str, ModelSettings]


def local_model(models: Models, model: str) -> str:
    """The local model that stands for ``model`` here: itself, or the reader of a remote one; "" when there is none."""
    endpoint = models[model].endpoint
    if endpoint is None:
        return model
    return endpoint.reader or next((name for name, other in models.items() if other.endpoint is None), "")


def readers(models: Models) -> set[str]:
    """The local models that read for remote ones."""
    return {local_model(models, name) for name, model in models.items() if model.endpoint is not None}


def hidden_size(model: ModelSettings) -> int | None:
    """The width of a local model, where it lies on this disk and says so."""
    folder = BUNDLED.get(model.path, Path(model.path))
    try:
        table = json.loads(read_text(folder / "config.json"))
        size = table.get("hidden_size", table.get("text_config", {}).get("hidden_size"))
    except (OSError, ValueError, AttributeError, RecursionError):  # whoever loads the model says what is wrong
        return None
    return size if isinstance(size, int) else None


def rank_problems(models: Models, policies: Mapping[str, PolicySettings]) -> Iterable[str]:
    """LoRAs of more ranks than the model that they change has dimensions."""
    for name, policy in policies.items():
        model = models.get(policy.model)
        size = hidden_size(model) if model is not None and model.endpoint is None and policy.train == "lora" else None
        if size is not None and policy.lora.rank > size:
            yield (
                f"policies.{name}.lora.rank: {policy.lora.rank:,} is more than the {size:,} dimensions of model "
                f"{policy.model!r}, and a change of full rank has no more; lower it, or use train = 'full'"
            )


def placement_problems(models: Models, ranks: int, body: str) -> Iterable[str]:
    """What is wrong with the ranks that models are placed on.

    Args:
        ranks: that there are.
        body: what the critic reads with.
    """
    for name, model in models.items():
        if len(set(model.ranks)) < len(model.ranks):
            yield f"models.{name}.ranks: names a rank twice"
        beyond = [rank for rank in model.ranks if rank >= ranks]
        if beyond:
            yield (
                f"models.{name}.ranks: there is no rank {beyond[0]}, for training.ranks = {ranks} counts from 0 to "
                f"{ranks - 1}; raise it"
            )
        if model.ranks and body == "lora":
            yield (
                f"models.{name}.ranks: a critic with a body of its own (algorithm.critic.body = 'lora') is learned by "
                "all ranks; set body = 'frozen', or remove the ranks"
            )


def remote_problems(models: Models, policies: Mapping[str, PolicySettings]) -> Iterable[str]:
    """What is wrong with the remote models of a recipe and the policies on them."""
    for name, model in models.items():
        if model.endpoint is not None:
            yield from _reader_problems(models, name)
            yield from _key_problems(name, model)
    for name, policy in policies.items():
        if policy.model not in models or models[policy.model].endpoint is None:
            continue
        if policy.train != "frozen":
            yield f"policies.{name}: model {policy.model!r} is remote and cannot be trained here; set train = 'frozen'"
        if policy.adapter:
            yield f"policies.{name}.adapter: model {policy.model!r} is remote and takes no adapter; remove it"


def _reader_problems(models: Models, name: str) -> Iterable[str]:
    reader = local_model(models, name)
    if not reader:
        yield (
            f"models.{name}.endpoint: no local model reads what it says; add one: [models.reader] path = 'tiny', or "
            "any other whose tokenizer counts as you like"
        )
    elif reader not in models:
        yield f"models.{name}.endpoint.reader: no model is called {reader!r}{did_you_mean(reader, models)}"
    elif models[reader].endpoint is not None:
        yield f"models.{name}.endpoint.reader: {reader!r} is remote too; name a local model"


def _key_problems(name: str, model: ModelSettings) -> Iterable[str]:
    for key in ("revision", "dtype", "chat_template", "template_options", "date", "gradient_checkpointing", "ranks"):
        if getattr(model, key) != type(model).model_fields[key].default:
            yield f"models.{name}.{key}: means something for a local model alone; remove it, the endpoint decides"
