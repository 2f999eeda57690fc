"""Tokenizer, context length and stop ids of a model, loaded without its weights.

Stop ids are derived from the chat template, because some models end turns with other tokens than their EOS token. The
date in a template is the recipe's: prompts do not depend on the current day.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoTokenizer,
    DeepseekV3Config,
    GenerationConfig,
    PretrainedConfig,
    PreTrainedTokenizerBase,
)

from marft.common.atomic import read_text
from marft.common.errors import UserError
from marft.common.packages import missing_extra
from marft.common.texts import sanitize
from marft.common.user_modules import verify_export_folder
from marft.config.bundled import bundled_models, resolve_path
from marft.config.models import ModelSettings
from marft.config.paths import expand_user
from marft.config.run import RunSettings
from marft.config.settings import closest_match, did_you_mean
from marft.models.chat_templates import RENDER_ERRORS, TEST_MESSAGE, check_template
from marft.models.checkpoint_checks import check_config_sizes, check_no_pickle, check_size_limits
from marft.models.control_tokens import exempt_reasoning_tags
from marft.models.load_lock import with_load_lock

FOLDER_PREFIXES = ("/", "./", "../", "~")  # a path with one of these prefixes is never a Hugging Face model id
SPARSE_ATTENTION_KEYS = {
    "index_topk": "",
    "keep_window_size": "",
    "indexer_budget": "",
    "index_topk_blocks": "index_block_size",
}  # sparse attention: key for the number of visible keys, key for their block size ("": 1)
RENAMED_MODELS = {"kimi_k2": DeepseekV3Config}  # models of transformers that checkpoints name otherwise
MAX_SHOWN_LENGTH, MAX_CAUSE_LENGTH = 80, 1000  # maximum characters of a shown text, and of a tokenizer's error message
BUNDLED_PREFIX = "tiny-"  # name prefix of bundled models
MODEL_HINT = (
    "Give 'tiny', a folder with config.json and *.safetensors, or the id of a causal language model on the Hugging "
    "Face hub"
)
PROBE_ANSWER = "Yes."
PROBE_QUESTION = {"role": "user", "content": "?"}
PROBE_CHAT = [PROBE_QUESTION, {"role": "assistant", "content": PROBE_ANSWER}]
DATE_FUNCTION = "strftime_now"  # function name in templates
# format codes that templates may use
DATE_FORMATS = [
    "a",
    "A",
    "b",
    "B",
    "d",
    "-d",
    "e",
    "m",
    "-m",
    "y",
    "Y",
    "j",
    "H",
    "I",
    "M",
    "S",
    "p",
    "F",
    "T",
    "x",
    "c",
]

for _name, _config_class in RENAMED_MODELS.items():
    CONFIG_MAPPING.register(_name, _config_class, exist_ok=True)


@dataclass(frozen=True, slots=True, eq=False)
class TokenizerFormat:
    """Tokenizer data for a model's prompts and outputs.

    Args:
        context: maximum tokens of prompt and action together.
        stop_ids: tokens that end a turn, the chat template's token first.
    """

    tokenizer: PreTrainedTokenizerBase
    context: int
    stop_ids: tuple[int, ...]


def load_tokenizer_formats(run: RunSettings) -> dict[str, TokenizerFormat]:
    """Load the tokenizers for a run's local models, by model name.

    Raises:
        UserError: a tokenizer cannot be loaded.
    """
    return {name: load_format(model) for name, model in run.models.items() if model.endpoint is None}


@with_load_lock
def load_format(settings: ModelSettings) -> TokenizerFormat:
    """Load a model's tokenizer, context length and stop ids. No weights are read.

    Raises:
        UserError: the model does not exist, or its tokenizer, chat template or context is invalid.
    """
    config = load_config(settings)
    tokenizer = load_tokenizer(settings)
    text = config.get_text_config()
    # a multimodal model may declare it only in its text configuration
    configs = (config, text, _load_generation_config(settings, config))
    declared = [getattr(part, "eos_token_id", None) for part in configs]
    try:
        ends = find_stop_ids(tokenizer, settings.template_options, declared, text.vocab_size)
    except TypeError as error:
        raise UserError(
            f"models: {settings.path!r}: eos_token_id in its generation_config.json is no token id, nor a list of them "
            f"({error}); correct it, or remove it"
        ) from error
    return TokenizerFormat(tokenizer, context_length(config, settings), ends)


@with_load_lock
def load_config(settings: ModelSettings) -> PretrainedConfig:
    """Load a model's configuration.

    Raises:
        UserError: the model does not exist, contains code or pickled weights, or is an adapter.
    """
    path, label = resolve_path(settings.path), f"models: {settings.path!r}"
    if (path.startswith(FOLDER_PREFIXES) or path.count("/") > 1) and not Path(path).is_dir():
        raise UserError(f"models: cannot load {path!r}: {_missing_folder_error(path)}. {MODEL_HINT}")
    if path.startswith(BUNDLED_PREFIX) and not Path(path).is_dir():
        unknown = f"no small model is called {path!r}{did_you_mean(path, bundled_models())}"
        raise UserError(f"models: {missing_extra('models', path) or unknown}")
    _check_folder(Path(path), label)
    check_size_limits(Path(path), label)
    try:
        config = AutoConfig.from_pretrained(path, revision=settings.revision, trust_remote_code=False)
    except Exception as error:  # transformers raises many types of errors
        suggestion = closest_match(path, bundled_models())
        hint = f"Did you mean {suggestion!r}?" if suggestion else MODEL_HINT
        folder_error = "" if Path(path).is_dir() else f"; as a folder: {_missing_folder_error(path)}"
        raise UserError(
            f"models: cannot load {settings.path!r}: {describe_cause(error)}{folder_error}. {hint}"
        ) from error
    assert isinstance(config, PretrainedConfig)
    vars(config).pop("model_type", None)  # a name of RENAMED_MODELS: weights are converted by the name of the class
    check_config_sizes(config.get_text_config(), label)
    return config


def _missing_folder_error(path: str) -> str:
    begins = "" if Path(path).is_absolute() else "; a model's relative path begins in the folder that marft runs in"
    return f"there is no folder {Path(path).absolute()}{begins}"


@with_load_lock
def load_tokenizer(settings: ModelSettings) -> PreTrainedTokenizerBase:
    """Load a model's tokenizer with the selected chat template.

    Raises:
        UserError: the tokenizer is missing, no chat template exists, or the template does not work.
    """
    path = resolve_path(settings.path)
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, revision=settings.revision, trust_remote_code=False)
    except Exception as error:  # tokenizers raises Exception itself
        raise UserError(
            f"models: cannot load the tokenizer of {settings.path!r}: {describe_cause(error)[:MAX_CAUSE_LENGTH]}. If "
            "its tokenizer.json or tokenizer_config.json is missing or damaged, get the model again, with all its files"
        ) from error
    assert isinstance(tokenizer, PreTrainedTokenizerBase)
    if settings.chat_template:
        template = expand_user(settings.chat_template)
        if not template.is_file():
            raise UserError(f"models: no chat template at {template}")
        tokenizer.chat_template = read_text(template)
    if not tokenizer.chat_template:
        raise UserError(
            f"models: the tokenizer of {settings.path!r} has no chat template; "
            "use an instruction-tuned model, or set chat_template to a Jinja file"
        )
    tokenizer.chat_template = _fix_dates(tokenizer.chat_template, settings.date)
    exempt_reasoning_tags(tokenizer)
    _check_round_trip(tokenizer, settings.path)
    source = settings.chat_template or f"of {settings.path!r}"
    check_template(tokenizer, settings.template_options, f"models: the chat template {source}")
    return tokenizer


def _check_round_trip(tokenizer: PreTrainedTokenizerBase, path: str) -> None:
    """Check for a tokenizer that reproduces a text.

    Without tokenizer.json, transformers builds a tokenizer that cannot encode text.

    Raises:
        UserError: the decoded text differs from the original.
    """
    decoded = str(tokenizer.decode(tokenizer.encode(TEST_MESSAGE, add_special_tokens=False)))
    if "".join(decoded.split()).casefold() != "".join(TEST_MESSAGE.split()).casefold():
        raise UserError(
            f"models: the tokenizer of {path!r} reads {TEST_MESSAGE!r} as {sanitize(decoded[:MAX_SHOWN_LENGTH])!r}: "
            "its tokenizer.json is missing or damaged; get the model again, with all its files"
        )


def _fix_dates(template: str | dict[str, str], day: str) -> str | dict[str, str]:
    """Fix the date in every chat template of a tokenizer."""
    if isinstance(template, dict):
        return {name: fix_date(template_text, day) for name, template_text in template.items()}
    return fix_date(template, day)


def context_length(config: PretrainedConfig, settings: ModelSettings) -> int:
    """Return the context length in tokens: the recipe's value, or the model's maximum.

    Two properties lower the maximum. First, some models change their rotary embeddings above a row length. Cached keys
    and scored keys would then differ. Second, sparse-attention models select the keys that a token sees. Above the
    number of selected keys, rounding could change the selection between sampling and scoring.

    Raises:
        UserError: the recipe's value exceeds the maximum.
    """
    text = config.get_text_config()
    max_length = int(getattr(text, "max_position_embeddings", 2048))
    max_length = min([max_length, *_rope_limits(text), *_sparse_limits(text)])
    if settings.context_length > max_length:
        raise UserError(
            f"models: context_length {settings.context_length} is more than the {max_length} tokens "
            f"{settings.path!r} was made for"
        )
    return settings.context_length or max_length


def _rope_limits(config: PretrainedConfig) -> Iterator[int]:
    """Yield the maximum length with identical rotary embeddings for rows of any length."""
    table = getattr(config, "rope_parameters", None) or {}
    for rope in (table, *(inner for inner in table.values() if isinstance(inner, dict))):
        if rope.get("rope_type") == "longrope":
            key = "original_max_position_embeddings"
            yield int(rope.get(key) or getattr(config, key, config.max_position_embeddings))


def _sparse_limits(config: PretrainedConfig) -> Iterator[int]:
    """Yield the number of keys per token for sparse attention. Up to this row length, every key is selected."""
    for name, in_blocks_of in SPARSE_ATTENTION_KEYS.items():
        count, size = getattr(config, name, None), getattr(config, in_blocks_of, 1) if in_blocks_of else 1
        if count:
            yield int(count) * int(size)


def policy_context_length(run: RunSettings, model: str, base: str, contexts: Mapping[str, int]) -> int:
    """Return the context length of a policy on ``model``, in tokens.

    A local model has its own context length. A remote model has the recipe's value, or the context length of its local
    tokenizer's model.

    Args:
        base: name of the local model, or of the local reader of a remote model.
        contexts: context length of each local model, by name.

    Raises:
        UserError: the context exceeds the length that the critic can read.
    """
    requested = run.models[model].context_length
    if run.models[model].endpoint is None or not requested:
        return contexts[base]
    if requested > contexts[base] and run.algorithm.critic.kind != "none":
        raise UserError(
            f"models.{model}.context_length: {requested} tokens are more than the {contexts[base]} that its reader "
            f"{base!r} can read for the critic; lower it, raise the reader's, or name another reader"
        )
    return requested


def describe_cause(error: Exception) -> str:
    """Return why transformers failed to load something, in a single line."""
    if "trust_remote_code" in str(error):
        return (
            "it brings code of its own (auto_map in its config), which is never run here; use a model that "
            "transformers itself knows"
        )
    if isinstance(error, KeyError) and " " not in str(error):
        return f"it names {first_line(error)}, which transformers does not know"
    return first_line(error)


def first_line(error: BaseException) -> str:
    """Return an error's first line, or its first two lines if the first ends with a colon."""
    lines = [line.strip() for line in (str(error).strip() or type(error).__name__).splitlines()]
    ends_with_colon = len(lines) > 1 and lines[0].endswith(":")
    return (f"{lines[0]} {lines[1]}" if ends_with_colon else lines[0]).rstrip(".")


