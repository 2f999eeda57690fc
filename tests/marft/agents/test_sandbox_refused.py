"""The kernel's calls that code never gets, by what they would do: whoever allows one changes this table too."""

from __future__ import annotations

import pytest

from marft.agents.sandbox import call_filter
from marft.agents.sandbox.call_filter import ARCHITECTURES, call_numbers
from tests.marft.agents.test_sandbox_calls import numbers_of_libseccomp

# as in calls.py: a name, its number on x86_64 and on aarch64
NEVER = {
    "memory of no process and no file": """
        shmget 29 194, shmat 30 196, shmctl 31 195, shmdt 67 197, semget 64 190, semop 65 193, semctl 66 191,
        semtimedop 220 192, msgget 68 186, msgsnd 69 189, msgrcv 70 188, msgctl 71 187, mq_open 240 180,
        mq_unlink 241 181, mq_timedsend 242 182, mq_timedreceive 243 183, mq_notify 244 184, mq_getsetattr 245 185,
        memfd_create 319 279, memfd_secret 447 447, mlock 149 228, mlock2 325 284, mlockall 151 230,
        map_shadow_stack 453 453
    """,
    "other processes": """
        ptrace 101 117, process_vm_readv 310 270, process_vm_writev 311 271, kcmp 312 272, pidfd_getfd 438 438,
        process_madvise 440 440, process_mrelease 448 448, rt_tgsigqueueinfo 297 240
    """,
    "another identity": """
        setuid 105 146, setgid 106 144, setreuid 113 145, setregid 114 143, setgroups 116 159, setresuid 117 147,
        setresgid 119 149, setfsuid 122 151, setfsgid 123 152, capset 126 91, personality 135 92, seccomp 317 277,
        landlock_create_ruleset 444 444, landlock_add_rule 445 445, landlock_restrict_self 446 446
    """,
    "namespaces and mounts": """
        unshare 272 97, setns 308 268, clone3 435 435, mount 165 40, umount2 166 39, pivot_root 155 41, chroot 161 51,
        open_tree 428 428, move_mount 429 429, fsopen 430 430, fsconfig 431 431, fsmount 432 432, fspick 433 433,
        mount_setattr 442 442, open_tree_attr 467 467, statmount 457 457, listmount 458 458, sethostname 170 161,
        setdomainname 171 162, name_to_handle_at 303 264, open_by_handle_at 304 265, execveat 322 281
    """,
    "keys": "add_key 248 217, request_key 249 218, keyctl 250 219",
    "other ways of calling": """
        io_uring_setup 425 425, io_uring_enter 426 426, io_uring_register 427 427, io_setup 206 0, io_destroy 207 1,
        io_submit 209 2, io_cancel 210 3, io_getevents 208 4, io_pgetevents 333 292, bpf 321 280,
        userfaultfd 323 282, perf_event_open 298 241, uselib 134 -, _sysctl 156 -, modify_ldt 154 -
    """,
    "what goes on outside": """
        syslog 103 116, lookup_dcookie 212 18, fanotify_init 300 262, fanotify_mark 301 263, inotify_init 253 -,
        inotify_init1 294 26, inotify_add_watch 254 27, sysfs 139 -, ustat 136 -, mincore 27 232, cachestat 451 451
    """,
    "the machine": """
        reboot 169 142, kexec_load 246 104, kexec_file_load 320 294, init_module 175 105, finit_module 313 273,
        delete_module 176 106, iopl 172 -, ioperm 173 -, swapon 167 224, swapoff 168 225, acct 163 89, vhangup 153 58,
        quotactl 179 60, quotactl_fd 443 443, nfsservctl 180 42, sync 162 81, syncfs 306 267, settimeofday 164 170,
        clock_settime 227 112, adjtimex 159 171, clock_adjtime 305 266
    """,
    "where and before whom it runs": """
        sched_setscheduler 144 119, sched_setparam 142 118, sched_setattr 314 274, ioprio_set 251 30, mbind 237 235,
        set_mempolicy 238 237, set_mempolicy_home_node 450 450, migrate_pages 256 238, move_pages 279 239
    """,
    "pages that are passed on": "splice 275 76, tee 276 77, vmsplice 278 75, remap_file_pages 216 234",
}


@pytest.mark.parametrize("machine", ARCHITECTURES)
class TestEachMachine:
    @pytest.mark.parametrize("what", NEVER)
    def test_no_call_that_reaches_beyond_is_on_a_list(self, machine: str, what: str) -> None:
        never = call_numbers(NEVER[what], machine)
        for table in (call_filter.ALLOWED_CALLS, call_filter.CHECKED_CALLS, call_filter.ATTRIBUTE_CALLS):
            listed = call_numbers(table, machine)
            assert not set(never) & set(listed)
            assert not set(never.values()) & set(listed.values())

    def test_the_numbers_are_those_of_libseccomp(self, machine: str) -> None:
        ours = {name: number for table in NEVER.values() for name, number in call_numbers(table, machine).items()}
        known = numbers_of_libseccomp(machine, ours)
        assert len(known) > len(ours) - 16
        assert {name: ours[name] for name in known} == known
