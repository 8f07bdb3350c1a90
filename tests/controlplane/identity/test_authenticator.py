"""From a header to a principal, over real rows."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from controlplane.errors import ApiError, Reason
from controlplane.identity.authenticator import Authenticator
from controlplane.identity.bootstrap import bootstrap, issue_admin_key, rotate_admin_key
from controlplane.identity.principal import AttemptBinding, Principal, PrincipalKind, user_label
from controlplane.identity.tokens import (
    INSERT_API_KEY,
    REVOKE_ATTEMPT,
    TokenHasher,
    mint_attempt_token,
    new_api_key,
    purge_tokens,
)
from controlplane.settings import Settings
from tests.fixtures.eventually import eventually
from tests.fixtures.plane import NODE_TOKEN, Plane


def bearer(token: str | None) -> bytes:
    return f"Bearer {token}".encode()


async def test_the_first_key_is_the_administrators(plane: Plane) -> None:
    admin = plane.admin
    assert admin.kind is PrincipalKind.USER
    assert (admin.org, admin.scopes, admin.projects) == ("default", frozenset({"*"}), frozenset({"*"}))
    assert admin.user_uuid == plane.start.user_uuid
    assert admin.label == user_label(plane.start.user_uuid)
    assert len(admin.label) == len("usr_") + 26
    assert plane.start.token is not None
    assert plane.start.token.startswith("nodus_")


async def test_the_key_itself_is_nowhere_in_the_database(plane: Plane) -> None:
    assert plane.start.token is not None
    rows = await plane.database.fetch("SELECT t::text AS row FROM tokens t")
    assert len(rows) == 1
    assert plane.start.token not in rows[0]["row"]
    assert plane.start.token.encode().hex() not in rows[0]["row"]


@pytest.mark.parametrize(
    "header",
    [
        b"",
        b"Bearer",
        b"Bearer ",
        b"Basic bm9kdXM6eA==",
        b"nodus_" + b"a" * 43,
        b"Bearer nodus_" + b"a" * 43,
        b"Bearer nodusatt_" + b"a" * 43,
        b"Bearer nodus_" + b"a" * 42,
        b"Bearer \xff\xfe",
        b"Bearer " + b"x" * 10_000,
    ],
)
async def test_whatever_is_no_key_of_ours_is_unauthorized(plane: Plane, header: bytes) -> None:
    with pytest.raises(ApiError) as refused:
        await plane.authenticate(header)
    assert refused.value.reason is Reason.UNAUTHORIZED


async def test_the_scheme_may_be_written_in_any_case(plane: Plane) -> None:
    assert await plane.authenticate(f"bearer {plane.start.token}".encode()) == plane.admin


async def test_the_nodes_token_is_a_node(plane: Plane) -> None:
    node = await plane.authenticate(bearer(NODE_TOKEN))
    assert node.kind is PrincipalKind.NODE
    assert "*" not in node.scopes


async def test_without_a_node_token_in_the_settings_nobody_is_a_node(plane: Plane) -> None:
    settings = plane.settings.model_copy(update={"node_token": Settings().node_token})
    authenticate = Authenticator(plane.database, settings, plane.clock)
    for header in (b"Bearer ", bearer(NODE_TOKEN)):
        with pytest.raises(ApiError):
            await authenticate(header)


async def insert_key(plane: Plane, **changes: Any) -> str:
    """A key with the scopes of a reader, changed as told."""
    token = new_api_key()
    row = {
        "hash": TokenHasher(plane.settings.secret_key).hash(token),
        "org": "default",
        "principal": plane.start.user_uuid,
        "name": "reader",
        "scopes": ["*:read"],
        "projects": ["default"],
        "created_at": plane.clock.now(),
        "expires_at": None,
        "role": "Owner",
        "owner": None,
    } | changes
    await plane.database.execute(INSERT_API_KEY, *row.values())
    return token


async def test_a_keys_scopes_and_projects_are_those_of_its_row(plane: Plane) -> None:
    principal = await plane.authenticate(bearer(await insert_key(plane)))
    assert principal.scopes == {"*:read"}
    assert principal.sees_project("default")
    assert not principal.sees_project("other")
    assert principal.role == "Owner"


async def test_an_expired_key_is_unauthorized(plane: Plane) -> None:
    token = await insert_key(plane, expires_at=plane.clock.now() - timedelta(seconds=1))
    with pytest.raises(ApiError):
        await plane.authenticate(bearer(token))
    assert await purge_tokens(plane.database, plane.clock.now()) == 1


async def test_a_revoked_key_stops_within_the_time_it_is_trusted(plane: Plane) -> None:
    settings = plane.settings.model_copy(update={"token_cache_seconds": 0.2})
    authenticate = Authenticator(plane.database, settings, plane.clock)
    token = await insert_key(plane)
    await authenticate(bearer(token))
    await plane.database.execute("UPDATE tokens SET revoked_at = now() WHERE name = 'reader'")

    async def is_refused() -> bool:
        try:
            await authenticate(bearer(token))
        except ApiError as error:
            return error.reason is Reason.UNAUTHORIZED
        return False

    await eventually(is_refused)


async def test_at_default_settings_a_revoked_key_is_refused_after_a_second(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = plane.settings.model_dump(include={"database_url", "data_dir", "secret_key", "node_token"})
    authenticate = Authenticator(plane.database, Settings(**given), plane.clock)
    token, monotonic = await insert_key(plane), time.monotonic
    await authenticate(bearer(token))
    await plane.database.execute("UPDATE tokens SET revoked_at = now() WHERE name = 'reader'")
    later = SimpleNamespace(monotonic=lambda: monotonic() + 1.0)
    monkeypatch.setattr("controlplane.identity.authenticator.time", later)
    with pytest.raises(ApiError) as caught:
        await authenticate(bearer(token))
    assert caught.value.reason is Reason.UNAUTHORIZED


async def test_a_key_made_after_it_was_refused_works_within_the_time_a_refusal_is_kept(plane: Plane) -> None:
    settings = plane.settings.model_copy(update={"token_cache_seconds": 0.2})
    authenticate = Authenticator(plane.database, settings, plane.clock)
    token = await insert_key(plane)
    await plane.database.execute("UPDATE tokens SET revoked_at = now() WHERE name = 'reader'")
    with pytest.raises(ApiError):
        await authenticate(bearer(token))
    await plane.database.execute("UPDATE tokens SET revoked_at = NULL WHERE name = 'reader'")

    async def is_known() -> bool:
        try:
            return (await authenticate(bearer(token))).label != ""
        except ApiError:
            return False

    await eventually(is_known)


async def test_a_flood_of_guesses_does_not_grow_the_memory(plane: Plane) -> None:
    settings = plane.settings.model_copy(update={"token_cache_seconds": 60.0, "token_cache_entries_max": 4})
    authenticate = Authenticator(plane.database, settings, plane.clock)
    await authenticate(bearer(plane.start.token))
    for _ in range(20):
        with pytest.raises(ApiError):
            await authenticate(bearer(new_api_key()))
    assert len(authenticate._unknown) == 4
    assert len(authenticate._known) == 1


async def test_requests_that_arrive_together_ask_the_database_once(plane: Plane) -> None:
    settings = plane.settings.model_copy(update={"token_cache_seconds": 60.0})
    authenticate = Authenticator(plane.database, settings, plane.clock)
    principals = await asyncio.gather(*[authenticate(bearer(plane.start.token)) for _ in range(50)])
    assert len({id(principal) for principal in principals}) == 1


async def test_the_work_of_a_refusal_tells_nothing_of_the_keys_there_are(
    plane: Plane, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every refusal is one look-up of a keyed hash, whatever of the token is right: there is nothing to time."""
    good = await insert_key(plane)
    almost = [good[:-1] + ("A" if good[-1] != "A" else "B"), good[: len("nodus_") + 21] + "x" * 22]
    revoked = await insert_key(plane)
    hashed = TokenHasher(plane.settings.secret_key).hash
    await plane.database.execute("UPDATE tokens SET revoked_at = now() WHERE hash = $1", hashed(revoked))
    expired = await insert_key(plane, expires_at=plane.clock.now() - timedelta(seconds=1))
    asked: list[Sequence[bytes]] = []
    look_up = Authenticator._look_up_all

    async def noted(self: Authenticator, hashes: Sequence[bytes]) -> dict[bytes, Principal | None]:
        asked.append(hashes)
        return await look_up(self, hashes)

    monkeypatch.setattr(Authenticator, "_look_up_all", noted)
    refusals = []
    for token in (*almost, new_api_key(), revoked, expired):
        with pytest.raises(ApiError) as refused:
            await plane.authenticate(bearer(token))
        refusals.append((refused.value.reason, refused.value.message, refused.value.details, refused.value.fix))
    assert len(asked) == len(refusals)
    assert all(refusal == refusals[0] for refusal in refusals)
    # What is compared shares nothing with the hash of the key that was nearly guessed.
    [[near], [nearer], *_] = asked
    right = hashed(good)
    for guess in (near, nearer):
        assert len(guess) == len(right) == 32
        assert sum(left == other for left, other in zip(guess, right, strict=True)) < 8


