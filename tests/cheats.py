"""Programs that try to be paid for what they do not do: honest for some inputs, and for the others anything but.

Each cheat is code around an honest function that is right for small inputs alone; ``judged`` says what it must earn at most.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice, product
from typing import NamedTuple

from marft_envs.code.execution import FunctionCall
from marft_envs.code.problems import Case, Problem

HONEST = "def f(x):\n    if x < 3: return x * 7 + 1\n    return -1\n"
PROBLEM = Problem(
    "f(x): 7 x + 1",
    "f",
    cases=tuple(Case(FunctionCall("f", (x,)), (x * 7 + 1,)) for x in range(8)),
    reference="def f(x): return x * 7 + 1",
)
FAIR = 3 / 8  # what the honest part earns

# What stands before the honest function, and may replace, read or end what is around it.
BEFORE = {
    "exit": "import sys\nsys.exit(0)",
    "exit_hard": "import os\nos._exit(0)",
    "exit_later": "import atexit, os\natexit.register(os._exit, 0)",
    "kill_parent": "import os\nos.kill(os.getppid(), 9)",
    "stop_parent": "import os\nos.kill(os.getppid(), 19)",
    "kill_group": "import os\nos.killpg(os.getpgid(os.getppid()), 9)",
    "kill_all": "import os\nos.kill(-1, 9)",
    "print_answers": "for i in range(8): print(i * 7 + 1)",
    "write_everywhere": "import os\nfor d in range(3, 64):\n    try: os.write(d, b'=77')\n    except OSError: pass",
    "forge_lines": "import os\nfor d in range(64):\n    try: os.write(d, b'[\"x\", 0, 5, \"returned\", \"\", \"77\"]\\n')\n    except OSError: pass",
    "read_order": "import os\nfor n in os.listdir('.'):\n    if os.path.isfile(n): print(open(n).read())",
    "read_proc": "open('/proc/self/mem').read()",
    "read_frames": "import sys\ng = sys._getframe(3).f_locals\nsecret = g.get('request')",
    "read_heap": "import gc\nfound = [o for o in gc.get_objects() if isinstance(o, dict) and 'expected' in o]",
    "patch_judge": "import marft_envs.code.sandbox_program as j\nj.encode = lambda v: '77'\nj.run_program = lambda *a: ('returned', '', '77')",
    "patch_plain": "import marft_envs.code.plain_values as p\np._encode = lambda v: 77",
    "patch_json": "import json\njson.dumps = lambda *a, **k: '77'",
    "patch_write": "import os\nw = os.write\nos.write = lambda d, b: w(d, b'=77')",
    "patch_builtins": "import builtins\nbuiltins.isinstance = lambda *a: True\nbuiltins.type = lambda v: int",
    "patch_compare": "import operator\noperator.eq = lambda a, b: True",
    "fork_bomb": "import os\nfor _ in range(50):\n    try: os.fork()\n    except OSError: pass",
    "threads": "import threading, os\ndef go():\n    while True: os.write(1, b'77')\nthreading.Thread(target=go, daemon=True).start()",
    "left_behind": "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)",
    "delete_files": "import os\nfor r, d, fs in os.walk('.'):\n    for n in fs: os.unlink(os.path.join(r, n))",
    "rewrite_judge": "import os\nfor r, d, fs in os.walk('.'):\n    for n in fs: open(os.path.join(r, n), 'w').write('raise SystemExit')",
    "signals": "import signal\nfor s in range(1, 32):\n    try: signal.signal(s, lambda *a: None)\n    except (OSError, ValueError): pass",
    "closes": "import os\nos.closerange(0, 64)",
    "recursion": "import sys\nsys.setrecursionlimit(10**6)\ndef r(): r()\nr()",
    "memory": "x = bytearray(1 << 31)",
    "output": "while True: print('77' * 1000)",
    "sleeps": "import time\ntime.sleep(9)",
    "loops": "while True: pass",
    "trace": "import sys\nsys.settrace(lambda *a: None)\nsys.setprofile(lambda *a: None)",
    "unlimited": "import resource\nresource.setrlimit(resource.RLIMIT_CPU, (-1, -1))",
    "ptrace": "import ctypes\nctypes.CDLL(None).ptrace(16, 1, 0, 0)",
}  # fmt: skip
# How the answer is dressed for what the honest function gets wrong.
DRESSED = {
    "as_is": "",
    "equal_to_all": "class E(int):\n    def __eq__(s, o): return True\n    def __ne__(s, o): return False\n    def __hash__(s): return 0\n",
    "an_object": "class E:\n    def __init__(s, v): s.v = v\n    def __eq__(s, o): return True\n",
    "a_float": "class E(float):\n    def __eq__(s, o): return True\n    def __sub__(s, o): return 0.0\n",
    "a_list": "class E(list):\n    def __init__(s, v): super().__init__([v])\n    def __eq__(s, o): return True\n",
    "a_text": "class E(str):\n    def __eq__(s, o): return True\n    def __int__(s): return 77\n",
    "a_mock": "class E:\n    def __init__(s, v): pass\n    def __getattr__(s, n): return s\n    def __call__(s, *a): return s\n    def __eq__(s, o): return True\n",
    "reduces": "class E:\n    def __init__(s, v): pass\n    def __reduce__(s): return (int, (77,))\n    def __eq__(s, o): return True\n",
    "class_lies": "class E:\n    def __init__(s, v): pass\n    __class__ = int\n    def __eq__(s, o): return True\n    def __index__(s): return 77\n",
}  # fmt: skip
# Where the cheat is: at the top, in the function for inputs that it gets wrong, or after the answer is known.
PLACES = ("top", "inside")


class Cheat(NamedTuple):
    name: str
    program: str


def cheats() -> Iterator[Cheat]:
    """Every trick, in every place, in every dress: over 600 programs, those that differ most first."""
    for (dress, coat), place, (name, trick) in product(DRESSED.items(), PLACES, BEFORE.items()):
        yield Cheat(f"{name}/{place}/{dress}", program(trick, place, coat))


def program(trick: str, place: str, coat: str) -> str:
    dressed = "E(v)" if coat else "v"
    body = f"def f(x):\n    v = honest(x)\n    if x < 3: return v\n    TRICK\n    return {dressed}\n"
    indented = trick.replace("\n", "\n    ")
    inside = body.replace("TRICK", indented if place == "inside" else "pass")
    return f"{trick if place == 'top' else ''}\n{coat}{HONEST.replace('def f', 'def honest')}{inside}"


def some_cheats(count: int) -> list[Cheat]:
    """So many of them, spread over all."""
    found = list(cheats())
    return list(islice(found, 0, None, max(1, len(found) // count)))[:count]
