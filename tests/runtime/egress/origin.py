"""A web server of the outside world, on loopback: TLS under any name, or plain http. It says what reached it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

NAMES = ("allowed.test", "*.parts.test", "other.test")


@dataclasses.dataclass
class Origin:
    """Where it listens, what was asked of it, and the certificate to trust."""

    port: int
    certificate: Path
    heads: list[bytes] = dataclasses.field(default_factory=list)
    bodies: list[bytes] = dataclasses.field(default_factory=list)
    connections: int = 0


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """(certificate that signs itself for all NAMES, key), as PEM files."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "origin")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(each) for each in NAMES]), critical=False)
        .sign(key, hashes.SHA256())
    )
    folder.mkdir()
    paths = folder / "origin.crt", folder / "origin.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return paths


@contextlib.asynccontextmanager
async def origin_in(folder: Path, *, tls: bool) -> AsyncIterator[Origin]:
    """A server that answers every request with the name it was asked for and the length of its body."""
    certificate, key = make_certificate(folder / ("tls" if tls else "plain"))
    context = None
    if tls:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
    made = Origin(port=0, certificate=certificate)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        made.connections += 1
        with contextlib.suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                made.heads.append(head)
                fields = dict(line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:-2])
                body = await reader.readexactly(int(fields.get(b"content-length", b"0")))
                made.bodies.append(body)
                said = b"hello from " + fields[b"host"]
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%b" % (len(said), said))
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    made.port = server.sockets[0].getsockname()[1]
    try:
        yield made
    finally:
        server.close()
