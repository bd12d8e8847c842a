"""Sessions in JSON files: whole files or none, locks between processes, and what is no session."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from syncline.client.sessions import AgentDefinition, AgentSession, AgentState, JsonSessionStore
from syncline.sync import (
    DiskFull,
    InvalidSessionFile,
    InvalidValue,
    ReadOnly,
    SessionConflict,
    SessionNotFound,
)

HELPER = AgentDefinition("helper")


def fresh(id_: str = "s1") -> AgentSession:
    return AgentSession.fresh(id_, HELPER, AgentState(metadata={"n": 0}))


@pytest.fixture
def store(tmp_path: Path) -> JsonSessionStore:
    return JsonSessionStore(tmp_path / "deep" / "sessions")


def names(store: JsonSessionStore) -> list[str]:
    return sorted(path.name for path in store.folder.iterdir())


def test_R2_11_the_folder_is_made_and_a_session_is_one_file_in_it(store: JsonSessionStore) -> None:
    assert names(store) == []
    store.create(fresh())
    assert names(store) == ["s1.json", "s1.lock"]
    row = json.loads((store.folder / "s1.json").read_text(encoding="utf-8"))
    assert (row["format"], row["header"]["version"], row["state"]["metadata"]) == (1, 1, {"n": 0})


NO_SESSIONS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "Expecting value"),
    "cut": (b'{"format": 1, "header"', "Expecting ':'"),
    "no text": (b"\xff\xfe\x00", "utf"),
    "a list": (b"[]", "format"),
    "of another format": (b'{"format": 2}', "format is not 1"),
    "without a state": (b'{"format": 1, "header": {}, "definition": {}}', "data of a session"),
    "deep": (b"[" * 100_000, "recursion"),
}


@pytest.mark.parametrize("what", NO_SESSIONS)
def test_R2_11_a_file_that_is_no_session_is_told_of_and_never_overwritten(
    store: JsonSessionStore, what: str
) -> None:
    content, problem = NO_SESSIONS[what]
    created = store.create(fresh())
    path = store.folder / "s1.json"
    path.write_bytes(content)
    for ask in (
        lambda: store.load("s1"),
        lambda: store.save(created),
        lambda: store.list_headers(),
    ):
        with pytest.raises(InvalidSessionFile) as raised:
            ask()
        assert raised.value.detail["path"] == str(path)
        assert problem in raised.value.detail["problem"]
        assert path.read_bytes() == content
    with pytest.raises(SessionConflict):
        store.create(fresh())
    assert path.read_bytes() == content
    assert store.exists("s1")


def test_R2_11_a_file_of_another_session_or_version_is_no_session(store: JsonSessionStore) -> None:
    store.create(fresh())
    path = store.folder / "s1.json"
    text = path.read_text(encoding="utf-8")
    (store.folder / "s2.json").write_text(text, encoding="utf-8")
    with pytest.raises(InvalidSessionFile, match="version 1 of session s1"):
        store.load("s2")
    path.write_text(text.replace('"version": 1', '"version": 0'), encoding="utf-8")
    with pytest.raises(InvalidSessionFile, match="version 0"):
        store.load("s1")


BAD_IDS: list[Any] = [
    "",
    ".",
    "..",
    "../up",
    "a/b",
    "a\\b",
    "-a",
    "_a",
    "a.b",
    "a\n",
    "ä",
    "a\0",
    5,
]


@pytest.mark.parametrize("id_", BAD_IDS, ids=repr)
def test_R2_11_an_id_that_is_none_never_becomes_a_path(store: JsonSessionStore, id_: Any) -> None:
    for ask in (store.load, store.exists, store.delete):
        with pytest.raises(InvalidValue):
            ask(id_)
    assert names(store) == []


@pytest.mark.skipif(os.name == "nt", reason="links need rights there")
def test_R2_11_a_link_that_leads_out_of_the_folder_is_not_followed(
    store: JsonSessionStore, tmp_path: Path
) -> None:
    outside = JsonSessionStore(tmp_path / "outside")
    outside.create(fresh())
    (store.folder / "s1.json").symlink_to(outside.folder / "s1.json")
    for ask in (store.load, store.delete):
        with pytest.raises(InvalidValue, match="leads out of"):
            ask("s1")
    with pytest.raises(InvalidValue, match="leads out of"):
        store.create(fresh())
    assert names(outside) == ["s1.json", "s1.lock"]


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_R2_11_a_write_that_breaks_off_leaves_the_old_file_and_nothing_beside_it(
    store: JsonSessionStore, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    created = store.create(fresh())

    def fails(*args: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, step, fails)
    with pytest.raises(DiskFull, match="No space left"):
        store.save(created.suspended())
    monkeypatch.undo()
    assert store.load("s1") == created
    assert names(store) == ["s1.json", "s1.lock"]
    assert store.save(created.suspended()).version == 2


def test_R2_11_the_new_file_is_on_disk_before_it_takes_the_name(
    store: JsonSessionStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    created = store.create(fresh())
    steps: list[str] = []
    synced, replaced = os.fsync, os.replace

    def fsync(fd: int) -> None:
        steps.append("fsync")
        synced(fd)

    def replace(source: Path, target: Path) -> None:
        steps.append(f"{source.name} -> {target.name}")
        replaced(source, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "replace", replace)
    store.save(created)
    assert steps == ["fsync", "s1.tmp -> s1.json", *([] if os.name == "nt" else ["fsync"])]


def test_what_a_dead_process_left_half_written_is_written_over(store: JsonSessionStore) -> None:
    created = store.create(fresh())
    (store.folder / "s1.tmp").write_bytes(b"half")
    assert store.load("s1") == created
    assert [header.id for header in store.list_headers()] == ["s1"]
    store.save(created)
    assert names(store) == ["s1.json", "s1.lock"]


def test_other_files_of_the_folder_are_nobodys_sessions(store: JsonSessionStore) -> None:
    (store.folder / "notes.txt").write_text("mine")
    (store.folder / ".hidden.json").write_text("mine")
    assert store.list_headers() == []


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="the administrator may all")
def test_a_folder_that_cannot_be_made_is_told_of(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(ReadOnly):
        JsonSessionStore(tmp_path / "sessions")


def test_a_folder_that_is_gone_is_told_of(store: JsonSessionStore) -> None:
    store.folder.rmdir()
    assert store.load("s1") is None
    with pytest.raises(ReadOnly, match="its folder is gone"):
        store.create(fresh())


def test_a_path_that_is_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DiskFull, match="file"):
        JsonSessionStore(tmp_path / "file")


COUNTER = """
import sys
from syncline.client.sessions import JsonSessionStore
from syncline.sync import SessionConflict
store, done = JsonSessionStore(sys.argv[1]), 0
while done < 10:
    session = store.load("s1")
    n = session.state.metadata["n"]
    try:
        store.save(session.with_state(session.state.with_metadata("n", n + 1)))
    except SessionConflict:
        continue
    done += 1
"""


def test_R2_9_processes_that_count_in_one_file_lose_no_count(store: JsonSessionStore) -> None:
    store.create(fresh())
    other = subprocess.Popen([sys.executable, "-c", COUNTER, str(store.folder)])
    counted = 0
    while other.poll() is None or counted < 10:
        kept = store.load("s1")
        assert kept is not None
        n = kept.state.metadata["n"]
        with contextlib.suppress(SessionConflict):
            store.save(kept.with_state(kept.state.with_metadata("n", n + 1)))
            counted += 1
    assert other.wait(60) == 0
    kept = store.load("s1")
    assert kept is not None
    assert (kept.version, kept.state.metadata["n"]) == (11 + counted, 10 + counted)


def test_R2_11_a_deleted_session_leaves_no_file_of_it(store: JsonSessionStore) -> None:
    created = store.create(fresh())
    store.delete("s1")
    assert names(store) == ["s1.lock"]
    with pytest.raises(SessionNotFound):
        store.save(created)
