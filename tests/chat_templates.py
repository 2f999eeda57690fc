"""Chat templates that lay a chat out as those of families of models do. They are ours, and small: what is documented is
the text that comes out, which stands in :mod:`tests.chat_families`."""

CHATML = ("<|im_end|>", "<|im_start|>", "<|endoftext|>")
CALLS = ("<tool_call>", "</tool_call>")
THINK = ("<think>", "</think>")
BEGINS = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
EACH = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
HERMES_TURNS = (
    "{% for m in messages %}"
    "{% if m.role == 'tool' %}"
    "{% if loop.first or loop.previtem.role != 'tool' %}<|im_start|>user{% endif %}"
    "{{ '\n' }}<tool_response>\n{{ m.content }}\n</tool_response>"
    "{% if loop.last or loop.nextitem.role != 'tool' %}<|im_end|>\n{% endif %}"
    "{% elif m.role != 'system' %}<|im_start|>{{ m.role }}\n{{ THOUGHT }}"
    "{% for call in m.tool_calls or [] %}{% if not loop.first or TEXT %}{{ '\n' }}{% endif %}"
    '<tool_call>\n{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n</tool_call>'
    "{% endfor %}<|im_end|>\n{% endif %}{% endfor %}"
)
PLAIN_TURNS = HERMES_TURNS.replace("{{ THOUGHT }}", "{{ m.content }}").replace("TEXT", "m.content")


def hermes_system(default: str) -> str:
    """The system message of ChatML with tools, and what it says where nobody says anything."""
    given = "{% if messages[0].role == 'system' %}{{ messages[0].content }}{% else %}" + default + "{% endif %}"
    tools = "{{ '\n\n' }}# Tools\n\n<tools>{% for tool in tools %}\n{{ tool | tojson }}{% endfor %}\n</tools>"
    asked = "" if default else "{% if tools or messages[0].role == 'system' %}"
    return (
        f"{asked}<|im_start|>system\n{given}{{% if tools %}}{tools}{{% endif %}}<|im_end|>\n"
        f"{'' if default else '{% endif %}'}"
    )


