"""The jail's program, run as a process of its own with the standard library only.

Three processes take part. The first, the keeper, creates namespaces (users, processes, network, IPC, names) and
watches the others. It ends all processes when the code has ended, on SIGTERM, and when the requesting process is
gone. The second is the init process of the new process namespace, so that all others end with it. It moves to
mounts and a root folder of its own. The third drops every capability, sets its limits and the filter, and runs the
code.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

# the folder that contains the marft package
sys.path.append(os.path.abspath(__file__).rpartition(f"{os.sep}marft{os.sep}")[0])

from marft.agents.sandbox import group, kernel, memory_monitor, root
from marft.agents.sandbox.execute import HOST_NOBODY_UID, NOBODY_UID, execute

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Order = dict[str, Any]

ISOLATION_FAILED = 97
READY = b"g"


def main() -> None:
    """Read the order from standard input, run it, and exit with its status."""
    for number in (signal.SIGTERM, signal.SIGCHLD):  # the parent may ignore these signals, and children inherit that
        signal.signal(number, signal.SIG_DFL)
    kernel.prctl(kernel.PARENT_DEATH_SIGNAL, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):  # the parent had exited before we asked for the signal
        return
    order = json.load(sys.stdin)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    try:
        memory_monitor.check_support()
        kernel.replace_keyring()
        status = (run_limited if order["limits"]["isolation"] == "none" else run_isolated)(order)
    except OSError as error:
        status = report_failure(error)
    sys.exit(status)


def run_limited(order: Order) -> int:
    """Run the code with resource limits only, in a temporary folder, and return the exit status."""
    import shutil  # these imports take a tenth of a jail's start, and only this mode needs them
    import tempfile

    kernel.prctl(kernel.ADOPT_ORPHANS, 1)
    folder = tempfile.mkdtemp(prefix="marft-jail-", dir=order["temporary"])
    try:
        return wait_for(fork(lambda: execute(order, folder)), order["limits"]["memory_mb"])
    finally:
        kill_all()
        shutil.rmtree(folder, ignore_errors=True)


def run_isolated(order: Order) -> int:
    """Run the code in namespaces of its own, and return the exit status."""
    group_folder = group.create_group(order["group"], order["limits"]["memory_mb"]) if order["group"] else ""
    try:
        enter_namespaces()
        return run_init_process(order, group_folder)
    finally:
        kill_all()
        group.remove(group_folder)


def run_init_process(order: Order, group_folder: str) -> int:
    """Start the init process, enforce its memory limit, wait for it, and return the exit status."""
    start_reader, start_writer = os.pipe()  # only this process holds the writing end
    ready_reader, ready_writer = os.pipe()
    folder = order["folder"]

    def run_as_init() -> None:
        """Act as the init process."""
        kernel.prctl(kernel.PARENT_DEATH_SIGNAL, signal.SIGKILL)
        for pipe in (start_writer, ready_reader):
            os.close(pipe)
        if os.read(start_reader, 1) != READY:  # the keeper had exited before we asked for the signal
            return
        write_text("/proc/sys/user/max_user_namespaces", "0")
        kernel.unshare(kernel.NEW_MOUNT_NAMESPACE)
        root.build_root(folder, order["needs"], order["limits"]["disk_mb"], order["limits"]["max_files"])
        os.write(ready_writer, READY)
        run_init(fork(lambda: execute(order, folder)))

    init_pid = fork(run_as_init)
    for pipe in (start_reader, ready_writer):
        os.close(pipe)
    joined = group.join_group(group_folder, init_pid)
    os.write(start_writer, READY)
    if joined or os.read(ready_reader, 1) != READY:
        return wait_for(init_pid)
    return wait_for(init_pid, order["limits"]["memory_mb"], os.open(f"/proc/{init_pid}/root{folder}", os.O_RDONLY))


def run_init(child: int) -> None:
    """Act like init: reap orphans, and exit with the code's status to end the remaining processes."""
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(exit_status(status))


def wait_for(child: int, limit_mb: int | None = None, space: int | None = None) -> int:
    """Wait until the child ends, SIGTERM arrives, or memory exceeds its limit, and return the exit status."""
    while True:
        signal_info = signal.sigtimedwait({signal.SIGTERM, signal.SIGCHLD}, memory_monitor.INTERVAL_SECONDS)
        if signal_info and signal_info.si_signo == signal.SIGTERM:
            return 128 + signal.SIGTERM
        while (finished := reap_child()) is not None:
            if finished[0] == child:
                return exit_status(finished[1])
        if limit_mb is not None and (used := memory_monitor.memory_over_limit(os.getpid(), space, limit_mb << 20)):
            print(f"killed: {used >> 20} MB of memory in use, where {limit_mb} MB are allowed", file=sys.stderr)
            return 128 + signal.SIGKILL


def reap_child() -> tuple[int, int] | None:
    """Return the process id and status of an ended child, or None."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def kill_all() -> None:
    """Kill descendants until the last ends. Orphans become our children, or end with the init process."""
    while True:
        for pid in memory_monitor.find_descendants(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def fork(child_main: Callable[[], None]) -> int:
    """Fork a child that runs ``child_main`` and never returns; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        child_main()
    except OSError as error:
        report_failure(error)
    finally:
        os._exit(ISOLATION_FAILED)


def enter_namespaces() -> None:
    """Enter new namespaces. Inside, uid 0 is our user; if permitted, a second uid maps to nobody."""
    user, group_of_user = os.getuid(), os.getgid()
    try:
        os.setgroups([])
    except PermissionError:  # only root may do this, and in the namespace no process may
        pass
    reader, writer = os.pipe()
    me = os.getpid()

    def map_users() -> None:  # from outside, where other users can be mapped if permitted
        """Write the user and group maps."""
        os.close(writer)
        os.read(reader, 1)
        write_text(f"/proc/{me}/setgroups", "deny")
        for which, number in (("uid", user), ("gid", group_of_user)):
            try:
                write_text(f"/proc/{me}/{which}_map", f"0 {number} 1\n{NOBODY_UID} {HOST_NOBODY_UID} 1\n")
            except OSError:  # not permitted: map only our own user
                write_text(f"/proc/{me}/{which}_map", f"0 {number} 1\n")
        os._exit(0)

    mapper = fork(map_users)
    os.close(reader)
    kernel.unshare(
        kernel.NEW_USER_NAMESPACE
        | kernel.NEW_PID_NAMESPACE
        | kernel.NEW_NETWORK_NAMESPACE
        | kernel.NEW_IPC_NAMESPACE
        | kernel.NEW_HOSTNAME_NAMESPACE
    )
    os.write(writer, READY)
    os.close(writer)
    if os.waitpid(mapper, 0)[1] != 0:
        raise OSError(0, "users cannot be mapped", "namespaces")


def write_text(path: str, text: str) -> None:
    """Write a text to a file."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def report_failure(error: OSError) -> int:
    """Print why the jail failed, and return its exit status."""
    print(f"{error.filename or 'jail'}: {error.strerror}", file=sys.stderr, flush=True)
    return ISOLATION_FAILED


def exit_status(status: int) -> int:
    """Return the exit status as a shell reports it: 128 + signal for a killed process."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


if __name__ == "__main__":
    main()
