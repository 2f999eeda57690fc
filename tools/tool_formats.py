"""Check the tool calls and reasoning of each model family, and write the table.

    python -m tools.tool_formats           # benchmarks/results/tool_formats.md
    python -m tools.tool_formats --check   # exits with status 1 if a claim of the table fails

The claims are those of tests/marft/inference/test_tool_families.py. The package ``renderers`` parses the same turns for
comparison, if it is installed.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import time
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import transformers
from tests.marft.inference import test_tool_families as claims
from tests.tool_families import FAMILIES, byte_tokenizer, chat_format, official_template
from transformers import PreTrainedTokenizerBase

from marft.agents.prompt_messages import tool_call_messages
from marft.common.types import TokenIds, Tool, ToolCall
from marft.inference.chat_messages import tokenize_messages
from marft.inference.renderer import ChatRenderer

RESULT = Path(__file__).parents[1] / "benchmarks" / "results" / "tool_formats.md"
TOOL = Tool(
    "search",
    "Search.",
    {"properties": {"query": {"type": "string"}, "limit": {"type": "integer"}, "tags": {"type": "array"}}},
)
CALLS = tuple(
    ToolCall("search", json.dumps({"query": query, "limit": 3, "tags": ["a", "b"]})) for query in ('say "hi"', "x < 3")
)
CONFIGS = {  # configuration of the package renderers by family
    "Qwen 3 (Hermes)": "Qwen3", "Qwen 3.5": "Qwen35", "Qwen 3.8": "Qwen38", "Nemotron 3": "Nemotron3",
    "GLM 4.5": "GLM45", "GLM 4.7": "GLM5", "gpt-oss (harmony)": "GptOss", "DeepSeek 3, R1": "DeepSeekV3",
    "Kimi K2": "KimiK2", "Llama 3 (JSON)": "Llama3", "Gemma 4": "Gemma4", "MiniMax M2": "MiniMaxM2",
}  # fmt: skip
REPEATS = 200


def main(words: Sequence[str] | None = None) -> int:
    """Check every family and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args(words)
    transformers.logging.set_verbosity_error()
    rows = [check_family(name) for name in FAMILIES]
    lines = [HEADER, ["---"] * len(HEADER), *rows]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    if not arguments.check:
        RESULT.write_text(f"{table}\n\n{NOTES}\n", encoding="utf-8")
    print(table)
    return int(any("no:" in cell for row in rows for cell in row))


HEADER = (
    "family", "syntax", "template", "as official", "read back, whole and streamed", "malformed: explained",
    "tool loop exact", "`marft sft`", "µs a turn", "`renderers`", "µs a turn",
)  # fmt: skip
NOTES = """`python -m tools.tool_formats` writes this table.

- *Template*: the official one from TRL's wheel, or ours after the published format.
- *As official*: a conversation renders as the official template renders it.
- *Read back*: generated calls, texts and reasoning are parsed whole, and in streams cut at every token.
- *Tool loop exact*: the sampled tokens stay, and the template's answer is appended.
- `renderers` 0.1.12 parses the same turn with its class for the family; for gpt-oss it downloads a vocabulary."""


def check_family(name: str) -> list[str]:
    """Return a family's row of the table."""
    family, format = FAMILIES[name], chat_format(name)
    if format is None:
        return [name, "", "not installed", *[""] * (len(HEADER) - 3)]
    renderer = ChatRenderer({"p": format})
    syntax, ids = renderer.tool_format("p").syntax, example_turn(name)
    ours = [(call.name, json.loads(call.arguments)) for call in renderer.calls("p", ids, [TOOL])]
    theirs, their_time = compare(name, ids)
    return [
        name,
        type(syntax).__name__.removesuffix("Syntax"),
        "official" if not family.template else "ours",
        holds(claims.test_a_conversation_is_what_the_official_template_renders, name) if family.official else "",
        holds(claims.test_what_is_rendered_is_read_back_whole_and_token_by_token, name),
        holds(claims.test_a_malformed_call_becomes_an_error_that_the_agent_sees, name),
        holds(claims.test_what_comes_after_a_tools_answer_is_what_the_template_renders, name) if family.keeps else "",
        holds(claims.test_a_demonstration_is_encoded_as_the_model_would_sample_it, name),
        f"{microseconds(lambda: renderer.calls('p', ids, [TOOL])):.0f}" if ours == expected(name) else f"no: {ours}",
        theirs,
        their_time,
    ]


def holds(claim: Callable[[str], None], name: str) -> str:
    """Return "yes", or "no" with the first line of what failed."""
    try:
        claim(name)
    except pytest.skip.Exception as reason:
        return str(reason)
    except AssertionError as error:
        return f"no: {str(error).splitlines()[0]}"
    return "yes"


def example_turn(name: str) -> TokenIds:
    """Return the tokens of a turn with reasoning, text and two calls, as far as the family has them."""
    family = FAMILIES[name]
    turn = tool_call_messages("", CALLS[: 1 if family.single else 2])[0]
    content = claims.reasoned(name, "Hm.", "" if family.single or family.bare else "I search.")
    return claims.sampled_turn(name, {**turn, "content": content}, [TOOL])


def expected(name: str) -> list[tuple[str, Any]]:
    """Return the names and arguments of the calls in :func:`example_turn`."""
    return [(call.name, json.loads(call.arguments)) for call in CALLS[: 1 if FAMILIES[name].single else 2]]


def compare(name: str, ids: TokenIds) -> tuple[str, str]:
    """Parse a turn with the package ``renderers``: whether it reads the same calls, and its time."""
    if find_spec("renderers") is None or name not in CONFIGS:
        return "", ""
    import renderers  # type: ignore[import-not-found]
    from renderers import configs

    format, config = chat_format(name), getattr(configs, f"{CONFIGS[name]}RendererConfig")()
    assert format is not None
    prompt = tokenize_messages(format, [claims.USER], [TOOL]).tolist()
    tools = [{"type": "function", "function": {"name": TOOL.name, "parameters": TOOL.parameters}}]
    try:
        other = with_missing_tokens(name, lambda tokenizer: renderers.create_renderer(tokenizer, config))

        def parse() -> list[tuple[Any, Any]]:
            parsed = other.parse_response(ids.tolist(), tools=tools, prompt_ids=prompt)
            return [(call.name, call.arguments) for call in parsed.tool_calls]

        found = parse()
    except Exception as error:  # noqa: BLE001  the comparison says what happened
        return f"{type(error).__name__}: {str(error)[:60]}", ""
    same = [(n, json.loads(a) if isinstance(a, str) else a) for n, a in found] == expected(name)
    return "same" if same else f"differs: {found}", f"{microseconds(parse):.0f}"


def with_missing_tokens(name: str, build: Callable[[PreTrainedTokenizerBase], Any]) -> Any:
    """Return the other package's renderer over the family's tokenizer, with every special token that it asks for."""
    family, missing = FAMILIES[name], list[str]()
    template = family.template or official_template(family.official)
    while True:
        try:
            return build(byte_tokenizer(family.special, (*family.marks, *missing), template))
        except AssertionError as error:
            match = re.search(r"[Ss]pecial token '(.+?)' not found", str(error))
            if match is None or match[1] in missing:
                raise
            missing.append(match[1])


def microseconds(function: Callable[[], object]) -> float:
    """Return the best time of several calls."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        function()
        best = min(best, time.perf_counter() - start)
    return best * 1e6


if __name__ == "__main__":
    assert official_template("qwen3"), "make templates"
    sys.exit(main())