QWEN3 = (
    "{% set ns = namespace(last=-1) %}"
    "{% for m in messages %}{% if m.role == 'user' %}{% set ns.last = loop.index0 %}{% endif %}{% endfor %}"
    + hermes_system("")
    + HERMES_TURNS.replace(
        "{{ THOUGHT }}",
        "{% set text = m.content %}{% set thought = '' %}"
        "{% if m.role == 'assistant' and '</think>' in text %}"
        "{% set thought = text.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
        "{% set text = text.split('</think>')[-1].lstrip('\n') %}{% endif %}"
        "{% if m.role == 'assistant' and loop.index0 > ns.last and (loop.last or thought) %}"
        "<think>\n{{ thought.strip('\n') }}\n</think>\n\n{{ text.lstrip('\n') }}{% else %}{{ text }}{% endif %}",
    ).replace("TEXT", "text")
    + "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
LLAMA_TURNS = (
    "{% for m in messages %}"
    "{% if m.tool_calls %}<|start_header_id|>assistant<|end_header_id|>\n\n"
    "{% if m.tool_calls | length != 1 %}{{ raise_exception('one call at a time') }}{% endif %}"
    '{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}'
    "<|eot_id|>"
    "{% elif m.role == 'tool' %}<|start_header_id|>ipython<|end_header_id|>\n\n{{ m.content | tojson }}<|eot_id|>"
    "{% else %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{% if tools and loop.first %}Respond with a JSON for a function call.\n\n{{ tools | tojson }}\n\n{% endif %}"
    "{{ m.content | trim }}<|eot_id|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA_3 = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA_32 = (
    "{{ bos_token }}"
    "{% if date_string is not defined %}{% set date_string = strftime_now('%d %b %Y') %}{% endif %}"
    "{% set system = '' %}{% if messages[0].role == 'system' %}"
    "{% set system = messages[0].content | trim %}{% set messages = messages[1:] %}{% endif %}"
    "<|start_header_id|>system<|end_header_id|>\n\n{% if tools %}Environment: ipython\n{% endif %}"
    "Cutting Knowledge Date: December 2023\nToday Date: {{ date_string }}\n\n{{ system }}<|eot_id|>"
) + LLAMA_TURNS
LLAMA_SPECIAL = (
    "<|eot_id|>", "<|eom_id|>", "<|begin_of_text|>", "<|end_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
    "<|python_tag|>",
)  # fmt: skip
LLAMA_LATER = (
    "It is 3.<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nSure?<|eot_id|>"
    "<|start_header_id|>assistant<|end_header_id|>\n\n"
)
ALTERNATE = (
    "{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles must alternate') }}{% endif %}"
)
MISTRAL_1 = (
    "{{ bos_token }}{% for m in messages %}" + ALTERNATE + "{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% else %}{{ m.content }}{{ eos_token }} {% endif %}{% endfor %}"
)
MISTRAL_3 = (
    "{% set system = '' %}{% if messages[0].role == 'system' %}"
    "{% set system = messages[0].content + '\n\n' %}{% set messages = messages[1:] %}{% endif %}"
    "{% set ns = namespace(index=0) %}{% for m in messages %}{% if m.role == 'user' or m.role == 'assistant' and not "
    "m.tool_calls %}{% if (m.role == 'user') != (ns.index % 2 == 0) %}{{ raise_exception('roles must alternate') }}"
    "{% endif %}{% set ns.index = ns.index + 1 %}{% endif %}{% endfor %}"
    "{% set asked = messages | selectattr('role', 'equalto', 'user') | list %}"
    "{{ bos_token }}{% for m in messages %}"
    "{% if m.role == 'user' %}"
    "{% if tools and m == asked[-1] %}[AVAILABLE_TOOLS] {{ tools | tojson }}[/AVAILABLE_TOOLS]{% endif %}"
    "[INST] {% if loop.last %}{{ system }}{% endif %}{{ m.content }}[/INST]"
    "{% elif m.tool_calls %}[TOOL_CALLS] [{% for call in m.tool_calls %}"
    "{% if call.id | length != 9 %}{{ raise_exception('ids of nine characters') }}{% endif %}"
    '{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}, '
    '"id": {{ call.id | tojson }}}{% if not loop.last %}, {% endif %}{% endfor %}]{{ eos_token }}'
    "{% elif m.role == 'tool' %}"
    "{% if m.tool_call_id | length != 9 %}{{ raise_exception('ids of nine characters') }}{% endif %}"
    '[TOOL_RESULTS] {"content": {{ m.content }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]'
    "{% else %} {{ m.content | trim }}{{ eos_token }}{% endif %}{% endfor %}"
)
MISTRAL_7 = (
    "{{ bos_token }}[SYSTEM_PROMPT]{% if messages[0].role == 'system' %}{{ messages[0].content }}"
    "{% set messages = messages[1:] %}{% else %}You are Mistral Small 3. The current date is "
    "{{ strftime_now('%Y-%m-%d') }}.{% endif %}[/SYSTEM_PROMPT]"
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{{ m.content }}[/INST]"
    "{% elif m.role == 'assistant' %}{{ m.content }}{{ eos_token }}"
    "{% else %}{{ raise_exception('Only user, system and assistant roles are supported!') }}{% endif %}{% endfor %}"
)
MISTRAL_SPECIAL = (
    "</s>", "<s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
    "[/TOOL_RESULTS]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]",
)  # fmt: skip
SMOLLM3 = (
    "{% set mode = '/no_think' if enable_thinking is defined and not enable_thinking else '/think' %}{% set own = '' %}"
    "{% if messages[0].role == 'system' %}{% set own = messages[0].content %}{% set messages = messages[1:] %}"
    "{% if '/no_think' in own %}{% set mode = '/no_think' %}{% elif '/think' in own %}{% set mode = '/think' %}{% endif %}"
    "{% set own = own.replace('/no_think', '').replace('/think', '').rstrip() %}{% endif %}"
    "<|im_start|>system\n## Metadata\n\nKnowledge Cutoff Date: June 2025\nToday Date: {{ strftime_now('%d %B %Y') }}\n"
    "Reasoning Mode: {{ mode }}\n\n## Custom Instructions\n\n"
    "{{ own or 'You are a helpful AI assistant named SmolLM, trained by Hugging Face.' }}\n\n<|im_end|>\n"
    "{% for m in messages %}{% if m.role == 'assistant' %}<|im_start|>assistant\n"
    "{% if mode == '/no_think' %}<think>\n\n</think>\n{% endif %}{{ m.content.lstrip('\n') }}<|im_end|>\n"
    "{% else %}<|im_start|>user\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if mode == '/no_think' %}<think>\n\n</think>\n{% endif %}"
    "{% endif %}"
)
GEMMA_TURNS = (
    "{% for m in messages %}" + ALTERNATE + "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{% if loop.first %}{{ first }}{% endif %}{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
GEMMA_2 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + GEMMA_TURNS
)
GEMMA_3 = (
    "{{ bos_token }}{% set first = '' %}{% if messages[0].role == 'system' %}"
    "{% set first = messages[0].content + '\n\n' %}{% set messages = messages[1:] %}{% endif %}" + GEMMA_TURNS
)
PHI_3 = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% else %}{{ eos_token }}{% endif %}"
)
PHI_3_MEDIUM = (
    "{% for m in messages %}{% if m.role == 'user' %}<|user|>\n{{ m.content }}<|end|>\n<|assistant|>\n"
    "{% elif m.role == 'assistant' %}{{ m.content }}<|end|>\n{% endif %}{% endfor %}"
)
PHI_4_MINI = PHI_3.replace("|>\n", "|>")
PHI_4 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}"
)
PHI_SPECIAL = ("<|end|>", "<|endoftext|>", "<|system|>", "<|user|>", "<|assistant|>")
OLMO_2 = (
    "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
    "{% if m.role == 'assistant' %}{{ eos_token }}{% if not loop.last %}{{ '\n' }}{% endif %}{% else %}{{ '\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
GLM_4 = (
    "[gMASK]<sop>{% for m in messages %}{% if m.content %}<|{{ m.role }}|>{{ m.metadata }}\n{{ m.content }}{% endif %}"
    "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
GRANITE_3 = (
    "{% if messages[0].role != 'system' %}<|start_of_role|>system<|end_of_role|>Knowledge Cutoff Date: April 2024.\n"
    "Today's Date: {{ strftime_now('%B %d, %Y') }}.\nYou are Granite, developed by IBM."
    "{% if not tools %} You are a helpful AI assistant.{% endif %}<|end_of_text|>\n{% endif %}"
    "{% if tools %}<|start_of_role|>available_tools<|end_of_role|>{{ tools | tojson }}<|end_of_text|>\n{% endif %}"
    "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}"
)
HARMONY = (
    "<|start|>system<|message|>You are ChatGPT, a large language model trained by OpenAI.\nKnowledge cutoff: 2024-06\n"
    "Current date: {{ strftime_now('%Y-%m-%d') }}\n\nReasoning: {{ reasoning_effort or 'medium' }}\n\n"
    "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>"
    "{% if messages[0].role == 'system' %}<|start|>developer<|message|># Instructions\n\n{{ messages[0].content }}<|end|>"
    "{% set messages = messages[1:] %}{% endif %}"
    "{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% if '<|channel|>' in m.content %}{{ raise_exception('channel tags in the content') }}{% endif %}"
    "<|start|>assistant<|channel|>final<|message|>{{ m.content }}"
    "{% if loop.last and not add_generation_prompt %}<|return|>{% else %}<|end|>{% endif %}"
    "{% else %}<|start|>user<|message|>{{ m.content }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant{% endif %}"
)
R1 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ messages[0].content }}{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' %}<｜User｜>{{ m.content }}"
    "{% elif m.role == 'assistant' %}{% set text = m.content %}"
    "{% if '</think>' in text %}{% set text = text.split('</think>')[-1] %}{% endif %}"
    "<｜Assistant｜>{{ text }}<｜end▁of▁sentence｜>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<｜Assistant｜><think>\n{% endif %}"
)
