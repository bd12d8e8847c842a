"""The history reader: what it gives, and that a broken file is named by line before any play."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path

import pytest
from tests.tools.histories import header_of, kinto, made_up, synced, write_history, written

from syncline.cli.replay import Delete, Put, Sync, Write, read_history
from syncline.sync import BadHistory, NotFound

GOOD = [
    written("d1", 1000, ["put", "a/b.txt", {"size": 1}], ["delete", "c"]),
    synced("d1"),
    written("d2", 900, ["put", "c", {}]),
]


@pytest.mark.parametrize("name", ["plain.jsonl", "zipped.jsonl.gz"])
def test_a_history_is_read_in_order_plain_or_gzipped(tmp_path: Path, name: str) -> None:
    history = read_history(write_history(tmp_path / name, GOOD))
    first, second, third = history.steps
    assert isinstance(first, Write) and isinstance(third, Write)
    assert (first.device, first.at) == ("d1", 1000)
    assert first.changes == [Put("a/b.txt", {"size": 1}), Delete("c")]
    assert second == Sync(do="sync", device="d1")
    assert (third.device, third.at, third.changes) == ("d2", 900, [Put("c", {})])
    assert history.devices == ("d1", "d2")
    assert (history.writes, history.changes, history.syncs) == (2, 3, 1)


def test_the_shared_history_has_the_counts_that_its_page_names() -> None:
    history = read_history(kinto())
    assert (len(history.devices), history.writes, history.changes) == (50, 3068, 8746)
    assert history.syncs == 3447


BROKEN = {
    "{": r"Invalid JSON: .*",
    "\n": r"Invalid JSON: .*",
    "[]": r".*",
    '{"do": "jump", "device": "d1"}': r".*'jump'.*",
    '{"do": "sync"}': r"device: Field required",
    '{"do": "sync", "device": "a b"}': r"device: device 'a b' is not an id: .*",
    '{"do": "sync", "device": 7}': r"device: device 7 is not an id: .*",
    '{"do": "sync", "device": "d1", "at": 3}': r"at: Extra inputs are not permitted",
    '{"do": "write", "device": "d1", "at": "3", "changes": [["delete", "a"]]}': (
        r"at: Input should be a valid integer"
    ),
    '{"do": "write", "device": "d1", "at": -1, "changes": [["delete", "a"]]}': r"at: .*",
    '{"do": "write", "device": "d1", "at": 9223372036854776, "changes": [["delete", "a"]]}': (
        r"at: .*"
    ),
    '{"do": "write", "device": "d1", "at": 1, "changes": []}': r"changes: List should have .*",
    '{"do": "write", "device": "d1", "at": 1, "changes": [["delete", "a"], ["move", "a"]]}': (
        r'changes\.1: it is none of \["put", id, \{fields\}\], \["patch", .*'
    ),
    '{"do": "write", "device": "d1", "at": 1, "changes": [["put", "", {}]]}': (
        r"changes\.0: record id must not be empty"
    ),
    '{"do": "write", "device": "d1", "at": 1, "changes": [["put", "a", {"n": NaN}]]}': (
        r"changes\.0: .*"
    ),
    '{"do": "write", "device": "d1", "at": 1, "changes": [["put", "a", {"n": 9e999}]]}': (
        r"changes\.0: .*"
    ),
    '{"do": "write", "device": "d1", "at": 1, "changes": [["put", "a", {"$n": 1}]]}': (
        r"changes\.0: .*reserved.*"
    ),
    json.dumps(written("d1", 1, ["put", "a", {"text": "x" * (1 << 20)}])): (
        r"changes\.0: the fields have \d+ bytes, the most is 1048576"
    ),
    json.dumps(written("d1", 1, ["put", "a", {"text": "x" * (5 << 20)}])): (
        r"it is longer than 4194304 bytes"
    ),
}


@pytest.mark.parametrize("line", BROKEN, ids=lambda line: line[:70])
def test_a_broken_line_is_named_with_its_number_and_the_reason(tmp_path: Path, line: str) -> None:
    path = write_history(tmp_path / "history.jsonl", GOOD)
    lines = path.read_text().splitlines()
    lines[2] = line.rstrip("\n")
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(BadHistory) as caught:
        read_history(path)
    assert caught.value.detail == {"path": str(path), "line": 3}
    assert re.fullmatch(
        re.escape(f"{path}, line 3: ") + BROKEN[line], caught.value.reason, re.DOTALL
    )


def test_a_line_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    path = write_history(tmp_path / "history.jsonl", GOOD)
    path.write_bytes(path.read_bytes().replace(b"a/b.txt", b"a/\xff.txt"))
    with pytest.raises(BadHistory, match="line 2: "):
        read_history(path)


@pytest.mark.parametrize("name", ["devices", "records", "writes", "changes", "syncs"])
def test_a_file_that_lacks_what_its_header_promises_is_refused(tmp_path: Path, name: str) -> None:
    path = write_history(tmp_path / "history.jsonl", GOOD)
    header = header_of(GOOD)
    promised = {**header, name: header[name] + 1}
    path.write_text(path.read_text().replace(json.dumps(header), json.dumps(promised)))
    reason = f"line 1: the header says {promised[name]} {name}, but the file has {header[name]}"
    with pytest.raises(BadHistory, match=reason):
        read_history(path)


def test_a_header_of_another_version_is_refused(tmp_path: Path) -> None:
    path = write_history(tmp_path / "history.jsonl", GOOD)
    path.write_text(path.read_text().replace('"history": 1', '"history": 2'))
    with pytest.raises(BadHistory, match="line 1: history: Input should be 1"):
        read_history(path)


def test_gzip_data_that_ends_early_or_is_damaged_is_a_bad_history(tmp_path: Path) -> None:
    whole = gzip.compress(write_history(tmp_path / "whole.jsonl", made_up(1)).read_bytes())
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(BadHistory, match=r"line \d+: the gzip data is broken"):
        read_history(cut)
    flipped = bytearray(whole)
    flipped[-6] ^= 1
    cut.write_bytes(flipped)
    with pytest.raises(BadHistory, match=r"line \d+: the gzip data is broken"):
        read_history(cut)


def test_an_empty_file_and_a_missing_one_say_so(tmp_path: Path) -> None:
    empty = tmp_path / "empty.jsonl"
    empty.touch()
    with pytest.raises(BadHistory, match="its first line must be a header"):
        read_history(empty)
    with pytest.raises(NotFound, match="there is no history"):
        read_history(tmp_path / "missing.jsonl")
