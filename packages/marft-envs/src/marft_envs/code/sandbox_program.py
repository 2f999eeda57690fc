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

from marft_envs.code.plain_values import decode, encode

REQUEST_FILE = "order.json"
CHUNK_BYTES = 65536
MAX_MESSAGE = 400  # maximum characters of an error message
MAX_MESSAGE_BYTES = 4096  # maximum bytes of the message in a record
MAX_TIMEOUTS = 2  # maximum timeouts of a program; later inputs are not run
WALL_PER_CPU = 3.0  # wall-clock seconds per CPU second: other processes compete for the CPU
RETURNED, RAISED = b"=", b"!"
ANNOTATIONS_FLAG = __future__.annotations.compiler_flag


def main() -> None:
    """Read the order and write a record for each program and input."""
    with open(REQUEST_FILE, encoding="utf-8") as file:
        request = json.load(file)
    os.unlink(REQUEST_FILE)
    output_fd = os.dup(1)
    null_fd = os.open("/dev/null", os.O_RDWR)
    for number in range(3):
        os.dup2(null_fd, number)
    for module in request["modules"]:  # forked children inherit these imports
        with contextlib.suppress(ImportError):
            __import__(module)
    deadline = time.monotonic() + request["seconds"]
    before = compile_program(request["before"])
    for place, source in enumerate(request["programs"]):
        program, timeouts = before if isinstance(before, str) else compile_program(source, before.co_flags), 0
        for index, program_input in enumerate(request["inputs"]):
            if isinstance(program, str):
                outcome = ("raised", program, b"")
            elif timeouts == MAX_TIMEOUTS or time.monotonic() > deadline:
                outcome = ("not_run", "", b"")
            else:
                outcome = run_program((before, program), program_input, request, output_fd, deadline)
                timeouts += outcome[0] == "timed_out"
            write_all(output_fd, format_record(f"{request['nonce']} {place} {index}", *outcome))


def format_record(header: str, status: str, message: str, output: bytes) -> bytes:
    """Format a record: ``nonce program input how length length`` on its own line, then two texts.

    The lengths are in bytes. The texts are the message about the ending, and the output. A reader can extract them
    without parsing.
    """
    words = message.encode("utf-8", "replace")[:MAX_MESSAGE_BYTES]
    return f"\n{header} {status} {len(words)} {len(output)}\n".encode() + words + output


def compile_program(source: str, flags: int = 0) -> Any:
    """Compile a program; return the code, or an error message.

    Args:
        source: source of the program.
        flags: compiler flags of the code before it, which may postpone the evaluation of annotations.
    """
    try:
        return compile(source, "program.py", "exec", flags & ANNOTATIONS_FLAG, dont_inherit=True)
    except (SyntaxError, ValueError, MemoryError, RecursionError, OverflowError) as error:
        return error_message(error)


def run_program(
    codes: tuple[Any, Any], program_input: dict[str, Any], request: dict[str, Any], output_fd: int, deadline: float
) -> tuple[str, str, bytes]:
    """Run a program on an input in a child process; return its ending, message and output."""
    message_read, message_write = os.pipe()
    output_read, output_write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(output_fd)
        os.close(message_read)
        os.close(output_read)
        exit_process = os._exit
        limits = {name: request[name] for name in ("cpu_seconds", "memory_bytes")}
        for secret in (
            request["inputs"],
            request["programs"],
            request,
        ):  # a program could find these in its parent frames
            secret.clear()
        try:
            run_as_child(codes, program_input, message_write, output_write, limits)
            exit_process(0)
        finally:
            exit_process(1)
    os.close(message_write)
    os.close(output_write)
    end = min(deadline, time.monotonic() + WALL_PER_CPU * request["cpu_seconds"])
    ending, texts = read_pipes(child, (message_read, output_read), end, request["output_bytes"])
    kill_child(child)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    for pipe in (message_read, output_read):
        os.close(pipe)
    message, output = texts
    if ending:
        return ending, "", b""
    # an empty message means that the program exited on its own
    if status == 0 and program_input["kind"] == "feed" and message in (RETURNED, b""):
        return "returned", "", output
    if status == 0 and program_input["kind"] == "call" and message.startswith(RETURNED):
        return "returned", "", message[1:]
    if message.startswith(RAISED):
        return "raised", message[1:].decode("utf-8", "replace")[:MAX_MESSAGE], b""
    if status == -signal.SIGKILL or status == -signal.SIGXCPU:
        return "timed_out", "", b""
    return "died", f"exit status {status}", b""


