"""The system call filter of every sandbox: a deny list, written out as BPF for x86_64 and aarch64.

Namespaces and the dropped capabilities already refuse most of what is denied here; the filter takes away the kernel
surface that needs neither (io_uring, bpf, keyrings, userfaultfd, user namespaces), which is where kernel exploits
start. `deny_list` gives the bytes that `sandbox.py` hands to bubblewrap. Another machine's calls, i386 and x32
included, kill the process: their numbers mean other calls, so no filter of ours would hold.
"""

from __future__ import annotations

import errno
import struct
from dataclasses import dataclass

# Classic BPF operations, linux/filter.h.
_LOAD = 0x20
_JUMP_EQUAL = 0x15
_JUMP_AT_LEAST = 0x35
_JUMP_ANY_BIT = 0x45
_RETURN = 0x06

# Offsets in struct seccomp_data; both machines are little-endian, so an argument's low half comes first.
_NUMBER = 0
_MACHINE = 4
_ARGUMENT_0 = 16
_ARGUMENT_1 = 24

_ALLOW = 0x7FFF0000
_KILL_PROCESS = 0x80000000
_ERRNO = 0x00050000
_X32_BIT = 0x40000000

_NEW_NAMESPACES = 0x7E020000
"""CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID and NEWNET, or-ed."""
_SOCKET_FAMILIES = (1, 2, 10, 16)
"""AF_UNIX, AF_INET, AF_INET6, and AF_NETLINK, which glibc's getaddrinfo opens."""
_TERMINAL_INJECTIONS = (0x5412, 0x541C)
"""TIOCSTI and TIOCLINUX: typing into the terminal that started the server."""

# name: (x86_64, aarch64); None where the machine has no such call.
DENIED: dict[str, tuple[int | None, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "request_key": (249, 218),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "uselib": (134, None),
    "userfaultfd": (323, 282),
    "vhangup": (153, 58),
    "vmsplice": (278, 75),
}


@dataclass(frozen=True)
class _Machine:
    audit: int
    column: int
    clone: int
    clone3: int
    socket: int
    socketpair: int
    ioctl: int


_MACHINES = {
    "x86_64": _Machine(audit=0xC000003E, column=0, clone=56, clone3=435, socket=41, socketpair=53, ioctl=16),
    "aarch64": _Machine(audit=0xC00000B7, column=1, clone=220, clone3=435, socket=198, socketpair=199, ioctl=29),
}


class UnsupportedMachineError(Exception):
    """There is no filter for this machine, and none that is a guess."""


def deny_list(machine: str) -> bytes:
    """The filter for `machine` (`platform.machine()`), as the array of `struct sock_filter` that bubblewrap reads."""
    known = _MACHINES.get(machine)
    if known is None:
        raise UnsupportedMachineError(
            f"there is no system call filter for {machine!r} machines: run workers on {' or '.join(_MACHINES)}"
        )
    program = [
        (_LOAD, 0, 0, _MACHINE),
        (_JUMP_EQUAL, 1, 0, known.audit),
        _answer(_KILL_PROCESS),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if machine == "x86_64":
        program += [(_JUMP_AT_LEAST, 0, 1, _X32_BIT), _answer(_KILL_PROCESS)]
    for numbers in DENIED.values():
        number = numbers[known.column]
        if number is not None:
            # Two words a call instead of a jump to a shared answer: distances are one byte, and the list may grow.
            program += [(_JUMP_EQUAL, 0, 1, number), _refuse(errno.EPERM)]
    program += _argument_rules(known)
    program.append(_answer(_ALLOW))
    return b"".join(struct.pack("<HBBI", *word) for word in program)


def _argument_rules(machine: _Machine) -> list[tuple[int, int, int, int]]:
    """Rules that look at an argument; each block ends in an answer, and is jumped over by other calls."""
    # clone3 keeps its flags in memory, where a filter cannot look; libraries fall back to clone when it is missing.
    rules = [(_JUMP_EQUAL, 0, 1, machine.clone3), _refuse(errno.ENOSYS)]
    rules += _block(
        machine.clone, _ARGUMENT_0, [(_JUMP_ANY_BIT, 0, 1, _NEW_NAMESPACES), _refuse(errno.EPERM), _answer(_ALLOW)]
    )
    families = [(_JUMP_EQUAL, 0, 1, family) for family in _SOCKET_FAMILIES]
    for number in (machine.socket, machine.socketpair):
        body = [word for family in families for word in (family, _answer(_ALLOW))]
        rules += _block(number, _ARGUMENT_0, [*body, _refuse(errno.EAFNOSUPPORT)])
    requests = [(_JUMP_EQUAL, 0, 1, request) for request in _TERMINAL_INJECTIONS]
    body = [word for request in requests for word in (request, _refuse(errno.EPERM))]
    return rules + _block(machine.ioctl, _ARGUMENT_1, [*body, _answer(_ALLOW)])


def _block(number: int, argument_offset: int, body: list[tuple[int, int, int, int]]) -> list[tuple[int, int, int, int]]:
    load = (_LOAD, 0, 0, argument_offset)
    return [(_JUMP_EQUAL, 0, len(body) + 1, number), load, *body]


def _answer(action: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, action)


def _refuse(code: int) -> tuple[int, int, int, int]:
    return (_RETURN, 0, 0, _ERRNO | code)