async def test_a_database_that_is_away_is_unavailable_not_unauthorized(plane: Plane) -> None:
    plane.database.pool.terminate()
    with pytest.raises(ApiError) as refused:
        await plane.authenticate(bearer(plane.start.token))
    assert refused.value.reason is Reason.UNAVAILABLE


async def test_a_use_that_cannot_be_noted_harms_nothing(plane: Plane) -> None:
    """It is noted beside the request, so nobody would hear of its failure but the log."""
    plane.database.pool.terminate()
    await plane.authenticate._noted([b""])


async def test_a_slow_answer_is_trusted_from_when_it_was_asked_for(plane: Plane) -> None:
    settings = plane.settings.model_copy(update={"token_cache_seconds": 0.2})
    authenticate = Authenticator(plane.database, settings, plane.clock)
    waits = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'tokens'::regclass"
    async with plane.database.pool.acquire() as other:
        async with other.transaction():
            await other.execute("LOCK TABLE tokens IN ACCESS EXCLUSIVE MODE")
            asking = asyncio.create_task(authenticate(bearer(plane.start.token)))
            await eventually(lambda: other.fetchval(waits))
            waited_at = time.monotonic()
            await eventually(lambda: time.monotonic() > waited_at + settings.token_cache_seconds)
        answered_at = time.monotonic()
    await asking
    [(expires, _)] = authenticate._known.values()
    assert expires < answered_at


