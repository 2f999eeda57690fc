"""Chat templates with a tool format, in the ways that models have them, over the bundled tokenizer's markers."""

HERMES = r"""
{%- if tools -%}<|im_start|>system
{% if messages[0].role == 'system' %}{{ messages[0].content }}
{% endif %}<tools>{% for tool in tools %}
{{ tool | tojson }}{% endfor %}
</tools><|im_end|>
{% elif messages[0].role == 'system' -%}<|im_start|>system
{{ messages[0].content }}<|im_end|>
{% endif -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}<|im_start|>assistant
{{ m.content }}{% for call in m.tool_calls or [] %}{% if m.content or not loop.first %}
{% endif %}<tool_call>
{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}
</tool_call>{% endfor %}<|im_end|>
{% elif m.role == 'tool' -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}<|im_start|>user{% endif %}{{ '\n' }}<tool_response>
{{ m.content }}
</tool_response>
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}<|im_end|>
{% endif -%}
{%- elif m.role == 'user' -%}<|im_start|>user
{{ m.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""
BARE = r"""
{%- for m in messages -%}
{%- if m.tool_calls -%}
{%- if m.tool_calls | length != 1 -%}{{ raise_exception('one call at a time') }}{%- endif -%}<|im_start|>assistant
{"name": "{{ m.tool_calls[0].function.name }}", "parameters": {{ m.tool_calls[0].function.arguments | tojson }}}<|im_end|>
{% elif m.role == 'tool' -%}<|im_start|>ipython
{{ m.content }}<|im_end|>
{% else -%}<|im_start|>{{ m.role }}
{% if tools and loop.first %}{{ tools | tojson }}
{% endif %}{{ m.content }}<|im_end|>
{% endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""
LIST = r"""
{%- for m in messages -%}
{%- if m.tool_calls -%}
[TOOL_CALLS] [{% for call in m.tool_calls %}{{ call.function | tojson }}{% if not loop.last %}, {% endif %}{% endfor %}]<|im_end|>
{%- elif m.role == 'tool' -%}
[TOOL_RESULTS] {"content": {{ m.content | tojson }}, "call_id": "{{ m.tool_call_id }}"}[/TOOL_RESULTS]
{%- elif m.role == 'assistant' -%}{{ m.content }}<|im_end|>
{%- else -%}{% if tools %}[TOOLS]{{ tools | tojson }}[/TOOLS]{% endif %}[INST]{{ m.content }}[/INST]{%- endif -%}
{%- endfor -%}
"""
REWRITES = HERMES.replace("{{ m.content }}{% for call", "{{ messages | length }}{{ m.content }}{% for call")
TAGS = HERMES.replace(
    """{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}""",
    """<function={{ call.function.name }}>{% for k, v in call.function.arguments.items() %}<parameter={{ k }}>{{ v }}</parameter>{% endfor %}</function>""",
)
DROPS = r"""
{%- for m in messages -%}<|im_start|>{{ m.role }}
{{ m.content if loop.last or m.role != 'assistant' else m.content.split('</think>')[-1] }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""  # earlier thoughts
LEAVES_OUT = DROPS.replace("loop.last or ", "")  # thoughts, as soon as a turn is over
BEGINS = DROPS.replace(
    "assistant\n{% endif", "assistant\n<think>\n{% endif"
)  # a turn with a thought that it never shows
MOVES = r"""
{%- for m in messages -%}
{%- if m.role == 'user' and tools and (messages | selectattr('role', 'equalto', 'user') | list)[-1] == m -%}
[TOOLS]{{ tools | tojson }}[/TOOLS]
{%- endif -%}<|im_start|>{{ m.role }}
{{ m.content }}<|im_end|>
{% endfor -%}
{%- if add_generation_prompt -%}<|im_start|>assistant
{% endif -%}
"""  # the tools to the last question
MARKS = HERMES.replace("{% endfor %}<|im_end|>", "{% endfor %}{{ '!' if loop.last }}<|im_end|>")  # the last turn
ENDLESS = DROPS.replace("<|im_end|>", "")
ONCE = DROPS.replace("{%- for", "{%- if messages | length > 3 -%}{{ raise_exception('no') }}{%- endif -%}{%- for")
FORGETS = HERMES.replace(
    "{{ m.content }}{% for call", "{% if loop.last or not m.tool_calls %}{{ m.content }}{% endif %}{% for call"
)  # what stood before a call, once a tool has answered
THINKS = HERMES.replace(
    "{{ m.content }}{% for call",
    "{% if loop.last and '</think>' not in m.content %}<think>\n\n</think>\n\n{% endif %}{{ m.content }}{% for call",
)  # an empty thought to a last turn that has none
NO_ANSWERS = HERMES.replace("<tool_response>\n{{ m.content }}", "<tool_response>\n{{ raise_exception('no') }}")
MOVES_ON = BARE.replace("tools and loop.first", "tools and loop.last")  # the tools, and then leaves them out
THOUGHTLESS = THINKS.replace(
    "assistant\n{% endif", "assistant\n<think>\n\n</think>\n\n{% endif"
)  # and begins a turn with it
BEGUN = THINKS.replace("assistant\n{% endif", "assistant\n<think>\n{% endif")  # and begins a turn with its thought
BARE_THINKS = BARE + "{# <think> #}"
