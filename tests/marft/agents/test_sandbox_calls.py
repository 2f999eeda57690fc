"""The filter of calls: what reaches beyond the jail is refused, what Python needs is not."""

from __future__ import annotations

import ctypes
import ctypes.util
import errno
import os
import struct
import subprocess
import sys
from collections.abc import Iterable

import pytest

from marft.agents.sandbox import call_filter
from marft.agents.sandbox.call_filter import ARCHITECTURES, call_numbers
from marft.agents.sandbox.runner import SandboxSettings, isolation_problem, run_python

isolated = pytest.mark.skipif(bool(isolation_problem()), reason=f"no isolation here: {isolation_problem()}")
HERE = os.uname().machine
ALLOWED, KILLED = call_filter.ALLOW, call_filter.KILL
NO_SUCH_CALL = call_filter.RETURN_ERROR + errno.ENOSYS

# number on x86_64, on aarch64 (from the kernel's tables), and arguments with which it would do something
REFUSED = {
    "io_uring_setup": (425, 425, (8, "page")),
    "io_uring_enter": (426, 426, (0, 0, 0, 0, 0, 0)),
    "io_uring_register": (427, 427, (0, 0, 0, 0)),
    "add_key": (248, 217, ("text", "text", "text", 1, -2)),
    "request_key": (249, 218, ("text", "text", 0, -2)),
    "keyctl": (250, 219, (0, -3, 0)),
    "userfaultfd": (323, 282, (1,)),
    "bpf": (321, 280, (0, "page", 64)),
    "perf_event_open": (298, 241, ("page", 0, -1, -1, 0)),
    "memfd_secret": (447, 447, (0,)),
    "memfd_create": (319, 279, ("text", 0)),
    "shmget": (29, 194, (0, 4096, 0o1600)),
    "msgget": (68, 186, (0, 0o1600)),
    "semget": (64, 190, (0, 1, 0o1600)),
    "mq_open": (240, 180, ("text", 0o102, 0o600, 0)),
    "ptrace": (101, 117, (0, 0, 0, 0)),
    "process_vm_readv": (310, 270, (1, "page", 1, "page", 1, 0)),
    "process_vm_writev": (311, 271, (1, "page", 1, "page", 1, 0)),
    "pidfd_getfd": (438, 438, (0, 0, 0)),
    "kcmp": (312, 272, (1, 1, 0, 0, 0)),
    "mount": (165, 40, ("text", "text", "text", 0, 0)),
    "umount2": (166, 39, ("text", 0)),
    "pivot_root": (155, 41, ("text", "text")),
    "chroot": (161, 51, ("text",)),
    "open_tree": (428, 428, (-100, "text", 0)),
    "move_mount": (429, 429, (-100, "text", -100, "text", 0)),
    "fsopen": (430, 430, ("text", 0)),
    "mount_setattr": (442, 442, (-100, "text", 0, "page", 32)),
    "unshare": (272, 97, (0x10000000,)),
    "setns": (308, 268, (0, 0)),
    "clone3": (435, 435, ("page", 88)),
    "seccomp": (317, 277, (1, 0, "page")),
    "setuid": (105, 146, (0,)),
    "setgroups": (116, 159, (0, 0)),
    "capset": (126, 91, ("page", "page")),
    "personality": (135, 92, (0x0040000,)),
    "init_module": (175, 105, ("page", 1, "text")),
    "kexec_load": (246, 104, (0, 0, 0, 0)),
    "reboot": (169, 142, (0, 0, 0, 0)),
    "syslog": (103, 116, (3, "page", 100)),
    "quotactl": (179, 60, (0, "text", 0, "page")),
    "name_to_handle_at": (303, 264, (-100, "text", "page", "page", 0)),
    "open_by_handle_at": (304, 265, (0, "page", 0)),
    "fanotify_init": (300, 262, (0, 0)),
    "inotify_init1": (294, 26, (0,)),
    "io_setup": (206, 0, (8, "page")),
    "vmsplice": (278, 75, (0, "page", 1, 0)),
    "splice": (275, 76, (0, 0, 1, 0, 1, 0)),
    "execveat": (322, 281, (0, "text", 0, 0, 0)),
    "mlockall": (151, 230, (1,)),
    "syncfs": (306, 267, (0,)),
    "clock_settime": (227, 112, (0, "page")),
    "landlock_create_ruleset": (444, 444, (0, 0, 1)),
    "process_madvise": (440, 440, (0, 0, 0, 0, 0)),
}  # fmt: skip