# Workers.


async def mint(plane: Plane, epoch: int = 1) -> str:
    minted = await mint_attempt_token(
        plane.database, TokenHasher(plane.settings.secret_key), attempt="att-1", epoch=epoch, now=plane.clock.now()
    )
    assert minted is not None
    return minted[0]


async def test_a_workers_token_is_bound_to_its_attempt(plane: Plane) -> None:
    await plane.attempt("att-1", function="f", function_uid="fn_1", epoch=3)
    principal = await plane.authenticate(bearer(await mint(plane, epoch=3)))
    assert principal.kind is PrincipalKind.ATTEMPT
    assert principal.binding == AttemptBinding(
        project="default", function="f", function_uid="fn_1", attempt="att-1", epoch=3, concurrency=1
    )
    assert principal.projects == {"default"}
    assert not principal.revoked


async def test_no_token_is_minted_for_an_attempt_that_ended_or_another_epoch(plane: Plane) -> None:
    hasher = TokenHasher(plane.settings.secret_key)
    now = plane.clock.now()
    await plane.attempt("att-1", function="f", function_uid="fn_1")
    await plane.attempt("att-2", function="f", function_uid="fn_1", state="finished", finished_at=now)
    for attempt, epoch in (("att-1", 2), ("att-2", 1), ("att-3", 1)):
        assert await mint_attempt_token(plane.database, hasher, attempt=attempt, epoch=epoch, now=now) is None


async def test_the_end_of_an_attempt_revokes_its_token_but_still_names_it(plane: Plane) -> None:
    await plane.attempt("att-1", function="f", function_uid="fn_1")
    token = await mint(plane)
    await plane.database.execute("UPDATE attempts SET state = 'finished', finished_at = now()")
    principal = await plane.authenticate(bearer(token))
    assert principal.revoked
    assert principal.binding is not None


async def test_a_token_revoked_before_the_end_of_its_attempt_still_names_it(plane: Plane) -> None:
    await plane.attempt("att-1", function="f", function_uid="fn_1")
    token = await mint(plane)
    await plane.database.execute(REVOKE_ATTEMPT, "att-1", plane.clock.now())
    assert (await plane.authenticate(bearer(token))).revoked


