"""Judge's side inside the jail. Each program runs on each input in a separate process. Standard library only.

A child process runs the program. It has an input and two pipes, but neither the judge's output nor the nonce at the
start of the judge's records. Other inputs and programs are deleted first. The child can write anything for itself and
this input. The comparison takes place outside the jail; no right answer is inside.
"""

from __future__ import annotations
import __future__

import atexit
import builtins
import contextlib
import io
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any

from marft_envs.code.plain import decode, encode

ORDER = "order.json"
CHUNK = 65536
LONGEST_WORDS = 400  # maximum characters of an error message
MOST_SAID = 4096  # maximum bytes of the message in a record
PATIENCE = 2  # maximum timeouts of a program; later inputs are not run
GRACE = 3.0  # wall-clock seconds per CPU second: other processes compete for the CPU
RETURNED, RAISED = b"=", b"!"
LATER = __future__.annotations.compiler_flag


def main() -> None:
    """Read the order and write a record for each program and input."""
    with open(ORDER, encoding="utf-8") as file:
        order = json.load(file)
    os.unlink(ORDER)
    tell = os.dup(1)
    nothing = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(nothing, number)
    for module in order["modules"]:  # forked children inherit these imports
        with contextlib.suppress(ImportError):
            __import__(module)
    deadline = time.monotonic() + order["seconds"]
    before = compiled(order["before"])
    for place, source in enumerate(order["programs"]):
        program, late = before if isinstance(before, str) else compiled(source, before.co_flags), 0
        for index, given in enumerate(order["inputs"]):
            if isinstance(program, str):
                outcome = ("raised", program, b"")
            elif late == PATIENCE or time.monotonic() > deadline:
                outcome = ("not_run", "", b"")
            else:
                outcome = run((before, program), given, order, tell, deadline)
                late += outcome[0] == "timed_out"
            write(tell, record(f"{order['nonce']} {place} {index}", *outcome))


def record(about: str, how: str, said: str, output: bytes) -> bytes:
    """Format a record: ``nonce program input how length length`` on its own line, then two texts.

    The lengths are in bytes. The texts are the message about the ending, and the output. A reader can extract them
    without parsing.
    """
    words = said.encode("utf-8", "replace")[:MOST_SAID]
    return f"\n{about} {how} {len(words)} {len(output)}\n".encode() + words + output


def compiled(source: str, flags: int = 0) -> Any:
    """Compile a program; return the code, or an error message.

    Args:
        source: source of the program.
        flags: compiler flags of the code before it, which may postpone the evaluation of annotations.
    """
    try:
        return compile(source, "program.py", "exec", flags & LATER, dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError) as error:
        return words(error)


def run(
    codes: tuple[Any, Any], given: dict[str, Any], order: dict[str, Any], tell: int, deadline: float
) -> tuple[str, str, bytes]:
    """Run a program on an input in a child process; return its ending, message and output."""
    said, say = os.pipe()
    heard, print_to = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(tell)
        os.close(said)
        os.close(heard)
        leave = os._exit
        limits = {name: order[name] for name in ("cpu_seconds", "memory_bytes")}
        for kept in (order["inputs"], order["programs"], order):  # a program could find these in its parent frames
            kept.clear()
        try:
            be_program(codes, given, say, print_to, limits)
            leave(0)
        finally:
            leave(1)
    os.close(say)
    os.close(print_to)
    end = min(deadline, time.monotonic() + GRACE * order["cpu_seconds"])
    how, texts = listen(child, (said, heard), end, order["output_bytes"])
    finish(child)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for pipe in (said, heard):
        os.close(pipe)
    message, output = texts
    if how:
        return how, "", b""
    # an empty message means that the program exited on its own
    if status == 0 and given["kind"] == "feed" and message in (RETURNED, b""):
        return "returned", "", output
    if status == 0 and given["kind"] == "call" and message.startswith(RETURNED):
        return "returned", "", message[1:]
    if message.startswith(RAISED):
        return "raised", message[1:].decode("utf-8", "replace")[:LONGEST_WORDS], b""
    if status == -signal.SIGKILL or status == -signal.SIGXCPU:
        return "timed_out", "", b""
    return "died", f"exit status {status}", b""


