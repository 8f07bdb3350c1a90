"""Transactions, usage and the billing account as clients read them, against a ledger whose entries are known."""

from __future__ import annotations

import itertools
from datetime import timedelta
from typing import Any

import pytest

from controlplane.ledger.accounts import set_floor
from controlplane.ledger.credits import GrantCredit, RefundCharge
from controlplane.ledger.holds import HoldOrder, PlaceHold
from controlplane.ledger.transfers import Basis, Subject, charge, record
from controlplane.store.contract import Reads, Tx
from tests.api.test_access import key
from tests.fixtures.app import ROOT, ServedApi

ORG = "default"
MICRO_USD_A_SECOND = 10


class Charge:
    """A dispatch of a call that ran for some seconds at 0.036 USD an hour."""

    def __init__(self, number: int, function: str, seconds: int, project: str, labels: dict[str, str]) -> None:
        self._number, self._seconds = number, seconds
        self._subject = Subject(
            kind="FunctionCall", project=project, name=f"c{number}", uid=f"fnc_{project}_{number}",
            function_uid=f"fn_{function}", function_name=function, labels=labels,
        )  # fmt: skip

    def reads(self) -> Reads:
        return Reads()

    def apply(self, tx: Tx) -> str:
        basis = Basis(
            dispatch=1, period_start=tx.now - timedelta(seconds=self._seconds), period_end=tx.now,
            rate_micro_usd_per_hour=36_000, shares=1, pricebook="test",
            offering=f"class-{self._subject.function_name}",
        )  # fmt: skip
        transfer = charge(ORG, basis.cost_micro_usd, self._subject, basis)
        record(tx, transfer)
        return transfer.id


@pytest.fixture
async def ledger(api: ServedApi) -> ServedApi:
    """1 USD of credit; 30 s of f (team ml) and 20 s of g (team web) in one project, 10 s of f in another; a refund."""
    write = api.core.writer.write
    await write(GrantCredit(ORG, "welcome", 1_000_000, "for a start"))
    first = await write(Charge(1, "f", 30, "default", {"team": "ml", "nodus.dev/created-by": "ada"}))
    await write(Charge(2, "g", 20, "default", {"team": "web", "nodus.dev/created-by": "bob"}))
    await write(Charge(3, "f", 10, "other", {}))
    await write(RefundCharge(first, "sorry", 100, "it was our fault"))
    expires_at = api.core.clock.now() + timedelta(hours=1)
    await write(PlaceHold(HoldOrder(id="hold/1", org=ORG, amount_micro_usd=250_000, expires_at=expires_at)))
    return api


async def read(api: ServedApi, path: str, **request: Any) -> dict[str, Any]:
    answer = await api.client.get(f"{ROOT}/{path}", **request)
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_transactions_tell_what_moved_and_the_balance_after_it(ledger: ServedApi) -> None:
    items = (await read(ledger, "transactions"))["items"]
    assert [(item["type"], item["amountUSD"], item["balanceAfterUSD"]) for item in items] == [
        ("Refund", "0.0001", "0.9995"),
        ("Capture", "-0.0001", "0.9994"),
        ("Capture", "-0.0002", "0.9995"),
        ("Capture", "-0.0003", "0.9997"),
        ("Grant", "1.00", "1.00"),
    ]
    assert items[3]["reference"] == {"kind": "FunctionCall", "name": "c1", "uid": "fnc_default_1"}
    assert items[3]["entry"] == "charge/fnc_default_1/1"
    assert items[4]["bucket"] == {"kind": "Grant", "creditGrant": "welcome"}
    for item in items:
        assert await read(ledger, f"transactions/{item['metadata']['name']}") == item


async def test_pages_of_transactions_hold_each_once_with_the_same_balance(ledger: ServedApi) -> None:
    whole = (await read(ledger, "transactions"))["items"]
    found, token = [], ""
    for _ in range(len(whole)):
        page = await read(ledger, "transactions", params={"limit": "2", "continue": token})
        found += page["items"]
        token = page["metadata"].get("continue", "")
        if not token:
            break
        # What is written meanwhile is on no later page, and moves no balance there.
        await ledger.core.writer.write(GrantCredit(ORG, f"later-{len(found)}", 7, ""))
    assert found == whole
    captures = (await read(ledger, "transactions", params={"fieldSelector": "type=Capture"}))["items"]
    assert captures == [item for item in found if item["type"] == "Capture"]
    nothing = await read(ledger, "transactions", params={"until": "2020-01-01"})
    assert nothing["items"] == []


