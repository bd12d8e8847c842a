"""What the commands print: one JSON document, a table for people, or plain lines for a pipe.

Every command that prints data builds plain dicts and hands them to an ``Output``. On a terminal
they become a table; piped, lines of tab-separated values without a head; with ``--json`` one
document, in which bytes are ``{"$bytes": hex}``. Control characters never reach a terminal.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import click

_F = TypeVar("_F", bound=Callable[..., Any])
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def json_option(command: _F) -> _F:
    """``--json`` for a command; it gets ``as_json``."""
    return click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")(command)


def plain(value: Any) -> Any:
    """``value`` as JSON can hold it."""
    if isinstance(value, bytes):
        return {"$bytes": value.hex()}
    if isinstance(value, Mapping):
        return {key: plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [plain(inner) for inner in value]
    return value


def cell(value: Any) -> str:
    """``value`` on one line: text as it is, anything else as JSON, nothing for None."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False)
    if text.isprintable():
        return text
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def when(micros: int | None) -> str | None:
    """Microseconds since the Unix epoch as ISO 8601, in UTC; beyond the year 9999, the number."""
    if micros is None:
        return None
    try:
        return (_EPOCH + timedelta(microseconds=micros)).isoformat()
    except OverflowError:
        return str(micros)


def on_terminal() -> bool:
    return sys.stdout.isatty()


@dataclass(frozen=True)
class Output:
    """Where and how a command prints."""

    as_json: bool = False

    def document(self, value: Any) -> None:
        """One JSON document."""
        click.echo(
            json.dumps(plain(value), ensure_ascii=False, indent=2 if on_terminal() else None)
        )

    def one(self, data: Mapping[str, Any]) -> None:
        """One thing: its names and values."""
        if self.as_json:
            self.document(data)
        elif on_terminal():
            _print_table(None, ([name, cell(value)] for name, value in data.items()))
        else:
            for name, value in data.items():
                click.echo(f"{cell(name)}\t{cell(value)}")

    def many(self, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
        """Many things of a kind. ``columns`` are what a table shows; JSON shows all there is."""
        if self.as_json:
            self.document(list(rows))
        elif on_terminal():
            _print_table(columns, ([cell(row.get(name)) for name in columns] for row in rows))
        else:
            for row in rows:
                click.echo("\t".join(cell(row.get(name)) for name in columns))

    def say(self, sentence: str) -> None:
        """A sentence for people; nothing in JSON or in a pipe."""
        if not self.as_json and on_terminal():
            click.echo(cell(sentence))

    @contextmanager
    def busy(self, sentence: str) -> Iterator[None]:
        """Show people that something takes its time; on stderr, and only on a terminal."""
        if self.as_json or not sys.stderr.isatty():
            yield
            return
        from rich.console import Console

        with Console(stderr=True).status(sentence):
            yield


def _print_table(columns: Sequence[str] | None, rows: Iterable[Sequence[str]]) -> None:
    # Rich takes a tenth of a second to import, which a pipe need not wait for.
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, show_header=columns is not None, pad_edge=False)
    for name in columns or ("", ""):
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*(Text(text) for text in row))
    Console().print(table)