def _load_generation_config(settings: ModelSettings, config: PretrainedConfig) -> GenerationConfig:
    """Load the generation configuration next to the weights, or derive it from the model's configuration.

    Raises:
        UserError: generation_config.json cannot be read.
    """
    path = resolve_path(settings.path)
    try:
        return GenerationConfig.from_pretrained(path, revision=settings.revision)
    except (OSError, TypeError, ValueError, RecursionError) as error:
        if isinstance(error, OSError) and not (Path(path) / "generation_config.json").exists():
            return GenerationConfig.from_model_config(config)
        raise UserError(
            f"models: {settings.path!r}: its generation_config.json cannot be read ({first_line(error)}); "
            "correct it, or remove it"
        ) from error


def _check_folder(folder: Path, label: str) -> None:
    if not folder.is_dir():
        return  # a Hugging Face model id
    verify_export_folder(folder)
    check_no_pickle(folder, label)
    if (folder / "adapter_config.json").is_file():
        raise UserError(f"{label} is an adapter; name its base here, and the folder as adapter of a policy on it")


def find_stop_ids(
    tokenizer: PreTrainedTokenizerBase,
    options: Mapping[str, object],
    declared: Sequence[int | Sequence[int] | None],
    vocabulary: int,
) -> tuple[int, ...]:
    """Return the stop ids for turns: the chat template's end-of-turn token, the EOS token, and declared ids.

    A given (not sampled) turn ends with the first of them. No other setting is read from generation_config.

    Args:
        declared: EOS ids from config and generation_config.
        vocabulary: number of tokens in the model's vocabulary; a tokenizer may have more.

    Raises:
        TypeError: a declared value is not a token id.
    """
    ids: list[int] = []
    eos_id: int | Sequence[int] | None = tokenizer.eos_token_id
    for value in (eos_id, *declared):
        ids += [] if value is None else [value] if isinstance(value, int) else value
    if not all(type(id) is int for id in ids):
        raise TypeError(f"it says {ids}")
    end = find_end_of_turn(tokenizer, options, ids)
    return tuple(dict.fromkeys(i for i in ([] if end is None else [end]) + ids if 0 <= i < vocabulary))


