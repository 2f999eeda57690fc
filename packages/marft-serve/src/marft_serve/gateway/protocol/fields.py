"""Handling of every request field in every protocol: supported, ignored or rejected by name.

The request models of a protocol name its supported fields. A different field is ignored if it cannot change the
answer, or if its value has no effect. All other fields are rejected, known or unknown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated

from pydantic import Field

from marft.common.texts import replace_surrogates
from marft_serve.gateway.errors import RequestError
from marft_serve.gateway.protocol.parsing import RequestModel

MAX_REPORTED = 32  # maximum number of ignored fields in a response
ECHOED_FIELDS = {  # fields that responses and client libraries add to messages
    "id", "status", "annotations", "logprobs", "refusal", "cache_control", "signature", "index", "thinking", "summary",
    "caller", "encrypted_content", "parsed", "parsed_arguments", "reasoning_content",
}  # fmt: skip
CONTENT_FIELDS = ("messages", "input", "system")  # fields with content, to which other programs may add fields
SERVER_FIELDS = frozenset({
    "user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
    "cache_control", "request_id", "stream_options", "priority", "cache_salt", "stream_options.include_obfuscation",
    "stream_options.include_usage", "anthropic_version", "inference_geo", "max_tool_calls",
})  # fmt: skip
SCHEMA_FIELDS = frozenset(  # names of schemas; answers always follow schemas strictly
    f"{form}.{name}"
    for form in ("response_format.json_schema", "text.format", "output_config.format")
    for name in ("name", "description", "strict")
)
REPORTED_FIELDS = frozenset({  # ignored, and reported in the response under ``marft.ignored``
    "truncation", "tools.strict", "tools.function.strict", "tools.input_examples", "tools.eager_input_streaming",
    "tools.defer_loading", "tools.allowed_callers", "stream_options.continuous_usage_stats",
})  # fmt: skip
# values without an effect; the field is rejected with any other value
NO_EFFECT_VALUES: Mapping[str, tuple[object, ...]] = {
    "add_special_tokens": (False,),
    "allowed_token_ids": ([],),
    "background": (False,),
    "bad_words": ([],),
    "best_of": (1,),
    "chat_template_kwargs": ({},),
    "documents": ([],),
    "echo": (False,),
    "frequency_penalty": (0,),
    "functions": ([],),
    "ignore_eos": (False,),
    "include": ([],),
    "include_reasoning": (True,),
    "include_stop_str_in_output": (False,),
    "length_penalty": (1,),
    "logit_bias": ({},),
    "logprobs": (False,),
    "mcp_servers": ([],),
    "messages.partial": (False,),
    "messages.prefix": (False,),
    "min_p": (0,),
    "min_tokens": (0,),
    "modalities": (["text"], []),
    "n": (1,),
    "output_config.effort": ("high",),
    "presence_penalty": (0,),
    "prompt_logprobs": (False,),
    "reasoning": ({},),
    "repetition_penalty": (1,),
    "return_token_ids": (False,),
    "return_tokens_as_token_ids": (False,),
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "stop": ([],),
    "stop_sequences": ([],),
    "stop_token_ids": ([],),
    "text.verbosity": ("medium",),
    "thinking": ({"type": "disabled"},),
    "top_logprobs": (0,),
    "use_beam_search": (False,),
    "verbosity": ("medium",),
}
REJECTION_REASONS = {  # alternative to a rejected field, or the reason for the rejection
    "best_of": "ask for n, and choose",
    "functions": "offer them as tools",
    "guided_choice": "ask for a json_schema with an enum",
    "guided_json": "ask for a json_schema",
    "conversation": "send the whole input, or what is new since previous_response_id",
    "structured_outputs": "ask for a json_schema",
    "logit_bias": "it would change what is trained on",
    "modalities": "agents write text alone",
    "thinking": "whether an agent thinks is said by its recipe",
    "reasoning": "whether an agent thinks is said by its recipe",
    "reasoning_effort": "whether an agent thinks is said by its recipe",
    "chat_template_kwargs": "options of the template are the recipe's",
    "messages.audio": "agents read text alone",
    "messages.function_call": "send it in tool_calls, and its answer as a tool's message",
    "messages.partial": "set continue_final_message, which continues the last message",
    "messages.prefix": "set continue_final_message, which continues the last message",
}


class SamplingParams(RequestModel):
    """Sampling parameters of all protocols.

    ``marft serve`` applies them. The gateway only records them.
    """

    temperature: Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1, allow_inf_nan=False)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**63)] | None = None

    @property
    def recorded_options(self) -> dict[str, float | int]:
        """Sampling parameters present in the request, by name."""
        values = {name: getattr(self, name) for name in SamplingParams.model_fields}
        return {name: value for name, value in values.items() if value is not None}


def collect_ignored_fields(request: RequestModel) -> tuple[str, ...]:
    """Return the names of ignored fields to report in the response.

    Raises:
        RequestError: an unsupported field may change the answer.
    """
    reported = set[str]()
    for name, value in _iter_extra_fields(request):
        parent = name.partition(".")[0] if "." in name else ""
        if parent and name.rpartition(".")[2] in ECHOED_FIELDS:
            continue
        if name not in REJECTION_REASONS and (parent in CONTENT_FIELDS or name in REPORTED_FIELDS):
            reported.add(name)
        elif name not in SERVER_FIELDS | SCHEMA_FIELDS and not _has_no_effect(name, value):
            raise unsupported_field_error(name)
    return tuple(sorted(reported)[:MAX_REPORTED])


def unsupported_field_error(name: str) -> RequestError:
    """Return the error for an unsupported field with a possible effect on the answer."""
    reason = REJECTION_REASONS.get(name, "it is not known here, and could change the answer; leave it out")
    return RequestError(400, "unsupported_parameter", f"{name}: {reason}", name)


def _has_no_effect(name: str, value: object) -> bool:
    if isinstance(value, dict):
        value = {key: inner for key, inner in value.items() if inner is not None}
    return value in NO_EFFECT_VALUES.get(name, ())


def _iter_extra_fields(table: RequestModel) -> Iterator[tuple[str, object]]:
    """Yield each unsupported field's dotted name, for example ``tools.function.strict``, and its value."""
    for name, value in (table.model_extra or {}).items():
        if value is not None:
            yield replace_surrogates(name)[:64], value
    for name in type(table).model_fields:
        field_value = getattr(table, name)
        for inner in field_value if isinstance(field_value, list) else [field_value]:
            if isinstance(inner, RequestModel):
                yield from ((f"{name}.{extra}", value) for extra, value in _iter_extra_fields(inner))
