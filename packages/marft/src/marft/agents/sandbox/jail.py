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

from marft.agents.sandbox import group, kernel, root, watch
from marft.agents.sandbox.execute import INSIDE, NOBODY, execute

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Order = dict[str, Any]

ISOLATION_FAILED = 97
GO = b"g"


def main() -> None:
    """Read the order from standard input, run it, and exit with its status."""
    for number in (signal.SIGTERM, signal.SIGCHLD):  # the parent may ignore these signals, and children inherit that
        signal.signal(number, signal.SIG_DFL)
    kernel.prctl(kernel.DIE_WITH_PARENT, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):  # the parent had exited before we asked for the signal
        return
    order = json.load(sys.stdin)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGCHLD})
    try:
        watch.require()
        kernel.new_session_keyring()
        status = (keep_limited if order["limits"]["isolation"] == "none" else keep_isolated)(order)
    except OSError as error:
        status = failed(error)
    sys.exit(status)


def keep_limited(order: Order) -> int:
    """Run the code with resource limits only, in a temporary folder, and return the exit status."""
    import shutil  # these imports take a tenth of a jail's start, and only this mode needs them
    import tempfile

    kernel.prctl(kernel.ADOPT_ORPHANS, 1)
    folder = tempfile.mkdtemp(prefix="marft-jail-", dir=order["temporary"])
    try:
        return wait_for(fork(lambda: execute(order, folder)), order["limits"]["memory_mb"])
    finally:
        end_all()
        shutil.rmtree(folder, ignore_errors=True)


def keep_isolated(order: Order) -> int:
    """Run the code in namespaces of its own, and return the exit status."""
    own = group.make(order["group"], order["limits"]["memory_mb"]) if order["group"] else ""
    try:
        enter_namespaces()
        return keep_first(order, own)
    finally:
        end_all()
        group.remove(own)


def keep_first(order: Order, own: str) -> int:
    """Start the init process, enforce its memory limit, wait for it, and return the exit status."""
    tied, tie = os.pipe()  # only this process holds the writing end
    built, tell = os.pipe()
    folder = order["folder"]

    def become_first() -> None:
        """Act as the init process."""
        kernel.prctl(kernel.DIE_WITH_PARENT, signal.SIGKILL)
        for pipe in (tie, built):
            os.close(pipe)
        if os.read(tied, 1) != GO:  # the keeper had exited before we asked for the signal
            return
        write("/proc/sys/user/max_user_namespaces", "0")
        kernel.unshare(kernel.NEW_MOUNTS)
        root.build(folder, order["needs"], order["limits"]["disk_mb"], order["limits"]["files"])
        os.write(tell, GO)
        be_first(fork(lambda: execute(order, folder)))

    first = fork(become_first)
    for pipe in (tied, tell):
        os.close(pipe)
    joined = group.join(own, first)
    os.write(tie, GO)
    if joined or os.read(built, 1) != GO:
        return wait_for(first)
    return wait_for(first, order["limits"]["memory_mb"], os.open(f"/proc/{first}/root{folder}", os.O_RDONLY))


def be_first(child: int) -> None:
    """Act like init: reap orphans, and exit with the code's status to end the remaining processes."""
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(status_of(status))


def wait_for(child: int, limit_mb: int | None = None, space: int | None = None) -> int:
    """Wait until the child ends, SIGTERM arrives, or memory exceeds its limit, and return the exit status."""
    while True:
        told = signal.sigtimedwait({signal.SIGTERM, signal.SIGCHLD}, watch.SECONDS)
        if told and told.si_signo == signal.SIGTERM:
            return 128 + signal.SIGTERM
        while (ended := reap()) is not None:
            if ended[0] == child:
                return status_of(ended[1])
        if limit_mb is not None and (used := watch.too_much(os.getpid(), space, limit_mb << 20)):
            print(f"killed: {used >> 20} MB of memory in use, where {limit_mb} MB are allowed", file=sys.stderr)
            return 128 + signal.SIGKILL


def reap() -> tuple[int, int] | None:
    """Return the process id and status of an ended child, or None."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def end_all() -> None:
    """Kill descendants until the last ends. Orphans become our children, or end with the init process."""
    while True:
        for pid in watch.below(os.getpid()):
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def fork(become: Callable[[], None]) -> int:
    """Fork a child that runs ``become`` and never returns; return its process id."""
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        become()
    except OSError as error:
        failed(error)
    finally:
        os._exit(ISOLATION_FAILED)


def enter_namespaces() -> None:
    """Enter new namespaces. Inside, uid 0 is our user; if permitted, a second uid maps to nobody."""
    user, group_of_user = os.getuid(), os.getgid()
    try:
        os.setgroups([])
    except PermissionError:  # only root may do this, and in the namespace no process may
        pass
    told, tell = os.pipe()
    me = os.getpid()

    def map_users() -> None:  # from outside, where other users can be mapped if permitted
        """Write the user and group maps."""
        os.close(tell)
        os.read(told, 1)
        write(f"/proc/{me}/setgroups", "deny")
        for which, number in (("uid", user), ("gid", group_of_user)):
            try:
                write(f"/proc/{me}/{which}_map", f"0 {number} 1\n{INSIDE} {NOBODY} 1\n")
            except OSError:  # not permitted: map only our own user
                write(f"/proc/{me}/{which}_map", f"0 {number} 1\n")
        os._exit(0)

    mapper = fork(map_users)
    os.close(told)
    kernel.unshare(kernel.NEW_USERS | kernel.NEW_PROCESSES | kernel.NEW_NETWORK | kernel.NEW_IPC | kernel.NEW_NAMES)
    os.write(tell, GO)
    os.close(tell)
    if os.waitpid(mapper, 0)[1] != 0:
        raise OSError(0, "users cannot be mapped", "namespaces")


def write(path: str, text: str) -> None:
    """Write a text to a file."""
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def failed(error: OSError) -> int:
    """Print why the jail failed, and return its exit status."""
    print(f"{error.filename or 'jail'}: {error.strerror}", file=sys.stderr, flush=True)
    return ISOLATION_FAILED


def status_of(status: int) -> int:
    """Return the exit status as a shell reports it: 128 + signal for a killed process."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


if __name__ == "__main__":
    main()
