"""The demo's story, told to people: aligned lines, in a pipe the same as on a terminal."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from syncline.sync import HEADER_COLLECTION

from ._output import cell

if TYPE_CHECKING:
    from rich.console import Console


def tell(story: Mapping[str, Any], shown: str) -> None:
    from rich.console import Console

    # Lines are never folded: what is piped must stay one line, and terminals fold by themselves.
    console = Console(highlight=False, soft_wrap=True, markup=False, emoji=False)
    _heading(console, "A shopping list on two devices, synced through a server")
    _lines(console, [[f"todo/{id_}", _fields(fields)] for id_, fields in story["start"].items()])

    _heading(console, "Offline, both write; neither sees the other (times in UTC)")
    _lines(
        console,
        [
            [
                _clock(one["updated_at"]),
                one["device"],
                one["record"],
                "deleted" if one["fields"] is None else _fields(one["fields"]),
            ]
            for one in story["offline"]
        ],
    )

    _heading(console, "They come back")
    _lines(
        console,
        [
            [one["device"], f"sends {one['sent']}", f"receives {one['received']}"]
            for one in story["syncs"]
        ],
    )

    _heading(console, "What the log says (the same on the server and on both devices)")
    head = ["seq", "op", "time", "what", "had seen", "outcome"]
    rows = [
        [
            str(one["seq"]),
            f"{one['client']} {one['n']}",
            _clock(one["updated_at"]),
            _what(one),
            _vector(one["had_seen"]),
            one["outcome"],
        ]
        for one in story["log"]
    ]
    _lines(console, [head, *rows], head=True)

    _heading(console, "Who won, and why")
    milk = story["settled"]["milk"]
    _lines(console, [["todo/milk", _fields(milk), "different fields: both edits stand"]])
    for one in story["conflicts"]:
        console.print()
        _tell_conflict(console, one)

    _heading(console, "One value is put back")
    resolved = story["resolved"]
    console.print(f"  $ {resolved['command']}")
    _lines(
        console,
        [
            [
                name,
                f"open conflicts {resolved['open_before'][name]} -> {resolved['open_after'][name]}",
                _fields(fields),
            ]
            for name, fields in resolved["record"].items()
        ],
    )

    _heading(console, "The proof, from the closed files")
    converged = "equal to the server's, byte for byte" if story["converged"] else "NOT EQUAL"
    verified = "every hash, number and row recomputed" if story["verified"] else "DOES NOT HOLD"
    _lines(
        console,
        [
            ["both replicas", converged, f"sha256 {story['sha256'][:16]}"],
            ["the chain", verified, f"head   {story['head'][:16]}"],
        ],
    )
    _tell_files(console, story, shown)


def _tell_conflict(console: Console, one: Mapping[str, Any]) -> None:
    field = "alive or deleted" if one["field"] is None else one["field"]
    console.print(f"  {one['record']}  {field}")
    _lines(
        console,
        [
            [
                f"  {side}",
                "deleted" if it["value"] is None else _value(it["value"]),
                _clock(it["updated_at"]),
                f"by {it['client']} {it['n']}, which had seen {_vector(it['had_seen'])}",
            ]
            for side, it in (("won", one["won"]), ("lost", one["lost"]))
        ],
    )
    console.print("    Neither had seen the other, so the later time wins. To put back what lost:")
    console.print(f"    {one['put_back']}")


def _tell_files(console: Console, story: Mapping[str, Any], shown: str) -> None:
    console.print()
    if not shown:
        console.print("The files are gone; 'syncline demo --keep DIR' leaves them to look at.")
        return
    server, laptop, phone = story["files"]
    _heading(console, "Look at the files")
    for command in (
        f"log {server}",
        f"conflicts {phone}",
        f"records {laptop}",
        f"verify {server}",
        f"serve --data {server}",
    ):
        console.print(f"  syncline {command}")


def _heading(console: Console, text: str) -> None:
    console.print()
    console.print(text, style="bold")


def _lines(console: Console, rows: list[list[str]], *, head: bool = False) -> None:
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    for number, row in enumerate(rows):
        padded = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        console.print(f"  {'  '.join(padded)}".rstrip(), style="dim" if head and not number else "")


def _clock(iso: str) -> str:
    return datetime.fromisoformat(iso).astimezone(UTC).strftime("%H:%M:%S")


def _vector(vector: Mapping[str, int]) -> str:
    return ", ".join(f"{client} {n}" for client, n in sorted(vector.items())) or "-"


def _value(value: Any) -> str:
    if isinstance(value, dict):
        return _fields(value)
    return f'"{cell(value)}"' if isinstance(value, str) else cell(value)


def _fields(fields: Mapping[str, Any]) -> str:
    """As the command line takes them."""
    return " ".join(f"{name}={_value(value)}" for name, value in fields.items())


def _what(row: Mapping[str, Any]) -> str:
    what = str(row["what"])
    if row["fields"] is None or HEADER_COLLECTION in what:
        return what
    return f"{what} {_fields(row['fields'])}"
