"""The operator's commands about money, as an operator types them."""

from __future__ import annotations

import asyncio

from controlplane.store.database import Database
from tests.fixtures.commands import run_workers


async def command(database_url: str, *words: str) -> tuple[int, str]:
    """Exit code and all output of one command."""
    return await run_workers(database_url, "ledger", *words)


async def test_an_operator_grants_limits_and_verifies(database_url: str, database: Database) -> None:
    assert await command(database_url, "verify") == (0, "the ledger balances\n")
    for _ in range(2):
        code, told = await command(database_url, "grant", "25", "--name", "welcome")
        assert (code, "available  25.00" in told, "floor      none" in told) == (0, True, True), told
    code, told = await command(database_url, "grant", "1", "--name", "trial", "--expires", "720h")
    assert (code, "available  26.00" in told) == (0, True), told
    for amount, lifetime in (("1", "1h"), ("2", "720h")):
        code, told = await command(database_url, "grant", amount, "--name", "trial", "--expires", lifetime)
        assert (code, 'the grant "trial" is there already: of 1.00 USD, good for' in told) == (1, True), told
        assert "fix: Give another grant another name" in told
    refused: list[tuple[tuple[str, ...], int, str]] = [
        (("grant", "1", "--name", "x", "--org", "nowhere"), 2, 'there is no organisation "nowhere"'),
        (("limit", "--org", "nowhere"), 2, 'there is no organisation "nowhere"'),
        (("grant", "1", "--name", "No Name", "--expires", "soon"), 2, ""),
        (("refund", "charge/x/1", "1.00", "--name", "sorry"), 1, "fix:"),
        (("grant", "0.0000001", "--name", "tiny"), 2, "decimal USD"),
    ]
    answers = await asyncio.gather(*(command(database_url, *words) for words, _, _ in refused))
    for (words, wanted, says), (code, told) in zip(refused, answers, strict=True):
        assert (code, says in " ".join(told.split())) == (wanted, True), (words, told)
    code, told = await command(database_url, "limit")
    assert (code, "floor      0.00" in told) == (0, True), told
    await database.execute(
        "SET session_replication_role = replica; UPDATE ledger_accounts SET debits_micro_usd = 1; "
        "RESET session_replication_role"
    )
    code, told = await command(database_url, "verify")
    assert code == 1
    assert "grants/default tells debits of 0.000001 USD and its transfers 26.00 USD" in told
