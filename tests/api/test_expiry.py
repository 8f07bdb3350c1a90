"""Keys and invites whose time is over say so, and are remembered by the server until they have."""

from __future__ import annotations

import secrets
from datetime import timedelta

from activities.credentials_keeper import CredentialsKeeper
from controlplane.clock import format_time
from controlplane.identity.tokens import purge_tokens
from tests.api.test_invites import INVITES
from tests.fixtures.app import ROOT, ServedApi

KEYS = f"{ROOT}/apikeys"
_AGE = "UPDATE tokens SET expires_at = now() - interval '2 days' WHERE uid = ANY($1::text[])"
_LEFT = "SELECT count(*) FROM tokens WHERE uid = ANY($1::text[])"


async def test_what_expired_says_so_before_it_is_forgotten(project: ServedApi) -> None:
    core, client = project.core, project.client
    keeper = CredentialsKeeper(core.database, core.writer, core.clock)
    later = format_time(core.clock.now() + timedelta(hours=1))
    made = {}
    for where, spec in ((KEYS, {}), (INVITES, {"email": "x@example.com"})):
        for ends in (True, False):
            name = f"x-{secrets.token_hex(4)}"
            body = {"metadata": {"name": name}, "spec": {**spec, "expirationTime": later}}
            answer = await client.post(where, json=body)
            assert answer.status_code == 201, answer.text
            made[f"{where}/{name}"] = (answer.json()["metadata"]["uid"], ends)
    ended = [uid for uid, ends in made.values() if ends]

    async def shown() -> list[tuple[bool, str, str, str]]:
        statuses = [((await client.get(path)).json()["status"], ends) for path, (_, ends) in made.items()]
        return [
            (ends, status["phase"], status["conditions"][0]["status"], status["conditions"][0]["reason"])
            for status, ends in statuses
        ]

    working = [(False, "Ready", "True", "Ready"), (False, "Pending", "True", "Ready")]
    await keeper.tell_expired()
    assert [each for each in await shown() if not each[0]] == working
    await core.database.execute(_AGE, ended)
    await purge_tokens(core.database, core.clock.now() - timedelta(days=1))
    assert await core.database.fetchval(_LEFT, ended) == len(ended)
    await keeper.tell_expired()
    assert [each for each in await shown() if each[0]] == [(True, "Expired", "False", "Expired")] * 2
    assert [each for each in await shown() if not each[0]] == working
    changes = await project.row_count()
    await keeper.tell_expired()
    assert await project.row_count() == changes
    await purge_tokens(core.database, core.clock.now() - timedelta(days=1))
    assert await core.database.fetchval(_LEFT, ended) == 0