async def test_usage_is_told_by_function_with_its_interval_and_rate(ledger: ServedApi) -> None:
    items = (await read(ledger, "usagerecords"))["items"]
    assert [(item["object"]["name"], item["quantity"], item["amountUSD"]) for item in items] == [
        ("f", "10", "0.0001"),
        ("g", "20", "0.0002"),
        ("f", "30", "0.0003"),
    ]
    first = items[-1]
    assert first["object"]["kind"] == "Function"
    assert (first["functionCall"], first["meter"], first["segment"]) == ("c1", "ComputeSeconds", "Running")
    assert (first["rate"], first["offering"]) == ({"usd": "0.036", "per": "hour"}, "class-f")
    transactions = (await read(ledger, "transactions"))["items"]
    assert first["transaction"] == transactions[3]["metadata"]["name"]
    assert await read(ledger, f"usagerecords/{first['metadata']['name']}") == first
    selected = await read(ledger, "usagerecords", params={"fieldSelector": "object.kind=Function,object.name=g"})
    assert [item["functionCall"] for item in selected["items"]] == ["c2"]


@pytest.mark.parametrize(
    ("keys", "rows"),
    [
        ("kind,meter", [({"kind": "Function", "meter": "ComputeSeconds"}, "60", "0.0006")]),
        ("project", [({"project": "default"}, "50", "0.0005"), ({"project": "other"}, "10", "0.0001")]),
        ("label:team", [({"label:team": "ml"}, "30", "0.0003"), ({"label:team": "web"}, "20", "0.0002"),
                        ({}, "10", "0.0001")]),
        ("member", [({"member": "ada"}, "30", "0.0003"), ({"member": "bob"}, "20", "0.0002"), ({}, "10", "0.0001")]),
        ("segment,offering,rank", [({"segment": "Running", "offering": "class-f"}, "40", "0.0004"),
                                   ({"segment": "Running", "offering": "class-g"}, "20", "0.0002")]),
    ],
)  # fmt: skip
async def test_usage_is_added_up_by_any_of_its_keys(
    ledger: ServedApi, keys: str, rows: list[tuple[dict[str, str], str, str]]
) -> None:
    summary = await read(ledger, "usagerecords", params={"groupBy": keys, "since": "7d"})
    assert summary["kind"] == "UsageSummary"
    assert [(row["group"], row["quantity"], row["amountUSD"]) for row in summary["rows"]] == rows


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ({"groupBy": "planet"}, 422),
        ({"groupBy": "label:a'b"}, 422),
        ({"groupBy": "project,kind,meter,day,segment,member"}, 422),
        ({"since": "yesterday"}, 400),
        ({"until": "99999999999d"}, 400),
        ({"labelSelector": "team=ml"}, 400),
        ({"fieldSelector": "amountUSD=1"}, 400),
        ({"limit": "many"}, 400),
        ({"continue": "made-up"}, 400),
        ({"watch": "true"}, 405),
    ],
)
async def test_what_cannot_be_meant_is_refused(ledger: ServedApi, query: dict[str, str], status: int) -> None:
    assert (await ledger.client.get(f"{ROOT}/usagerecords", params=query)).status_code == status


