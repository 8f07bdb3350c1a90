"""The folder of one installation: private, locked, and the same secrets and ports at every start."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from workers import state
from workers.state import StartError, StateFolder, write_private


@pytest.fixture
def folder(tmp_path: Path) -> StateFolder:
    made = StateFolder(tmp_path / "data")
    made.create()
    return made


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_the_folder_and_its_secrets_are_readable_by_their_owner_alone(folder: StateFolder) -> None:
    folder.secrets()
    folder.ports(None)
    assert mode(folder.path) == 0o700
    assert {mode(path) for path in folder.path.iterdir() if path.is_file()} == {0o600}


def test_secrets_are_made_once_and_differ_from_each_other(folder: StateFolder) -> None:
    first = folder.secrets()
    assert first == folder.secrets()
    assert len(set(first.values())) == len(state.SECRETS)
    assert all(len(bytes.fromhex(value)) == state.SECRET_BYTES for value in first.values())


def test_a_secret_that_a_newer_version_needs_joins_the_old_ones(folder: StateFolder) -> None:
    old = folder.secrets()
    kept = {name: value for name, value in old.items() if name != "node_token"}
    write_private(folder.path / "secrets.json", json.dumps(kept))
    assert folder.secrets() == kept | {"node_token": folder.secrets()["node_token"]}


def test_ports_are_distinct_and_kept_for_the_next_start(folder: StateFolder) -> None:
    ports = folder.ports(None)
    assert set(ports) == set(state.PORTS)
    assert len(set(ports.values())) == len(ports)
    assert folder.ports(None) == ports


def test_a_port_taken_meanwhile_is_replaced_and_the_others_stay(folder: StateFolder) -> None:
    ports = folder.ports(None)
    with socket.create_server(("127.0.0.1", ports["https"])):
        again = folder.ports(None)
    assert again["https"] != ports["https"]
    assert {name: port for name, port in again.items() if name != "https"} == {
        name: port for name, port in ports.items() if name != "https"
    }


def test_a_given_port_that_is_taken_is_refused_with_its_fix(folder: StateFolder) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StartError, match=f"port {port} is in use .* --port"):
            folder.ports(port)


def test_a_given_port_is_used_even_if_another_listener_had_it(folder: StateFolder) -> None:
    ports = folder.ports(None)
    again = folder.ports(ports["postgres"])
    assert again["http"] == ports["postgres"]
    assert again["postgres"] != ports["postgres"]


def test_a_path_that_cannot_be_a_folder_is_refused_with_its_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StartError, match=r"cannot be written .* --data-dir"):
        StateFolder(tmp_path / "file" / "data").create()


def test_too_little_disk_is_refused_with_its_fix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "FREE_BYTES_MIN", 1 << 60)
    with pytest.raises(StartError, match=r"MB left .* free some space"):
        StateFolder(tmp_path / "data").create()


def test_two_supervisors_cannot_share_a_folder(folder: StateFolder) -> None:
    with folder.locked(), pytest.raises(StartError, match="another nodus-server runs on"), folder.locked():
        pass
    with folder.locked():
        pass


def test_a_child_that_outlives_its_supervisor_keeps_the_folder_until_it_ends(
    folder: StateFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "LEFTOVER_SECONDS_MAX", 0.2)
    with folder.locked() as inherited:
        child = subprocess.Popen(
            [sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE, pass_fds=[inherited]
        )
    try:
        with pytest.raises(StartError, match=rf"end them with `kill .*{child.pid}"), folder.locked():
            pass
    finally:
        child.communicate()
    with folder.locked():
        pass


def test_a_private_file_is_replaced_whole_and_never_open_to_others(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("old")
    os.chmod(path, 0o644)
    write_private(path, "new")
    assert (path.read_text(), mode(path)) == ("new", 0o600)
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_run_said_of_being_ready_is_taken_back_by_the_next_holder_only(folder: StateFolder) -> None:
    folder.client_env.write_text("NODUS_API_URL=http://127.0.0.1:1\n")
    with folder.locked():
        assert not folder.client_env.exists()
        folder.client_env.write_text("NODUS_API_URL=http://127.0.0.1:2\n")
        with pytest.raises(StartError, match="another nodus-server runs"), StateFolder(folder.path).locked():
            pass
        assert folder.client_env.exists()