async def test_a_second_lease_ends_the_first_ones_token(plane: Plane) -> None:
    await plane.attempt("att-1", function="f", function_uid="fn_1")
    first, second = await mint(plane), await mint(plane)
    with pytest.raises(ApiError):
        await plane.authenticate(bearer(first))
    assert not (await plane.authenticate(bearer(second))).revoked


async def test_tokens_of_attempts_that_ended_long_ago_are_purged(plane: Plane) -> None:
    await plane.attempt("att-1", function="f", function_uid="fn_1")
    token = await mint(plane)
    assert await purge_tokens(plane.database, plane.clock.now()) == 0
    await plane.database.execute("UPDATE attempts SET finished_at = now() - interval '1 day'")
    assert await purge_tokens(plane.database, plane.clock.now()) == 1
    with pytest.raises(ApiError):
        await plane.authenticate(bearer(token))


# The first start.


async def test_a_second_start_finds_what_the_first_made(plane: Plane) -> None:
    again = await bootstrap(plane.writer, plane.settings, plane.clock)
    assert again.token is None
    assert again.user_uuid == plane.start.user_uuid
    assert await plane.database.pool.fetchval("SELECT count(*) FROM objects WHERE kind = 'Project'") == 1


async def test_processes_that_start_at_once_make_one_administrator(plane: Plane) -> None:
    starts = await asyncio.gather(*[bootstrap(plane.writer, plane.settings, plane.clock, "new") for _ in range(5)])
    assert len({start.user_uuid for start in starts}) == 1
    assert sum(start.token is not None for start in starts) == 1


async def test_a_project_deleted_by_the_administrator_does_not_come_back(plane: Plane) -> None:
    await plane.database.execute("DELETE FROM objects WHERE kind = 'Project'")
    await bootstrap(plane.writer, plane.settings, plane.clock)
    assert await plane.database.pool.fetchval("SELECT count(*) FROM objects WHERE kind = 'Project'") == 0


async def test_a_lost_key_is_replaced_by_another_of_the_same_administrator(plane: Plane) -> None:
    issued = await issue_admin_key(plane.writer, plane.database, plane.settings)
    assert (await plane.authenticate(bearer(issued))).user_uuid == plane.start.user_uuid
    assert await plane.authenticate(bearer(plane.start.token)) == plane.admin


async def test_a_rotation_ends_every_older_key(plane: Plane) -> None:
    issued = await issue_admin_key(plane.writer, plane.database, plane.settings)
    rotated = await rotate_admin_key(plane.writer, plane.database, plane.settings, plane.clock)
    assert (await plane.authenticate(bearer(rotated))).user_uuid == plane.start.user_uuid
    for token in (issued, plane.start.token):
        with pytest.raises(ApiError):
            await plane.authenticate(bearer(token))


@pytest.mark.parametrize("secret_key", ["", "zz" * 32, "ab" * 16])
def test_a_weak_or_missing_secret_key_stops_the_start(secret_key: str) -> None:
    with pytest.raises(ValueError, match="secret_key"):
        TokenHasher(Settings(secret_key=secret_key).secret_key)


async def test_the_administrator_of_an_earlier_release_becomes_a_member(plane: Plane) -> None:
    older = new_api_key()
    row = (TokenHasher(plane.settings.secret_key).hash(older), "older", "u-1", "admin", ["*"], ["*"])
    await plane.database.execute(INSERT_API_KEY, *row, plane.clock.now(), None, "Owner", None)
    start = await bootstrap(plane.writer, plane.settings, plane.clock, "older")
    assert (start.user_uuid, start.token) == ("u-1", None)
    adopted = await plane.database.fetch(
        "SELECT t.hash, o.name, o.role FROM tokens t JOIN credential_owners o ON o.uid = t.owner WHERE t.org = 'older'"
    )
    assert [tuple(row) for row in adopted] == [(row[0], "admin", "Owner")]
    count = await plane.database.fetchval("SELECT count(*) FROM objects WHERE org = 'older'")
    assert (count, await bootstrap(plane.writer, plane.settings, plane.clock, "older")) == (3, start)