def read_pipes(child: int, pipes: tuple[int, int], end: float, limit: int) -> tuple[str, list[bytes]]:
    """Read both pipes until the child exits; return the reason for stopping it, or "", and the bytes read."""
    child_fd = os.pidfd_open(child)
    texts = {pipe: bytearray() for pipe in pipes}
    poller = select.poll()
    for number in (child_fd, *pipes):
        os.set_blocking(number, False)
        poller.register(number, select.POLLIN)
    ending, ended = "", False
    while not ending and not ended:
        ready = {number for number, _ in poller.poll(max(0.0, 1000 * (end - time.monotonic())))}
        ended = child_fd in ready  # bytes written before the exit are still in the pipes
        for pipe in ready - {child_fd}:
            if not read_available(pipe, texts[pipe], limit):
                poller.unregister(pipe)
        if any(len(text) > limit for text in texts.values()):
            ending = "too_much_output"
        elif not ended and time.monotonic() >= end:
            ending = "timed_out"
    os.close(child_fd)
    return ending, [bytes(text) for text in texts.values()]


def read_available(pipe: int, text: bytearray, limit: int) -> bool:
    """Read available bytes, up to slightly more than ``limit``; return True unless the pipe is at its end."""
    while len(text) <= limit:
        try:
            data = os.read(pipe, CHUNK_BYTES)
        except BlockingIOError:
            return True
        text += data
        if not data:
            return False
    return True


def kill_child(child: int) -> None:
    """Kill the child and its process group."""
    for kill in (os.killpg, os.kill):
        try:
            kill(child, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            pass


def run_as_child(
    codes: tuple[Any, Any], program_input: dict[str, Any], message_write: int, output_write: int, limits: dict[str, int]
) -> None:
    """Run the preceding code and the program in this process, and write the result to a pipe."""
    before, program = codes
    os.setsid()
    resource.setrlimit(resource.RLIMIT_CPU, (limits["cpu_seconds"], limits["cpu_seconds"]))
    resource.setrlimit(resource.RLIMIT_AS, (limits["memory_bytes"], limits["memory_bytes"]))
    scope: dict[str, Any] = {"__name__": "program", "__builtins__": builtins}
    builtins.exit = builtins.quit = sys.exit  # type: ignore[assignment]  # which site brings, and site is not there
    try:
        if program_input["kind"] == "feed":
            set_up_input(program_input, output_write)
            scope["__name__"] = "__main__"
            exec(before, scope)
            answer = run_script(program, scope)
        else:
            name, arguments, keywords = decode(program_input["call"])
            exec(before, scope)
            scope.pop(name, None)  # preceding code may import the same name; the program must define it itself
            exec(program, scope)
            answer = RETURNED + encode(find_entry(scope, name)(*arguments, **keywords)).encode()
    except BaseException as error:  # noqa: BLE001  whatever a program raises
        answer = RAISED + error_message(error).encode("utf-8", "replace")
    write_all(message_write, answer)


def run_script(program: Any, scope: dict[str, Any]) -> bytes:
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
    for stream in (sys.stdout, sys.__stdout__):
        if stream is not None:
            stream.flush()
    return RETURNED


def set_up_input(program_input: dict[str, Any], output_write: int) -> None:
    """Set up the program's standard input, arguments, files and standard output."""
    for name, text in program_input["files"].items():
        with open(name, "w", encoding="utf-8") as file:
            file.write(text)
    with open(".stdin", "w+b") as file:
        file.write(program_input["text"].encode("utf-8", "surrogatepass"))
        file.flush()
        file.seek(0)
        os.dup2(file.fileno(), 0)
    os.unlink(".stdin")
    os.dup2(output_write, 1)
    os.close(output_write)
    sys.argv = ["program.py", *program_input["argv"]]
    streams = [
        io.TextIOWrapper(open(number, mode, closefd=False), encoding="utf-8", errors="replace")
        for number, mode in enumerate(("rb", "wb", "wb"))
    ]
    sys.stdin, sys.stdout, sys.stderr = streams
    sys.__stdout__ = sys.stdout  # type: ignore[misc]


def find_entry(scope: dict[str, Any], name: str) -> Any:
    """Return the function under test, from the program or from its class ``Solution``.

    Raises:
        NameError: the function is not defined.
    """
    if name in scope:
        return scope[name]
    if "Solution" in scope and hasattr(scope["Solution"], name):
        return getattr(scope["Solution"](), name)
    raise NameError(f"the program defines no {name}")


def error_message(error: BaseException) -> str:
    """Return the message for an error, with its line in the program."""
    line, trace = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else None, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "program.py":
            line = trace.tb_lineno
        trace = trace.tb_next
    try:
        text = str(error.msg if isinstance(error, SyntaxError) else error)
    except BaseException:  # noqa: BLE001  a __str__ of the program's own
        text = ""
    location = f" (line {line})" if line else ""
    return f"{type(error).__name__}: {text[:MAX_MESSAGE]}{location}"


def write_all(descriptor: int, data: bytes) -> None:
    """Write every byte, even if the pipe accepts only a part at a time."""
    while data:
        data = data[os.write(descriptor, data) :]
