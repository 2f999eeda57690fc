"""The jail, from the inside: run as a program of its own, with nothing but the standard library.

Three processes. The first keeps the jail: it makes namespaces (users, processes, network, IPC, names), watches, and
ends everything when the code has ended, when it is told to (SIGTERM), and when the process that asked for it is gone.
The second is the first one of the new process namespace, so that all others end with it: it moves to mounts and a root
folder of its own. The third gives up every capability, takes on its limits and the filter, and runs the code.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import TYPE_CHECKING

sys.path.append(os.path.abspath(__file__).rpartition(f"{os.sep}marft{os.sep}")[0])  # where marft is

from marft.agents.sandbox import group, kernel, root, watch
from marft.agents.sandbox.execute import INSIDE, NOBODY, execute

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Order = dict[str, Any]

ISOLATION_FAILED = 97
GO = b"g"


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGCHLD):  # the parent may ignore them, which is inherited
        signal.signal(number, signal.SIG_DFL)
    kernel.prctl(kernel.DIE_WITH_PARENT, signal.SIGTERM)
    if os.getppid() != int(sys.argv[1]):  # it had gone before we asked
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
    """Run the code with its limits alone, in a folder of the machine → exit status."""
    import shutil  # a tenth of a jail's start, and no other needs them
    import tempfile

    kernel.prctl(kernel.ADOPT_ORPHANS, 1)
    folder = tempfile.mkdtemp(prefix="marft-jail-", dir=order["temporary"])
    try:
        return wait_for(fork(lambda: execute(order, folder)), order["limits"]["memory_mb"])
    finally:
        end_all()
        shutil.rmtree(folder, ignore_errors=True)


def keep_isolated(order: Order) -> int:
    """Run the code in namespaces of its own → exit status."""
    own = group.make(order["group"], order["limits"]["memory_mb"]) if order["group"] else ""
    try:
        enter_namespaces()
        return keep_first(order, own)
    finally:
        end_all()
        group.remove(own)


def keep_first(order: Order, own: str) -> int:
    """Start the first process, hold it to its limit of memory, and wait for it → exit status."""
    tied, tie = os.pipe()  # nobody but us holds the writing end
    built, tell = os.pipe()
    folder = order["folder"]

    def become_first() -> None:
        kernel.prctl(kernel.DIE_WITH_PARENT, signal.SIGKILL)
        for pipe in (tie, built):
            os.close(pipe)
        if os.read(tied, 1) != GO:  # the keeper had gone before we asked
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
    """Be the parent of all that lose theirs; end with the code, and everything with us."""
    while True:
        pid, status = os.wait()
        if pid == child:
            os._exit(status_of(status))


def wait_for(child: int, limit_mb: int | None = None, space: int | None = None) -> int:
    """Wait until it ends, we are told to end it, or all together use too much memory → exit status."""
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
    """A child that has ended, and its status."""
    try:
        pid, status = os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return None
    return (pid, status) if pid else None


def end_all() -> None:
    """Kill what is left, until nothing is: the children of whatever dies become ours, or die with the first process."""
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
    """A child that becomes something else, and never returns."""
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
    """New namespaces; inside, uid 0 is who we are, and where we may, another one is nobody."""
    user, group_of_user = os.getuid(), os.getgid()
    try:
        os.setgroups([])
    except PermissionError:  # only root may, and in the namespace nobody may
        pass
    told, tell = os.pipe()
    me = os.getpid()

    def map_users() -> None:  # from outside, where one may map other users than oneself
        os.close(tell)
        os.read(told, 1)
        write(f"/proc/{me}/setgroups", "deny")
        for which, number in (("uid", user), ("gid", group_of_user)):
            try:
                write(f"/proc/{me}/{which}_map", f"0 {number} 1\n{INSIDE} {NOBODY} 1\n")
            except OSError:  # only oneself
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
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def failed(error: OSError) -> int:
    """Say why there is no jail → exit status."""
    print(f"{error.filename or 'jail'}: {error.strerror}", file=sys.stderr, flush=True)
    return ISOLATION_FAILED


def status_of(status: int) -> int:
    """As a shell has it: 128 + signal for what was killed."""
    return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


if __name__ == "__main__":
    main()