def find_end_of_turn(
    tokenizer: PreTrainedTokenizerBase, options: Mapping[str, Any], declared: Sequence[int]
) -> int | None:
    """Return the special token between an assistant message and the next turn; None without a special token.

    If the template adds no special token, the first token of the next turn ends the turn. The model must declare that
    token as an EOS token.
    """
    try:
        last, followed = (
            str(tokenizer.apply_chat_template(chat, tokenize=False, add_generation_prompt=False, **options))
            for chat in (PROBE_CHAT, [*PROBE_CHAT, PROBE_QUESTION])
        )
    except RENDER_ERRORS:
        return None
    special = {id for id, token in tokenizer.added_tokens_decoder.items() if token.special}
    special_ids = [id for id in _ids_after_answer(tokenizer, last) if id in special]
    if special_ids:
        return int(special_ids[0])
    after = _ids_after_answer(tokenizer, followed)[:1]
    return int(after[0]) if after and after[0] in declared else None


def _ids_after_answer(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    _, answer, after = text.partition(PROBE_ANSWER)
    return list(tokenizer.encode(after, add_special_tokens=False)) if answer else []


def fix_date(template: str, day: str) -> str:
    """Return a chat template with a fixed date, at midnight; unchanged if the template does not use a date.

    The date function is a macro inside the template, because a template can receive only plain data from outside.

    >>> fix_date("{{ strftime_now('%Y') }}", "2024-07-26").endswith("{{ '' }}{{ strftime_now('%Y') }}")
    True

    Args:
        day: date as YYYY-MM-DD.
    """
    if DATE_FUNCTION not in template:
        return template
    date = datetime.fromisoformat(day)
    replacements = "".join(f".replace('%{code}', '{date.strftime(f'%{code}')}')" for code in DATE_FORMATS)
    macro = f"{{% macro {DATE_FUNCTION}(format) %}}{{{{ format{replacements}.replace('%%', '%') }}}}{{% endmacro %}}"
    return macro + "{{ '' }}" + template  # keeps a leading newline of the template, which Jinja would drop after a tag
