"""The commands of a model card name the right bases, at the right commits, with room for every adapter's rank."""

from __future__ import annotations

import re

from marft.runs.export.manifest import Manifest, ModelEntry, PolicyEntry
from marft.runs.export.model_card import _loading_section, _with_peft, _with_vllm

MODELS = {"hub": ModelEntry(path="org/one", commit="c0ffee"), "here": ModelEntry(path="models/here")}
ADAPTERS = {
    "a": PolicyEntry(kind="adapter", model="hub", path="policies/a", rank=8),
    "b": PolicyEntry(kind="adapter", model="hub", path="policies/b", rank=24),
    "c": PolicyEntry(kind="adapter", model="here", path="policies/c", rank=4),
}


def test_vllm_serves_each_base_at_its_commit_with_its_own_adapters() -> None:
    hub, here = (text.replace("\\\n", "").split() for text in _with_vllm(MODELS, ADAPTERS))
    assert hub[:5] == ["vllm", "serve", "org/one", "--revision", "c0ffee"]
    assert hub[hub.index("--max-lora-rank") + 1] == "32"
    assert hub[hub.index("--lora-modules") + 1 :] == ["a=policies/a", "b=policies/b"]
    assert here[:3] == ["vllm", "serve", "models/here"]
    assert "--revision" not in here
    assert here[here.index("--max-lora-rank") + 1] == "8"
    assert here[here.index("--lora-modules") + 1 :] == ["c=policies/c"]


def test_peft_loads_the_adapters_of_each_base_at_its_commit() -> None:
    hub, here = (text.splitlines() for text in _with_peft(MODELS, ADAPTERS))
    assert [line for line in hub if "from_pretrained(" in line or "_adapter(" in line] == [
        'tokenizer = AutoTokenizer.from_pretrained("org/one", revision="c0ffee")',
        'base = AutoModelForCausalLM.from_pretrained("org/one", revision="c0ffee")',
        'model = PeftModel.from_pretrained(base, "policies/a", adapter_name="a")',
        'model.load_adapter("policies/b", "b")',
        'model.set_adapter("a")',
    ]
    assert 'base = AutoModelForCausalLM.from_pretrained("models/here")' in here
    assert here[-1] == 'model.set_adapter("c")'
    assert not [line for line in here if "load_adapter" in line]


def test_the_card_says_what_prompts_and_answers_depend_on() -> None:
    """A model that was trained without thoughts thinks again where nobody turns that off."""
    manifest = Manifest.model_construct(
        policies={
            "p": PolicyEntry(kind="adapter", model="one", path="policies/p", rank=12),
            "q": PolicyEntry(kind="adapter", model="two", path="policies/q", rank=12),
        },
        models={
            "one": ModelEntry(path="org/one", commit="c0", template_options={"enable_thinking": False}),
            "two": ModelEntry(path="org/two", commit="c0", chat_template="templates/two.jinja"),
        },
        agents=({"role": "a", "thinking": "drop", "sampling": {"temperature": 0.7, "max_new_tokens": 40}},),
    )
    text = "\n".join(_loading_section(manifest, "team"))
    assert "marft serve .\nmarft eval .\n" in text
    trusting = "\n".join(_loading_section(manifest, "team", " --trust-code"))
    assert "marft serve . --trust-code\nmarft eval . --trust-code\n" in trusting
    assert text.count("PeftModel.from_pretrained(base") == 2
    assert 'tokenizer.chat_template = open("templates/two.jinja"' in text
    first, second = re.findall(r"vllm serve(.*?)\n```", text, re.DOTALL)
    assert "org/one --revision c0 --generation-config vllm" in first
    assert """--default-chat-template-kwargs '{"enable_thinking": false}'""" in first
    assert "--max-loras 1 --max-lora-rank 16" in first
    assert "--chat-template templates/two.jinja" in second
    assert "apply_chat_template(…, **{'enable_thinking': False})" in text
    assert "| `a` | 0.7 | 40 | drop |" in text


def test_the_card_offers_no_evaluation_without_the_environment() -> None:
    manifest = Manifest.model_construct(policies={}, models={}, agents=())
    text = "\n".join(_loading_section(manifest, "team", has_environment=False))
    assert "marft serve .\n```" in text
    assert "marft eval .\n" not in text
    assert "`marft eval` needs an environment" in text
