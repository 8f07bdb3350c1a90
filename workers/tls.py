"""The certificate of the https listener: one that was given, else one signed by an authority of this installation.

Go's Kubernetes clients send a token over https only, so `up` serves https too. The authority's certificate goes into
the kubeconfig; nothing is installed into the system's trust. Both are kept, so a copied kubeconfig keeps working.
Clients that know of no authority but those of a file get a file with the system's and ours (`write_trusted`).
"""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from controlplane.clock import Clock
from controlplane.settings import Settings
from workers.state import StartError, write_private

AUTHORITY_DAYS = 3650
SERVER_DAYS = 397
RENEW_BEFORE_DAYS = 30
HOSTS = ("localhost",)
ADDRESSES = ("127.0.0.1", "::1")
SYSTEM_AUTHORITIES = (
    Path("/etc/ssl/certs/ca-certificates.crt"),
    Path("/etc/pki/tls/certs/ca-bundle.crt"),
    Path("/etc/ssl/ca-bundle.pem"),
    Path("/etc/ssl/cert.pem"),
)
"""Where systems keep them, the most common first; the same places that Go looks at."""


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """PEM files: the authority's certificate, and the server's chain and key."""

    authority: Path
    certificate: Path
    key: Path


def ensure_tls(folder: Path, clock: Clock) -> TlsFiles:
    """The files under `folder`; made at the first start, the server's again a month before it expires."""
    folder.mkdir(exist_ok=True, mode=0o700)
    files = TlsFiles(authority=folder / "authority.crt", certificate=folder / "server.crt", key=folder / "server.key")
    authority_key = folder / "authority.key"
    if not (files.authority.exists() and authority_key.exists()):
        _make_authority(files.authority, authority_key, clock)
        files.certificate.unlink(missing_ok=True)
    if not (files.certificate.exists() and files.key.exists()) or _expires_soon(files.certificate, clock):
        _make_server(files, authority_key, clock)
    return files


def given_tls(settings: Settings) -> TlsFiles | None:
    """The operator's own files; None when there are none. Raises StartError when they are not complete."""
    certificate, key = settings.tls_certificate, settings.tls_key
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise StartError("a certificate needs its key: set both NODUS_SERVER_TLS_CERTIFICATE and NODUS_SERVER_TLS_KEY")
    files = TlsFiles(authority=settings.tls_authority or certificate, certificate=certificate, key=key)
    for path in (files.authority, files.certificate, files.key):
        if not path.is_file():
            raise StartError(f"{path} is no file: correct the NODUS_SERVER_TLS_… settings")
    return files


def served_tls(settings: Settings) -> TlsFiles | None:
    """What the https port is served with; None without one. Raises StartError when there is a port and no certificate:
    keys would cross the network in the clear, from a port that promises the opposite."""
    if not settings.https_port:
        return None
    files = given_tls(settings)
    if files is None:
        raise StartError(
            f"port {settings.https_port} cannot serve https without a certificate: set NODUS_SERVER_TLS_CERTIFICATE "
            "and NODUS_SERVER_TLS_KEY, or leave NODUS_SERVER_HTTPS_PORT out"
        )
    return files


def write_trusted(path: Path, authority: Path) -> None:
    """A file with the system's authorities and `authority`, for SSL_CERT_FILE, which takes the place of all others."""
    system = next((found.read_text() for found in SYSTEM_AUTHORITIES if found.is_file()), "")
    write_private(path, f"{system}\n{authority.read_text()}")


def _expires_soon(certificate: Path, clock: Clock) -> bool:
    ends = x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc
    return ends - clock.now() < datetime.timedelta(days=RENEW_BEFORE_DAYS)


def _builder(subject: str, days: int, clock: Clock) -> x509.CertificateBuilder:
    # An hour of slack, for clients whose clock is behind.
    begins = clock.now() - datetime.timedelta(hours=1)
    return (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]))
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(begins + datetime.timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _make_authority(certificate: Path, key_file: Path, clock: Clock) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = "nodus-server authority"
    signed = (
        _builder(name, AUTHORITY_DAYS, clock)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
        .public_key(key.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    write_private(key_file, _pem(key))
    write_private(certificate, signed.public_bytes(serialization.Encoding.PEM).decode())


def _make_server(files: TlsFiles, authority_key: Path, clock: Clock) -> None:
    authority = x509.load_pem_x509_certificate(files.authority.read_bytes())
    signer = serialization.load_pem_private_key(authority_key.read_bytes(), password=None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    key = ec.generate_private_key(ec.SECP256R1())
    names: list[x509.GeneralName] = [x509.DNSName(host) for host in HOSTS]
    names += [x509.IPAddress(ipaddress.ip_address(address)) for address in ADDRESSES]
    signed = (
        _builder("nodus-server", SERVER_DAYS, clock)
        .issuer_name(authority.subject)
        .public_key(key.public_key())
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
        .sign(signer, hashes.SHA256())
    )
    write_private(files.key, _pem(key))
    write_private(files.certificate, signed.public_bytes(serialization.Encoding.PEM).decode())


def _pem(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