# position, and the only values: what is harmless beyond these is still not needed
ALLOWED_ARGUMENTS = {
    "setsockopt": (2, {2, 16, 20, 21}),  # SO_REUSEADDR, PASSCRED, RCVTIMEO, SNDTIMEO: no larger buffers
    "fcntl": (1, {*range(8), 36, 37, 38, 1030, 1032}),  # no owners, signals, leases, notices, seals, larger pipes
    "ioctl": (1, {0x5401, 0x5413, 0x541B, 0x5421, 0x5450, 0x5451}),  # nothing that sets or types into a terminal
    "prctl": (0, {1, 2, 3, 15, 16, 38, 39}),  # no capabilities, filters, subreapers, memory maps
}


def verdict(machine: str, number: int, *arguments: int, architecture: int | None = None) -> int:
    """What the filter says of a call: the classic BPF machine, as far as seccomp has it."""
    padded = [*arguments, *[0] * (6 - len(arguments))]
    chosen = call_filter.AUDIT_ARCHITECTURES[machine] if architecture is None else architecture
    data = struct.pack("=IIQ6Q", number, chosen, 0, *(a & (1 << 64) - 1 for a in padded))
    program, at, value = call_filter.build_filter(machine), 0, 0
    while True:
        operation, if_so, if_not, operand = struct.unpack_from("=HBBI", program, 8 * at)
        at += 1
        if operation == 0x06:
            return int(operand)
        if operation == 0x20:
            (value,) = struct.unpack_from("=I", data, operand)
            continue
        tests = {0x15: value == operand, 0x35: value >= operand, 0x45: bool(value & operand)}
        at += if_so if tests[operation] else if_not


def in_jail(*lines: str) -> str:
    ran = run_python("\n".join(("import ctypes", "libc = ctypes.CDLL(None, use_errno=True)", *lines)))
    assert ran.outcome == "finished", ran
    return ran.output.strip()


def numbers_of_libseccomp(machine: str, names: Iterable[str]) -> dict[str, int]:
    """The system's own numbers of these calls, where it has them: it may be older than a call."""
    library = ctypes.util.find_library("seccomp")
    if library is None:
        pytest.skip("libseccomp is not here")
    resolve = ctypes.CDLL(library).seccomp_syscall_resolve_name_arch
    resolve.argtypes = [ctypes.c_uint32, ctypes.c_char_p]
    found = {name: int(resolve(call_filter.AUDIT_ARCHITECTURES[machine], name.encode())) for name in names}
    return {name: number for name, number in found.items() if number >= 0}