def listen(child: int, pipes: tuple[int, int], end: float, most: int) -> tuple[str, list[bytes]]:
    """Read both pipes until the child exits; return the reason for stopping it, or "", and the bytes read."""
    gone = os.pidfd_open(child)
    texts = {pipe: bytearray() for pipe in pipes}
    waiting = select.poll()
    for number in (gone, *pipes):
        os.set_blocking(number, False)
        waiting.register(number, select.POLLIN)
    how, ended = "", False
    while not how and not ended:
        ready = {number for number, _ in waiting.poll(max(0.0, 1000 * (end - time.monotonic())))}
        ended = gone in ready  # bytes written before the exit are still in the pipes
        for pipe in ready - {gone}:
            if not take(pipe, texts[pipe], most):
                waiting.unregister(pipe)
        if any(len(text) > most for text in texts.values()):
            how = "too_much_output"
        elif not ended and time.monotonic() >= end:
            how = "timed_out"
    os.close(gone)
    return how, [bytes(text) for text in texts.values()]


def take(pipe: int, text: bytearray, most: int) -> bool:
    """Read available bytes, up to slightly more than ``most``; return True unless the pipe is at its end."""
    while len(text) <= most:
        try:
            read = os.read(pipe, CHUNK)
        except BlockingIOError:
            return True
        text += read
        if not read:
            return False
    return True


def finish(child: int) -> None:
    """Kill the child and its process group."""
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def be_program(codes: tuple[Any, Any], given: dict[str, Any], say: int, print_to: int, limits: dict[str, int]) -> None:
    """Run the preceding code and the program in this process, and write the result to a pipe."""
    before, program = codes
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_seconds"], limits["cpu_seconds"]))
    resource.setrlimit(resource.RLIMIT_AS, (limits["memory_bytes"], limits["memory_bytes"]))
    scope: dict[str, Any] = {"__name__": "program", "__builtins__": builtins}
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # which site brings, and site is not there
    try:
        if given["kind"] == "feed":
            feed(given, print_to)
            scope["__name__"] = "__main__"
            exec(before, scope)
            answer = run_whole(program, scope)
        else:
            name, arguments, keywords = decode(given["call"])
            exec(before, scope)
            scope.pop(name, None)  # preceding code may import the same name; the program must define it itself
            exec(program, scope)
            answer = RETURNED + encode(entry(scope, name)(*arguments, **keywords)).encode()
    except BaseException as error:  # noqa: BLE001  whatever a program raises
        answer = RAISED + words(error).encode("utf-8", "replace")
    write(say, answer)


def run_whole(program: Any, scope: dict[str, Any]) -> bytes:
    """Run a program as Python runs a file, including its threads and exit handlers.

    Raises:
        BaseException: the program raises it.
    """
    try:
        exec(program, scope)
    except SystemExit as error:
        if error.code not in (None, 0):
            raise
    if "threading" in sys.modules:
        threading = sys.modules["threading"]
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
    atexit._run_exitfuncs()
    for printed in (sys.stdout, sys.__stdout__):
        if printed is not None:
            printed.flush()
    return RETURNED


def feed(given: dict[str, Any], print_to: int) -> None:
    """Set up the program's standard input, arguments, files and standard output."""
    for name, text in given["files"].items():
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
    with open(".stdin", "w+b") as file:
        file.write(given["text"].encode("utf-8", "surrogatepass"))
        file.flush()
        file.seek(0)
        os.dup2(file.fileno(), 0)
    os.unlink(".stdin")
    os.dup2(print_to, 1)
    os.close(print_to)
    sys.argv = ["program.py", *given["argv"]]
    streams = [
        io.TextIOWrapper(open(number, mode, closefd=False), encoding="utf-8", errors="replace")
        for number, mode in enumerate(("rb", "wb", "wb"))
    ]
    sys.stdin, sys.stdout, sys.stderr = streams
    sys.__stdout__ = sys.stdout  # type: ignore[misc]


def entry(scope: dict[str, Any], name: str) -> Any:
    """Return the function under test, from the program or from its class ``Solution``.

    Raises:
        NameError: the function is not defined.
    """
    if name in scope:
        return scope[name]
    if "Solution" in scope and hasattr(scope["Solution"], name):
        return getattr(scope["Solution"](), name)
    raise NameError(f"the program defines no {name}")


def words(error: BaseException) -> str:
    """Return the message for an error, with its line in the program."""
    line, trace = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "program.py":
            line = trace.tb_lineno
        trace = trace.tb_next
    try:
        said = str(error.msg if isinstance(error, SyntaxError) else error)
    except BaseException:  # noqa: BLE001  a __str__ of the program's own
        said = ""
    where = f" (line {line})" if line else ""
    return f"{type(error).__name__}: {said[:LONGEST_WORDS]}{where}"


def write(where: int, data: bytes) -> None:
    """Write every byte, even if the pipe accepts only a part at a time."""
    while data:
        data = data[os.write(where, data) :]
