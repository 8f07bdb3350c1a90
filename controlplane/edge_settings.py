"""The settings of the HTTP edge: where it listens, how much it reads, holds and sends, and how often one may ask.

A part of `settings.py`, which has all others and the rules for them.
"""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, IPvAnyNetwork
from pydantic_settings import BaseSettings


class EdgeSettings(BaseSettings):
    """Settings of the API processes."""

    http_host: str = Field(default="127.0.0.1", description="Address the plain-http API listens on.")
    http_port: int = Field(default=8080, description="Port of the plain-http API.")
    https_port: int = Field(default=0, description="Port of the https API; 0 serves no https.")
    tls_certificate: Path | None = Field(default=None, description="PEM certificate chain for https.")
    tls_key: Path | None = Field(default=None, description="PEM key for https.")
    tls_authority: Path | None = Field(
        default=None,
        description="PEM certificates that clients are told to trust, with a certificate of one's own; by default its "
        "chain.",
    )
    basic_auth: bool = Field(
        default=False,
        description="Take a token as the password of HTTP Basic, which Go clients send over plain http, where all can "
        "read it.",
    )
    public_url: str = Field(
        default="",
        description="URL that clients reach, in links that are handed out; with its path behind a proxy that adds one.",
    )
    trusted_proxies: list[IPvAnyNetwork] = Field(
        default=[],
        description='Addresses or ranges of proxies, in a JSON list, as `["10.0.0.7"]`, whose X-Forwarded-For and '
        "X-Forwarded-Proto are believed; anybody else can write there what they like.",
    )
    docs_url: str = Field(default="", description="Prefix of the docs link in errors; empty uses the server's own.")
    access_log: bool = Field(default=False, description="Log a line for each request; failures of ours always are.")
    body_bytes_max: int = Field(default=1 << 20, description="JSON bodies in general; the protocol's limit.")
    batch_body_bytes_max: int = Field(default=8 << 20, description="Bodies of call batches; the protocol's limit.")
    body_seconds_max: float = Field(
        default=120.0,
        gt=0,
        description="A body must have come by then; the largest batch over half a megabit a second.",
    )
    http_head_bytes_max: int = Field(
        default=65_536, ge=4_096, description="URL and headers of a request; long selectors are the longest there are."
    )
    http_head_seconds_max: float = Field(
        default=20.0,
        gt=0,
        description="A TLS handshake must have come by then, then a head, and the rest of a body that was refused; "
        "slow-loris attacks take longer.",
    )
    http_connections_max: int = Field(
        default=8_192,
        ge=1,
        description="Connections of a process at once, by http and https together; each holds a descriptor. More get "
        "503.",
    )
    claim_body_bytes_max: int = Field(
        default=96 << 20, description="Claims carry up to 1,000 results of 64 KiB in base64; one worker's worst case."
    )
    claim_text_bytes_max: int = Field(
        default=8 << 20, description="Room in a claim beyond its results: the SDK's worker cuts no exception's text."
    )
    claim_body_seconds_max: float = Field(
        default=20.0, description="A claim's body must have come by then; a worker that waits longer has claimed again."
    )
    claims_buffered_bytes_max: int = Field(
        default=256 << 20, description="Bodies of claims in memory at once in a process; beyond it they get 429."
    )
    bodies_buffered_bytes_max: int = Field(
        default=256 << 20,
        description="All other bodies in memory at once in a process, a quarter of it for one organisation, or for all "
        "strangers: eight of the largest batches. Beyond it they get 429.",
    )
    streams_per_credential_max: int = Field(
        default=4_000,
        ge=1,
        description="Watches and followed logs of one credential at a process; half its connections.",
    )
    watch_seconds_max: int = Field(
        default=3600, description="A watch is ended after this long, with jitter (R-WATCH-8)."
    )
    bookmark_seconds: int = Field(default=30, description="The SDK takes 120 s of silence for a dead connection.")
    watch_buffer_events_max: int = Field(default=10_000, description="A slower watcher is cut and resumes (R-WATCH-9).")
    watch_buffer_bytes_max: int = Field(default=32 << 20, description="The same bound in bytes of documents.")
    settling_seconds: float = Field(
        default=0.1,
        description="How long a read of a call that has just begun waits for its end, which spares a watch.",
    )
    write_stall_seconds_max: int = Field(
        default=60,
        description="A client that takes nothing of what it is sent for this long is cut off; it holds buffers.",
    )
    list_items_max: int = Field(default=5_000, description="Page size when the client names no limit.")
    list_bytes_max: int = Field(default=8 << 20, description="A page ends early at about this size.")

    # Rates: of one credential at one API process. A burst is a bucket that fills at the rate; a rate of 0 has no limit.
    rate_read_per_second: float = Field(
        default=1_000, ge=0, description="Reads and lists; as many as a process serves, so only loops meet it."
    )
    rate_read_burst_max: int = Field(default=5_000, ge=1, description="Reads at once: a tool that looks at everything.")
    rate_write_per_second: float = Field(
        default=1_000, ge=0, description="Creates, changes and deletes; a batch of calls is one."
    )
    rate_write_burst_max: int = Field(
        default=5_000, ge=1, description="Writes at once: a program that starts thousands of calls."
    )
    rate_watch_per_second: float = Field(
        default=50, ge=0, description="Watches and followed logs that are opened; each costs a list and a subscription."
    )
    rate_watch_burst_max: int = Field(
        default=2_000, ge=1, description="Streams opened at once: all callers of one key come back after a restart."
    )
    rate_claim_per_second: float = Field(
        default=1_000,
        ge=0,
        description="Claims of one worker, which sends one after the other; no honest one gets there.",
    )
    rate_claim_burst_max: int = Field(
        default=5_000, ge=1, description="Claims at once, so that no worker ever waits for it."
    )
    guess_per_second: float = Field(
        default=20,
        gt=0,
        description="Keys of nobody that one address may try at a process; each is a query. Behind a proxy that "
        "`trusted_proxies` does not name, all clients are one address.",
    )
    guess_burst_max: int = Field(
        default=200, ge=1, description="Of these at once: all programs of a site whose key was revoked."
    )
    rate_buckets_max: int = Field(
        default=20_000,
        ge=1,
        description="Credentials and classes counted; the one that asked least recently goes first.",
    )
