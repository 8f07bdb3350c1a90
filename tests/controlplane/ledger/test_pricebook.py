"""Price books are read strictly, and the one whose time has come is in force."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from activities.offerings import BOOK_ANNOTATION, OfferingKeeper, PublishOfferings
from controlplane.identity.bootstrap import bootstrap
from controlplane.kinds.offering import OFFERING
from controlplane.ledger.pricebook import BOOK_BYTES_MAX, book_at, load_books
from controlplane.machinery.quantities import parse_money
from controlplane.settings import Settings
from tests.fixtures.calls import Calls

EXAMPLE = Path(__file__).resolve().parents[3] / "deploy" / "pricebooks" / "example.yaml"
CPU = {"name": "cpu-1x2", "host": {"cpu": "1", "memory": "2Gi"}, "regionClass": "us", "rateUSDPerHour": "0.036"}
GPU = {
    **CPU,
    "name": "l4",
    "count": 1,
    "accelerator": {"id": "l4-24g", "family": "L4", "displayName": "L4", "memory": "24Gi", "vendor": "NVIDIA"},
    "available": 2,
}


def book(version: str, valid_from: str, *offerings: dict[str, Any]) -> dict[str, Any]:
    return {"version": version, "validFrom": valid_from, "offerings": list(offerings)}


def written(folder: Path, *books: dict[str, Any]) -> Path:
    path = folder / "books.json"
    path.write_text(json.dumps({"books": books}))
    return path


def test_the_example_has_gpu_classes_of_several_makers_and_prices_each(tmp_path: Path) -> None:
    [example] = load_books(EXAMPLE)
    families = {offering.accelerator.family for offering in example.offerings if offering.accelerator}
    assert {"T4", "L4", "A100", "H100", "H200", "B200", "MI300X"} <= families
    assert any(offering.interruptible for offering in example.offerings)
    assert all(parse_money(offering.rate_usd_per_hour) > 0 for offering in example.offerings)
    # YAML and JSON of the same book are the same book.
    path = tmp_path / "book.json"
    path.write_text(json.dumps(yaml.safe_load(EXAMPLE.read_text()), default=lambda moment: moment.isoformat()))
    assert load_books(path) == [example]


def test_a_book_is_in_force_from_its_time_until_a_later_one_is(tmp_path: Path) -> None:
    path = written(tmp_path, book("b", "2026-06-01T00:00:00Z"), book("a", "2026-01-01T00:00:00Z"))
    books = load_books(path)
    june = datetime(2026, 6, 1, tzinfo=UTC)
    moments = (datetime(2025, 1, 1, tzinfo=UTC), june - timedelta(microseconds=1), june)
    found = [book_at(books, moment) for moment in moments]
    assert [each and each.version for each in found] == [None, "a", "b"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"rateUSDPerHour": 0.036}, "rateUSDPerHour: Input should be a valid string"),
        ({"rateUSDPerHour": "-1"}, "rateUSDPerHour"),
        ({"rateUSDPerHour": "0.0000001"}, "rateUSDPerHour"),
        ({"count": 1}, "must have `count` if it has an `accelerator`"),
        ({"name": "Not A Name"}, "name: String should match pattern"),
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
        ({"available": -1}, "available"),
    ],
)
def test_a_book_that_cannot_be_right_is_refused_by_file_and_field(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    path = written(tmp_path, book("a", "2026-01-01T00:00:00Z", {**CPU, **change}))
    with pytest.raises(ValueError, match=r"books\.0\.offerings\.0") as refused:
        load_books(path)
    assert told in str(refused.value)
    assert str(path) in str(refused.value)


@pytest.mark.parametrize(
    ("books", "told"),
    [
        ([book("a", "2026-01-01T00:00:00Z", CPU, CPU)], "must price each offering once: cpu-1x2"),
        ([book("a", "2026-01-01T00:00:00Z"), book("a", "2026-02-01T00:00:00Z")], "a version of its own"),
        ([book("a", "2026-01-01T00:00:00Z"), book("b", "2026-01-01T00:00:00Z")], "a `validFrom` of its own"),
        ([book("a", "2026-01-01T00:00:00")], "timezone"),
        ([], "at least 1 item"),
    ],
)
def test_books_that_contradict_each_other_are_refused(tmp_path: Path, books: list[Any], told: str) -> None:
    with pytest.raises(ValueError, match="price book") as refused:
        load_books(written(tmp_path, *books))
    assert told in str(refused.value)


def test_what_is_no_book_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "book.yaml"
    path.write_text("books: [")
    with pytest.raises(ValueError, match="must be YAML or JSON"):
        load_books(path)
    path.write_bytes(b"#" * (BOOK_BYTES_MAX + 1))
    with pytest.raises(ValueError, match="must be smaller"):
        load_books(path)


async def offerings(calls: Calls) -> dict[str, dict[str, Any]]:
    rows = await calls.database.fetch("SELECT name, doc FROM objects WHERE kind = 'Offering'")
    return {row["name"]: json.loads(row["doc"]) for row in rows}


async def test_offerings_follow_the_book_in_force_and_nothing_else_is_written(calls: Calls, tmp_path: Path) -> None:
    cheaper = {**GPU, "rateUSDPerHour": "0.03"}
    later = book("b", "2026-11-29T13:00:00Z", cheaper)
    books = load_books(written(tmp_path, book("a", "2026-01-01T00:00:00Z", CPU, GPU), later))
    keeper = OfferingKeeper(calls.database, calls.writer, calls.clock, books)
    await keeper.publish()
    first = await offerings(calls)
    assert first.keys() == {"cpu-1x2", "l4"}
    assert OFFERING.spec is not None
    assert OFFERING.status is not None
    for document in first.values():
        assert OFFERING.spec.model_validate(document["spec"]).to_wire() == document["spec"]
        assert OFFERING.status.model_validate(document["status"]).to_wire() == document["status"]
        assert document["metadata"]["annotations"] == {BOOK_ANNOTATION: "a"}
    told = {name: (each["status"]["availability"], each["status"]["availableNow"]) for name, each in first.items()}
    assert told == {"cpu-1x2": ("Unavailable", 0), "l4": ("Available", 2)}
    await keeper.publish()
    assert await offerings(calls) == first
    calls.clock.advance(3_600)
    await keeper.publish()
    second = await offerings(calls)
    assert second.keys() == {"l4"}
    assert second["l4"]["status"]["priceUSDPerHour"]["from"] == "0.03"
    assert second["l4"]["metadata"]["annotations"] == {BOOK_ANNOTATION: "b"}
    assert second["l4"]["metadata"]["uid"] == first["l4"]["metadata"]["uid"]
    assert await calls.writer.write(PublishOfferings("default", None, ["l4"])) == 1
    assert await offerings(calls) == {}


async def test_every_organisation_is_shown_the_offerings(calls: Calls, tmp_path: Path) -> None:
    await bootstrap(calls.writer, Settings(secret_key="4d" * 32), calls.clock, "acme")
    books = load_books(written(tmp_path, book("a", "2026-01-01T00:00:00Z", CPU)))
    await OfferingKeeper(calls.database, calls.writer, calls.clock, books).publish()
    rows = await calls.database.fetch("SELECT org FROM objects WHERE kind = 'Offering' ORDER BY org")
    assert [row["org"] for row in rows] == ["acme", "default"]