async def test_the_account_tells_what_is_left_reserved_and_owed(ledger: ServedApi) -> None:
    account = await read(ledger, "billingaccounts/default")
    status = account["status"]
    assert (status["availableUSD"], status["grantsUSD"]) == ("0.7495", "0.7495")
    assert (status["pendingUSD"], status["arrearsUSD"]) == ("0.25", "0.00")
    assert status["monthToDate"] == {"spentUSD": "0.0005"}
    assert {each["type"]: each["status"] for each in status["conditions"]} == {
        "CreditLimited": "False", "PaymentMethodPresent": "False",
    }  # fmt: skip
    assert (await read(ledger, "billingaccounts"))["items"][0]["status"] == status
    await set_floor(ledger.core.database, ORG, 0)
    for number in itertools.count(10):
        if number == 12:
            break
        await ledger.core.writer.write(Charge(number, "f", 60_000, "default", {}))
    status = (await read(ledger, "billingaccounts/default"))["status"]
    # Work that was done is charged whatever is left: 1.20 USD against 0.9995.
    assert (status["availableUSD"], status["arrearsUSD"]) == ("0.00", "0.2005")
    assert status["conditions"][0]["reason"] == "Limited"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "billingaccounts/default/sessions"),
        ("POST", "billingaccounts/default/redemptions"),
        ("GET", "billingaccounts/default/deals"),
        ("PATCH", "billingaccounts/default"),
        ("POST", "topups"),
    ],
)
async def test_what_needs_a_card_says_that_none_is_taken(api: ServedApi, method: str, path: str) -> None:
    answer = await api.client.request(method, f"{ROOT}/{path}", json={})
    told = answer.json()
    assert (answer.status_code, told["reason"]) == (503, "PaymentsNotConfigured")
    assert "grant credit" in told["fix"]
    reader = await key(api, ["billing:read"], ["*"])
    if method != "GET":
        refused = await api.client.request(method, f"{ROOT}/{path}", json={}, headers=reader)
        assert refused.json()["details"]["missingScope"] == "billing:write"
    assert (await read(api, "topups"))["items"] == []


async def test_grants_of_credit_tell_what_became_of_them(ledger: ServedApi) -> None:
    await ledger.core.writer.write(GrantCredit(ORG, "trial", 500, "", timedelta(hours=1)))
    items = (await read(ledger, "creditgrants"))["items"]
    assert [item["metadata"]["name"] for item in items] == ["trial", "welcome"]
    trial, welcome = items
    # It expires first, so it pays first: for 600 micro-USD of calls, of which a refund gave some back.
    assert (trial["status"]["spentUSD"], trial["status"]["remainingUSD"]) == ("0.0005", "0.00")
    assert (welcome["spec"]["amountUSD"], welcome["spec"]["source"]) == ("1.00", "Operator")
    status = welcome["status"]
    assert (status["spentUSD"], status["remainingUSD"], status["heldUSD"]) == ("0.0001", "0.9999", "0.25")
    assert welcome["spec"]["reason"] == "for a start"
    assert await read(ledger, "creditgrants/welcome") == welcome
    assert (await ledger.client.get(f"{ROOT}/creditgrants/nobody")).status_code == 404
    for selector, count in (("spec.source=Operator", 2), ("spec.source!=Operator", 0)):
        assert len((await read(ledger, "creditgrants", params={"fieldSelector": selector}))["items"]) == count
    first = await read(ledger, "creditgrants", params={"limit": "1"})
    rest = await read(ledger, "creditgrants", params={"limit": "1", "continue": first["metadata"]["continue"]})
    assert [*first["items"], *rest["items"]] == items
    await ledger.core.writer.write(GrantCredit(ORG, "later", 300, "", timedelta(hours=2)))
    account = await read(ledger, "billingaccounts/default")
    later = await read(ledger, "creditgrants/later")
    assert account["status"]["nextGrantExpiry"] == {
        "expirationTime": later["spec"]["expirationTime"], "remainingUSD": later["status"]["remainingUSD"],
    }  # fmt: skip
    limited = await key(ledger, ["billing:read"], ["other"])
    for path in ("creditgrants", "creditgrants/welcome", "billingaccounts"):
        assert (await ledger.client.get(f"{ROOT}/{path}", headers=limited)).status_code == 403


async def test_money_is_shown_to_those_who_may_see_it(ledger: ServedApi) -> None:
    stranger = await key(ledger, ["functions:read"], ["*"])
    limited = await key(ledger, ["billing:read"], ["other"])
    for plural in ("transactions", "usagerecords", "billingaccounts"):
        refused = await ledger.client.get(f"{ROOT}/{plural}", headers=stranger)
        assert refused.json()["details"]["missingScope"] == "billing:read"
    [transaction] = (await read(ledger, "transactions", headers=limited))["items"]
    assert (transaction["project"], "balanceAfterUSD" in transaction) == ("other", False)
    [record] = (await read(ledger, "usagerecords", headers=limited))["items"]
    assert record["functionCall"] == "c3"
    theirs = (await read(ledger, "usagerecords"))["items"][-1]["metadata"]["name"]
    assert (await ledger.client.get(f"{ROOT}/usagerecords/{theirs}", headers=limited)).status_code == 404
    assert (await ledger.client.get(f"{ROOT}/billingaccounts/default", headers=limited)).status_code == 403
