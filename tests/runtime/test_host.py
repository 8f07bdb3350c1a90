"""Opening and sharing a host, and uids for its workers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from runtime import uids
from runtime.host import Host, HostInUseError, open_host
from runtime.uids import FIRST_UID, lease_uid
from tests.runtime.conftest import LIMITS


async def test_two_nodes_cannot_share_a_folder(host: Host, tmp_path: Path) -> None:
    with pytest.raises(HostInUseError, match="its own data folder"):
        await open_host(
            directory=tmp_path / "node",
            environments=tmp_path / "environments",
            api_url="http://127.0.0.1:1",
            environ=os.environ,
            limits=LIMITS,
        )


def test_folders_of_attempts_are_private_and_found_again_after_a_crash(host: Host) -> None:
    directory = host.attempt_directory("att_1")
    assert directory.stat().st_mode & 0o777 == 0o700
    assert host.attempt_directory("att_1") == directory
    assert host.leftovers() == [directory]
    host.remove_directory("att_1")
    assert host.leftovers() == []


@pytest.mark.parametrize("uid", ["../x", "a/b", ".", ".."])
def test_an_attempts_uid_is_no_path(host: Host, uid: str) -> None:
    with pytest.raises(ValueError, match="attempt's uid"):
        host.attempt_directory(uid)


def test_uids_are_leased_one_by_one_and_given_back(tmp_path: Path) -> None:
    first, second = lease_uid(tmp_path), lease_uid(tmp_path)
    assert (first.uid, second.uid) == (FIRST_UID, FIRST_UID + 1)
    first.release()
    again = lease_uid(tmp_path)
    assert again.uid == FIRST_UID
    for lease in (again, second):
        lease.release()


def test_a_host_that_is_out_of_uids_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uids, "UIDS_MAX", 1)
    only = lease_uid(tmp_path)
    with pytest.raises(OSError, match="in use on this host"):
        lease_uid(tmp_path)
    only.release()
