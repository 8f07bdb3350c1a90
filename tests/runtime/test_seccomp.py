"""The filter of sandboxes: its bytes are pinned, and a small BPF machine runs it against calls."""

from __future__ import annotations

import errno
import hashlib
import struct

import pytest

from runtime.seccomp import DENIED, UnsupportedMachineError, deny_list

X86_64 = 0xC000003E
AARCH64 = 0xC00000B7
I386 = 0x40000003
ALLOW = 0x7FFF0000
KILL = 0x80000000
EPERM = 0x50000 | errno.EPERM


def verdict(program: bytes, machine: int, number: int, *arguments: int) -> int:
    """What the kernel would answer: runs the filter over a `struct seccomp_data`."""
    data = struct.pack("<IIQ6Q", number, machine, 0, *(*arguments, *[0] * 6)[:6])
    words = list(struct.iter_unpack("<HBBI", program))
    accumulator, at = 0, 0
    while True:
        code, if_true, if_false, value = words[at]
        at += 1
        match code:
            case 0x20:
                accumulator = struct.unpack_from("<I", data, value)[0]
            case 0x06:
                return int(value)
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x45:
                at += if_true if accumulator & value else if_false
            case _:
                raise AssertionError(f"instruction {code:#x} is not known to the test")


@pytest.mark.parametrize(
    ("machine", "length", "digest"),
    [
        ("x86_64", 1288, "e96e8eb4e1db9bcb"),
        ("aarch64", 1208, "b3c69a2dcf3bf3be"),
    ],
)
def test_the_bytes_of_the_filter_are_the_ones_that_were_reviewed(machine: str, length: int, digest: str) -> None:
    program = deny_list(machine)
    assert (len(program), hashlib.sha256(program).hexdigest()[:16]) == (length, digest)


@pytest.mark.parametrize(("machine", "audit", "column"), [("x86_64", X86_64, 0), ("aarch64", AARCH64, 1)])
def test_every_denied_call_is_refused_and_every_other_allowed(machine: str, audit: int, column: int) -> None:
    program = deny_list(machine)
    denied = {numbers[column] for numbers in DENIED.values()} - {None}
    special = {"x86_64": {56, 435, 41, 53, 16}, "aarch64": {220, 435, 198, 199, 29}}[machine]
    for number in range(500):
        if number not in special:
            assert verdict(program, audit, number) == (EPERM if number in denied else ALLOW), number


@pytest.mark.parametrize(
    ("machine", "audit", "clone", "clone3", "socket", "ioctl"),
    [("x86_64", X86_64, 56, 435, 41, 16), ("aarch64", AARCH64, 220, 435, 198, 29)],
)
def test_calls_are_judged_by_their_arguments(
    machine: str, audit: int, clone: int, clone3: int, socket: int, ioctl: int
) -> None:
    program = deny_list(machine)
    thread = 0x3D0F00
    assert verdict(program, audit, clone, thread) == ALLOW
    for namespace in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert verdict(program, audit, clone, thread | namespace) == EPERM
    assert verdict(program, audit, clone3) == 0x50000 | errno.ENOSYS
    for family in range(64):
        wanted = ALLOW if family in (1, 2, 10, 16) else 0x50000 | errno.EAFNOSUPPORT
        assert verdict(program, audit, socket, family) == wanted
        assert verdict(program, audit, socket, family | 0xFFFFFFFF00000000) == wanted
    assert verdict(program, audit, ioctl, 0, 0x5401) == ALLOW
    assert verdict(program, audit, ioctl, 0, 0x5412) == EPERM
    assert verdict(program, audit, ioctl, 0, 0x541C | 0x100000000) == EPERM


@pytest.mark.parametrize("machine", ["x86_64", "aarch64"])
def test_calls_of_another_machine_kill_the_process(machine: str) -> None:
    program = deny_list(machine)
    for other in {X86_64, AARCH64, I386} - {{"x86_64": X86_64, "aarch64": AARCH64}[machine]}:
        assert verdict(program, other, 0) == KILL


def test_x32_calls_kill_the_process() -> None:
    assert verdict(deny_list("x86_64"), X86_64, 0x40000000) == KILL


def test_there_is_no_filter_for_a_machine_nobody_looked_at() -> None:
    with pytest.raises(UnsupportedMachineError, match="riscv64"):
        deny_list("riscv64")
