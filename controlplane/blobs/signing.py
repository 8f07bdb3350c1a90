"""URLs that carry their own permission: one blob, one method, fifteen minutes.

Bytes travel on `/blobs/v1/data/…`, a route without credentials, because clients fetch presigned URLs with a bare HTTP
client. The signature covers everything the route acts on, so nothing in such a URL can be changed. The S3 backend has
URLs of its own for clients outside; these are for the local disk, and for workers, who reach nothing but this API.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import urlencode

from pydantic import SecretStr

from controlplane.clock import Clock
from controlplane.errors import ApiError, Reason
from controlplane.identity.keys import KeyPurpose, derive_key

DATA_PATH = "/blobs/v1/data"
_FIX = "Ask for a fresh URL; it is valid for some minutes and for one blob."


@dataclass(frozen=True, slots=True)
class BlobAddress:
    """Which blob: the project that holds it and the lowercase hex SHA-256 of its bytes."""

    org: str
    project: str
    digest: str


@dataclass(frozen=True, slots=True)
class UploadGrant:
    """What an upload URL allows: exactly `size_bytes` bytes of that digest."""

    address: BlobAddress
    size_bytes: int
    content_type: str


class UrlSigner:
    """Makes and checks the paths of signed URLs."""

    def __init__(self, secret_key: SecretStr, clock: Clock, seconds: int) -> None:
        self._key = derive_key(secret_key, KeyPurpose.BLOB_URLS)
        self._clock = clock
        self._seconds = seconds

    def upload_path(self, grant: UploadGrant) -> str:
        """Path and query for a PUT of the granted bytes."""
        terms = {"size": str(grant.size_bytes), "type": grant.content_type}
        return self._path("PUT", grant.address, terms)

    def download_path(self, address: BlobAddress) -> str:
        """Path and query for a GET of the blob."""
        return self._path("GET", address, {})

    def check_upload(self, address: BlobAddress, query: Mapping[str, str]) -> UploadGrant:
        """What the query of a PUT allows; Forbidden when it was not signed by us or has expired."""
        size, content_type = query.get("size", ""), query.get("type", "")
        self._check("PUT", address, query, {"size": size, "type": content_type})
        return UploadGrant(address, int(size), content_type)

    def check_download(self, address: BlobAddress, query: Mapping[str, str]) -> None:
        """Forbidden when the query of a GET was not signed by us or has expired."""
        self._check("GET", address, query, {})

    def _path(self, method: str, address: BlobAddress, terms: Mapping[str, str]) -> str:
        expires = str(int(self._clock.now().timestamp()) + self._seconds)
        signature = self._signature(method, address, expires, terms)
        query = urlencode({"expires": expires, **terms, "signature": signature})
        return f"{DATA_PATH}/{address.org}/{address.project}/{address.digest}?{query}"

    def _check(self, method: str, address: BlobAddress, query: Mapping[str, str], terms: Mapping[str, str]) -> None:
        expires = query.get("expires", "")
        expected = self._signature(method, address, expires, terms)
        if not hmac.compare_digest(expected.encode(), query.get("signature", "").encode()):
            raise ApiError(Reason.FORBIDDEN, "the signature of this URL is not valid", fix=_FIX)
        if int(expires) <= self._clock.now().timestamp():
            raise ApiError(Reason.FORBIDDEN, "this URL has expired", fix=_FIX)

    def _signature(self, method: str, address: BlobAddress, expires: str, terms: Mapping[str, str]) -> str:
        parts = [method, address.org, address.project, address.digest, expires, *terms.values()]
        # Lengths keep the parts apart, whatever they contain.
        signed = "".join(f"{len(part.encode())}:{part}" for part in parts)
        return hmac.new(self._key, signed.encode(), hashlib.sha256).hexdigest()
