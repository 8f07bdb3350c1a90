"""The certificate of the https listener, as a client that trusts the kubeconfig's authority sees it."""

from __future__ import annotations

import asyncio
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from controlplane.clock import SystemClock
from controlplane.identity.bootstrap import FIRST_PROJECT
from controlplane.settings import Settings
from workers.client_files import PROJECT, Access, write_client_env, write_kubeconfig
from workers.state import StartError
from workers.tls import SERVER_DAYS, SYSTEM_AUTHORITIES, TlsFiles, ensure_tls, given_tls, write_trusted


class FixedClock:
    def __init__(self, moment: datetime) -> None:
        self._moment = moment

    def now(self) -> datetime:
        return self._moment


@pytest.fixture
def files(tmp_path: Path) -> TlsFiles:
    return ensure_tls(tmp_path / "tls", SystemClock())


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
async def test_a_client_that_trusts_the_authority_accepts_the_server(files: TlsFiles, host: str) -> None:
    serving = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    serving.load_cert_chain(files.certificate, files.key)

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0, ssl=serving)
    async with server:
        port = server.sockets[0].getsockname()[1]
        trusting = ssl.create_default_context(cafile=files.authority)
        reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname=host)
        assert await reader.read() == b"hello"
        writer.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname="example.org")


def test_the_files_are_kept_and_private(files: TlsFiles) -> None:
    before = {path.name: path.read_bytes() for path in files.authority.parent.iterdir()}
    ensure_tls(files.authority.parent, SystemClock())
    assert before == {path.name: path.read_bytes() for path in files.authority.parent.iterdir()}
    assert {stat.S_IMODE(path.stat().st_mode) for path in files.authority.parent.iterdir()} == {0o600}


def test_a_certificate_near_its_end_is_renewed_under_the_same_authority(files: TlsFiles) -> None:
    authority, certificate = files.authority.read_bytes(), files.certificate.read_bytes()
    later = FixedClock(datetime.now(UTC) + timedelta(days=SERVER_DAYS - 10))
    ensure_tls(files.authority.parent, later)
    assert files.authority.read_bytes() == authority
    assert files.certificate.read_bytes() != certificate


def test_clients_get_the_project_that_the_first_start_makes() -> None:
    assert PROJECT == FIRST_PROJECT


def test_client_files_are_private_and_say_where_and_who(tmp_path: Path, files: TlsFiles) -> None:
    access = Access(api_url="http://127.0.0.1:1", https_url="https://127.0.0.1:2", api_key="nodus_k", project="default")
    write_client_env(tmp_path / "client.env", access)
    write_kubeconfig(tmp_path / "kubeconfig", access, files.authority)
    assert (tmp_path / "client.env").read_text().splitlines() == [
        "NODUS_API_URL=http://127.0.0.1:1",
        "NODUS_API_KEY=nodus_k",
        "NODUS_PROJECT=default",
    ]
    document = yaml.safe_load((tmp_path / "kubeconfig").read_text())
    assert document["clusters"][0]["cluster"]["server"] == "https://127.0.0.1:2"
    assert document["users"][0]["user"] == {"token": "nodus_k"}
    assert document["contexts"][0]["context"]["namespace"] == "default"
    assert stat.S_IMODE((tmp_path / "client.env").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "kubeconfig").stat().st_mode) == 0o600


def test_a_certificate_of_ones_own_takes_the_place_of_ours(tmp_path: Path, files: TlsFiles) -> None:
    own: dict[str, Any] = {"tls_certificate": files.certificate, "tls_key": files.key}
    assert given_tls(Settings()) is None
    given = given_tls(Settings(**own, tls_authority=files.authority))
    assert given == files
    assert given_tls(Settings(**own)) == TlsFiles(
        authority=files.certificate, certificate=files.certificate, key=files.key
    )
    for incomplete in ({"tls_certificate": files.certificate}, {**own, "tls_key": tmp_path / "nowhere"}):
        with pytest.raises(StartError, match="NODUS_SERVER_TLS"):
            given_tls(Settings(**incomplete))


def test_who_trusts_our_authority_goes_on_to_trust_the_systems(tmp_path: Path, files: TlsFiles) -> None:
    write_trusted(tmp_path / "trusted.crt", files.authority)
    trusted = ssl.create_default_context(cafile=tmp_path / "trusted.crt").get_ca_certs(binary_form=True)
    assert ssl.PEM_cert_to_DER_cert(files.authority.read_text()) in trusted
    system = next((path for path in SYSTEM_AUTHORITIES if path.is_file()), None)
    if system is not None:
        assert {*ssl.create_default_context(cafile=system).get_ca_certs(binary_form=True)} < {*trusted}