@pytest.mark.parametrize("machine", ARCHITECTURES)
class TestTheProgram:
    def test_every_call_that_is_not_on_the_list_does_not_exist(self, machine: str) -> None:
        listed = {
            *call_numbers(call_filter.ALLOWED_CALLS, machine).values(),
            *call_numbers(call_filter.CHECKED_CALLS, machine).values(),
            *call_numbers(call_filter.ATTRIBUTE_CALLS, machine).values(),
        }
        for number in [
            *range(600),
            1 << 20,
            call_filter.X32_NUMBERS,
            call_filter.X32_NUMBERS + 1,
            call_filter.X32_NUMBERS + 59,
            (1 << 32) - 1,
        ]:
            if number not in listed:
                assert verdict(machine, number) == NO_SUCH_CALL

    def test_what_is_on_the_list_is_allowed(self, machine: str) -> None:
        for number in call_numbers(call_filter.ALLOWED_CALLS, machine).values():
            assert verdict(machine, number) == ALLOWED
        for number in call_numbers(call_filter.ATTRIBUTE_CALLS, machine).values():
            assert verdict(machine, number) == call_filter.RETURN_ERROR + errno.ENOTSUP

    def test_another_architecture_is_killed(self, machine: str) -> None:
        others = {call_filter.AUDIT_ARCHITECTURES[other] for other in ARCHITECTURES} - {
            call_filter.AUDIT_ARCHITECTURES[machine]
        }
        for other in [*others, 0x40000003, 0x40000028, 0]:  # i386, arm
            assert verdict(machine, call_numbers(call_filter.DATA_CALLS, machine)["read"], architecture=other) == KILLED

    @pytest.mark.parametrize("name", REFUSED)
    def test_what_reaches_beyond_is_not_listed(self, machine: str, name: str) -> None:
        assert verdict(machine, REFUSED[name][ARCHITECTURES.index(machine)]) == NO_SUCH_CALL

    def test_arguments_are_looked_at(self, machine: str) -> None:
        call = call_numbers(call_filter.CHECKED_CALLS, machine)
        for family in range(-1, 50):  # netlink is 16, vsock 40
            wanted = ALLOWED if family == 1 else call_filter.RETURN_ERROR + errno.EAFNOSUPPORT
            assert verdict(machine, call["socket"], family) == wanted
            assert verdict(machine, call["socketpair"], family) == wanted
        for bit in range(64):
            namespace = 1 << bit in (0x20000, *(1 << b for b in range(25, 31)))
            wanted = call_filter.RETURN_ERROR + errno.EPERM if namespace else ALLOWED
            assert verdict(machine, call["clone"], 1 << bit | 17 if bit > 5 else 1 << bit) == wanted
        assert verdict(machine, call["mmap"], 0, 4096, 3, 0x40022) == call_filter.RETURN_ERROR + errno.ENOMEM
        assert verdict(machine, call["mmap"], 0, 4096, 3, 0x22) == ALLOWED
        for command, allowed in ((1, True), (6, True), (1030, True), (1024, False), (1031, False), (8, False)):
            assert (verdict(machine, call["fcntl"], 0, command) == ALLOWED) is allowed
        assert verdict(machine, call["ioctl"], 0, 0x5401) == ALLOWED
        assert (
            verdict(machine, call["ioctl"], 0, 0x5412) == call_filter.RETURN_ERROR + errno.ENOTTY
        )  # pushes keys to a terminal
        assert verdict(machine, call["prctl"], 15) == ALLOWED
        assert (
            verdict(machine, call["prctl"], 35) == call_filter.RETURN_ERROR + errno.EINVAL
        )  # other memory maps for /proc
        assert (
            verdict(machine, call["setsockopt"], 3, 1, 26) == call_filter.RETURN_ERROR + errno.ENOPROTOOPT
        )  # a BPF program
        assert set(call) == set(call_filter.CHECKS)

    @pytest.mark.slow
    @pytest.mark.parametrize("name", ALLOWED_ARGUMENTS)
    def test_every_other_argument_is_refused(self, machine: str, name: str) -> None:
        number = call_numbers(call_filter.CHECKED_CALLS, machine)[name]
        argument, allowed = ALLOWED_ARGUMENTS[name]
        for value in (*range(80), *range(1020, 1045), *range(0x5400, 0x5460), 0x59616D61, 0x53564D41):
            arguments = [0] * argument + [value]
            assert (verdict(machine, number, *arguments) == ALLOWED) is (value in allowed), hex(value)

    def test_calls_of_x32_do_not_exist_whatever_the_list_says(
        self, machine: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        getpid = call_filter.X32_NUMBERS + 39
        monkeypatch.setattr(call_filter, "ALLOWED_CALLS", f"getpid {getpid} {getpid}")
        assert verdict(machine, getpid) == NO_SUCH_CALL

    def test_the_numbers_are_those_of_libseccomp(self, machine: str) -> None:
        ours = {}
        for table in (call_filter.ALLOWED_CALLS, call_filter.CHECKED_CALLS, call_filter.ATTRIBUTE_CALLS):
            ours |= call_numbers(table, machine)
        ours |= {name: both[ARCHITECTURES.index(machine)] for name, both in REFUSED.items()}
        known = numbers_of_libseccomp(machine, ours)
        assert len(known) > len(ours) - 8
        assert {name: ours[name] for name in known} == known


def test_a_machine_whose_calls_are_not_known_is_refused() -> None:
    with pytest.raises(ValueError, match="the calls of riscv64 are not known, only those of x86_64 and aarch64"):
        call_filter.build_filter("riscv64")


@isolated
class TestInTheJail:
    def test_nothing_that_reaches_beyond_exists(self) -> None:
        values = {"page": "ctypes.create_string_buffer(4096)", "text": "b'/tmp'"}
        lines = ["seen = {}"]
        for name, (*both, arguments) in REFUSED.items():
            given = ", ".join(str(values.get(str(a), a)) for a in arguments)
            lines += [
                f"r = libc.syscall({both[ARCHITECTURES.index(HERE)]}, {given})",
                f"seen[{name!r}] = r, ctypes.get_errno()",
            ]
        lines.append("print({name: what for name, what in seen.items() if what != (-1, 38)})")
        assert in_jail(*lines) == "{}"

    @pytest.mark.slow
    @pytest.mark.parametrize("family", ["AF_INET", "AF_INET6", "AF_NETLINK", "AF_VSOCK", "AF_PACKET", "AF_ALG"])
    def test_no_socket_but_those_of_unix(self, family: str) -> None:
        code = f"import socket\ntry:\n    socket.socket(socket.{family}, socket.SOCK_RAW)\nexcept OSError as e:\n    print(e.errno)"
        assert run_python(code).output.strip() == str(errno.EAFNOSUPPORT)
        assert (
            run_python("import socket\na, b = socket.socketpair()\na.send(b'x')\nprint(b.recv(1))").output == "b'x'\n"
        )

    def test_no_audit_messages(self) -> None:
        code = "import socket\nsocket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 9)"
        assert "Address family not supported" in run_python(code).errors

    def test_no_namespace_by_clone(self) -> None:
        number = call_numbers(call_filter.CHECKED_CALLS, HERE)["clone"]
        assert in_jail(f"print(libc.syscall({number}, 0x10000000 | 17, 0, 0, 0, 0), ctypes.get_errno())") == "-1 1"

    def test_no_larger_pipes(self) -> None:
        code = "import fcntl, os\nr, w = os.pipe()\nfcntl.fcntl(w, 1031, 1 << 20)"
        assert "Invalid argument" in run_python(code).errors

    @pytest.mark.skipif(HERE != "x86_64", reason="the door is x86's")
    def test_the_old_door_is_closed(self) -> None:
        lines = (
            "import mmap",
            "page = mmap.mmap(-1, 4096, prot=7)",
            r"page.write(b'\xb8\x14\x00\x00\x00\xcd\x80\xc3')",  # getpid by int 0x80
            "f = ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(page)))",
            "print('still here', flush=True)",
            "print(f())",
        )
        ran = run_python("\n".join(("import ctypes", *lines)))
        assert (ran.outcome, ran.output) == ("killed", "still here\n")

    @pytest.mark.skipif(HERE != "x86_64", reason="x32 is x86's")
    def test_x32_numbers_do_not_exist(self) -> None:
        assert in_jail("print(libc.syscall(0x40000000 + 39), ctypes.get_errno())") == "-1 38"


class TestWithoutNamespaces:
    def test_the_filter_holds_all_the_same(self) -> None:
        ran = run_python("import socket\nsocket.socket()", SandboxSettings(isolation="none"))
        assert "Address family not supported" in ran.errors


@isolated
class TestTheParentsKeys:
    @pytest.mark.slow
    def test_code_neither_reads_nor_overwrites_them(self) -> None:
        """In a process with a session keyring of its own, which holds a key."""
        source = f"""
import ctypes
from marft.agents.sandbox.kernel import KEYCTL, replace_keyring
from marft.agents.sandbox.runner import run_python
add, keyctl = {REFUSED["add_key"][ARCHITECTURES.index(HERE)]}, KEYCTL[{HERE!r}]
libc = ctypes.CDLL(None, use_errno=True)
replace_keyring()
key = libc.syscall(add, b"user", b"marft", b"hush", 4, -3)
print("kept" if key > 0 else "no keys here")
print(run_python('''
import ctypes
libc = ctypes.CDLL(None, use_errno=True)
text = ctypes.create_string_buffer(9)
print(libc.syscall(%d, 11, %d, text, 9), text.value, libc.syscall(%d, b"user", b"marft", b"evil", 4, -3))
''' % (keyctl, key, add)).output.strip())
text = ctypes.create_string_buffer(9)
libc.syscall(keyctl, 11, key, text, 9)
print(text.value)
"""
        told = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
        if told.startswith("no keys"):
            pytest.skip("the kernel keeps no keys here")
        assert told.splitlines() == ["kept", "-1 b'' -1", "b'hush'"]

    def test_the_session_keyring_is_a_new_one(self) -> None:
        source = f"""
import ctypes
from marft.agents.sandbox.kernel import KEYCTL, replace_keyring
libc, keyctl = ctypes.CDLL(None), KEYCTL[{HERE!r}]
replace_keyring()
libc.syscall({REFUSED["add_key"][ARCHITECTURES.index(HERE)]}, b"user", b"marft", b"hush", 4, -3)
find = lambda: libc.syscall(keyctl, 10, -3, b"user", b"marft", 0) > 0
before = find()
replace_keyring()
print(before, find())
"""
        told = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout
        if told.startswith("False"):
            pytest.skip("the kernel keeps no keys here")
        assert told.split() == ["True", "False"]
