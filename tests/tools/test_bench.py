"""``syncline bench``: the arithmetic of its figures, what makes it fail, and one run of it all."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from syncline.cli.__main__ import INTERRUPTED, main
from syncline.cli.bench import _runner
from syncline.cli.bench._bench import Bench
from syncline.cli.bench._figures import Figure, Result, Spec, Spread
from syncline.cli.bench._live import percentile
from syncline.cli.bench._report import notes, number, rows
from syncline.cli.bench._runner import WORKLOADS, Workload
from syncline.cli.bench._scale import Scale, fields_of, payload_bytes
from syncline.cli.bench._stage import FLOOR, SYNCLINE, Stage
from syncline.server import SqliteStore, SyncServer
from syncline.sync import LocalError

TIME = Spec("time_s", "s", "a time", ratio_max=2.0)
SPEED = Spec("speed", "ops/s", "a speed", more_is_better=True, ratio_max=2.0)


# Figures.


def test_a_spread_is_the_median_and_the_ends() -> None:
    assert Spread.of([5.0, 1.0, 2.0]) == Spread(2.0, 1.0, 5.0)
    assert Spread.of([4.0, 1.0]) == Spread(2.5, 1.0, 4.0)


def test_a_ratio_says_how_many_times_the_baseline_s_time_ours_is() -> None:
    assert Figure(TIME, [3.0, 8.0], [2.0, 2.0]).ratios == [1.5, 4.0]
    assert Figure(SPEED, [100.0, 50.0], [200.0, 200.0]).ratios == [2.0, 4.0]


def test_ratios_are_taken_within_each_run_and_not_between_medians() -> None:
    # A slow moment hit both sides of the second run.
    figure = Figure(TIME, [1.0, 10.0, 3.0], [1.0, 10.0, 1.0])
    assert figure.as_json()["ratio"] == {
        "median": 1.0,
        "min": 1.0,
        "max": 3.0,
        "values": [1.0, 1.0, 3.0],
    }


@pytest.mark.parametrize("baseline", [[], [1.0], [1.0, 0.0]])
def test_there_is_no_ratio_without_a_baseline_of_every_run(baseline: list[float]) -> None:
    assert Figure(TIME, [1.0, 2.0], baseline).ratios == []


@pytest.mark.parametrize(
    ("spec", "ours", "theirs", "met"),
    [
        (TIME, 2.0, 1.0, True),
        (TIME, 2.1, 1.0, False),
        (TIME, 2.0, None, None),
        (Spec("a", "s", "", least=10), 10.0, None, True),
        (Spec("a", "s", "", least=10), 9.9, None, False),
        (Spec("a", "s", "", most=10), 10.1, None, False),
        (Spec("a", "s", "", most=10, ratio_max=1), 9.0, 8.0, False),
        (Spec("a", "s", ""), 1.0, 1.0, None),
    ],
)
def test_an_aim_is_met_by_the_median(
    spec: Spec, ours: float, theirs: float | None, met: bool | None
) -> None:
    figure = Figure(spec, [ours], [] if theirs is None else [theirs])
    assert figure.meets() is met


def test_a_percentile_is_what_so_many_of_a_hundred_do_not_exceed() -> None:
    values = [float(value) for value in range(101)]
    assert (percentile(values, 50), percentile(values, 99)) == (50.0, 99.0)
    assert percentile([7.0], 99) == 7.0


def test_a_figure_without_a_value_is_missing_unless_it_is_excused() -> None:
    result = Result("w", "a title", [TIME, SPEED], {})
    assert (result.missing, result.ok) == (["time_s", "speed"], False)
    result.add("time_s", 1.0)
    result.cannot(["speed"], "the wind was wrong")
    assert (result.missing, result.ok) == ([], True)
    assert list(notes(result)) == ["not measured: speed: the wind was wrong"]


def test_a_figure_that_was_not_announced_is_a_mistake_in_the_workload() -> None:
    with pytest.raises(KeyError):
        Result("w", "a title", [TIME], {}).add("tiem_s", 1.0)


def test_a_wrong_end_state_is_told_with_what_was_found() -> None:
    result = Result("w", "a title", [], {})
    result.equal("records", 9, 10)
    assert not result.ok
    assert list(notes(result)) == ["WRONG: records: 9, where it must be 10"]


def test_a_line_of_the_table_has_the_figure_its_spread_ratio_and_aim() -> None:
    result = Result("w", "a title", [TIME], {})
    for ours, theirs in ((1.0, 1.0), (3.0, 2.0)):
        result.add("time_s", ours)
        result.add_baseline("time_s", theirs)
    assert list(rows(result)) == [
        {
            "figure": "time_s",
            "unit": "s",
            "median": "2.00",
            "spread": "1.00 to 3.00",
            "baseline": "1.50",
            "ratio": "1.25 ×",
            "aim": "2 ×",
            "": "met",
        }
    ]


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0.00"), (0.01234, "0.0123"), (12.345, "12.35"), (12345.6, "12,346")]
)
def test_a_number_has_the_digits_that_it_deserves(value: float, shown: str) -> None:
    assert number(value) == shown


# What is written.


def test_a_record_has_six_fields_and_about_two_hundred_bytes_as_json() -> None:
    fields = fields_of(12_345, 3)
    assert list(fields) == ["id", "title", "body", "done", "priority", "updatedAt"]
    assert (len(fields["title"]), len(fields["body"])) == (40, 80)
    assert 190 <= payload_bytes(12_345, 1) <= 240
    assert fields_of(12_345, 3) != fields_of(12_345, 4)


def test_the_standard_scale_is_that_of_the_workloads_descriptions() -> None:
    scale = Scale.of(10_000)
    assert (scale.records, scale.records_many, scale.live_writes) == (10_000, 100_000, 500)
    assert (scale.burst, scale.subscribers, scale.meeting) == (200, 50, 1000)
    assert (scale.entries, scale.connections) == ((1000, 100_000), 1000)
    assert Scale.of(10_000, full=True).entries == (1000, 100_000, 1_000_000)


def test_beyond_the_standard_only_what_is_about_volume_grows() -> None:
    large, standard = Scale.of(20_000), Scale.of(10_000)
    assert (large.records, large.records_many) == (20_000, 200_000)
    assert (large.live_writes, large.connections) == (standard.live_writes, standard.connections)


# Processes.


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with Stage(tmp_path, SYNCLINE) as stage:
        yield stage
    assert list(tmp_path.iterdir()) == []


def test_a_client_that_dies_is_named_with_what_it_said(stage: Stage) -> None:
    author = stage.client("author")
    os.kill(author.pid, signal.SIGKILL)
    with pytest.raises(LocalError, match="syncline's author ended with code -9: it said nothing"):
        author.ask("count")


def test_a_client_that_fails_is_named_with_its_error_and_lives_on(stage: Stage) -> None:
    author = stage.client("author")
    with pytest.raises(LocalError, match="syncline's author failed: Unreachable: ws://127.0.0.1:1"):
        author.ask("sync", "ws://127.0.0.1:1")
    assert author.ask("count") == 0


def test_who_waits_for_a_client_hears_of_another_one_s_death(tmp_path: Path) -> None:
    with (
        pytest.raises(LocalError, match="syncline's a ended with code -9"),
        Stage(tmp_path, SYNCLINE) as stage,
    ):
        a, b = stage.clients("a", "b")
        b.ask("watch")
        b.tell("await_seen", 1)
        os.kill(a.pid, signal.SIGKILL)
        b.answer()
    assert list(tmp_path.iterdir()) == []


def test_who_waits_for_a_client_hears_of_the_server_s_death(tmp_path: Path) -> None:
    with (
        pytest.raises(LocalError, match="the server ended with code -9: it said nothing"),
        Stage(tmp_path, FLOOR) as stage,
    ):
        server, reader = stage.server(), stage.client("reader")
        assert server.process is not None
        reader.tell("await_seen", 1)
        os.kill(server.process.pid, signal.SIGKILL)
        reader.answer()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("side", [SYNCLINE, FLOOR], ids=lambda side: side.name)
def test_both_sides_play_the_same_part(tmp_path: Path, side: Any) -> None:
    with Stage(tmp_path, side) as stage:
        server = stage.server()
        a, b = stage.clients("a", "b")
        a.ask("write", 0, 2)
        a.ask("write_batch", 2, 3)
        a.ask("connect", server.url)
        b.ask("connect", server.url)
        b.ask("watch")
        began = a.ask("write_paced", 5, 2, 1000.0)
        assert b.ask("await_seen", 2) > max(began.values())
        assert set(b.ask("seen")) == {5, 6}
        b.ask("edit", [0], 1, [2**52])
        assert b.ask("wait") <= a.ask("wait")
        assert a.ask("digest") == b.ask("digest")
        assert a.ask("count") == b.ask("count") == 7
        assert a.ask("titles", [0, 1]) == [fields_of(0, 1)["title"], fields_of(1)["title"]]


# The command.


def only(monkeypatch: pytest.MonkeyPatch, run: Callable[[Bench, Result], None]) -> None:
    """Let there be one workload, with one figure."""
    workload = Workload("w1", "of the test", [TIME], run, ("records",))
    monkeypatch.setattr(_runner, "WORKLOADS", (workload,))


def lines(capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    documents = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return {document["workload"]: document for document in documents}


def test_a_wrong_end_state_ends_in_a_bad_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(bench: Bench, result: Result) -> None:
        result.add("time_s", 1.0)
        result.equal("records", 9, 10)

    only(monkeypatch, run)
    assert main(["bench", "--json"]) == 1
    assert lines(capsys)["w1"]["problems"] == ["records: 9, where it must be 10"]


def test_a_missing_figure_ends_in_a_bad_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    only(monkeypatch, lambda bench, result: None)
    assert main(["bench"]) == 1
    assert "MISSING: time_s" in capsys.readouterr().out


def test_a_workload_that_fails_says_why_and_ends_in_a_bad_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(bench: Bench, result: Result) -> None:
        with bench.stage(SYNCLINE) as stage:
            stage.client("author").ask("sync", "ws://127.0.0.1:1")

    only(monkeypatch, run)
    assert main(["bench", "--json"]) == 1
    (problem,) = lines(capsys)["w1"]["problems"]
    assert problem.startswith("w1 was not finished: syncline's author failed: ")


@pytest.mark.parametrize("word", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_and_no_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, word: signal.Signals
) -> None:
    pids: list[int] = []

    def run(bench: Bench, result: Result) -> None:
        with bench.stage(FLOOR) as stage:
            server, author = stage.server(), stage.client("author")
            assert server.process is not None
            pids.extend((server.process.pid, author.pid))
            os.kill(os.getpid(), word)
            author.ask("connect", server.url)
            author.ask("await_seen", 1)

    only(monkeypatch, run)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["bench", "--json"]) == INTERRUPTED
    assert list(tmp_path.iterdir()) == []
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


def test_an_unknown_workload_is_refused_with_those_that_there_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["bench", "w9"]) == 1
    assert "there is no workload w9; known: w1, w2, w3" in capsys.readouterr().err


def test_everything_but_what_needs_its_process_is_measured_against_a_running_server(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with SyncServer(SqliteStore(tmp_path / "server.db"), port=0) as server:
        words = ["--server", server.url, "--records", "100", "--runs", "1", "--json"]
        assert main(["bench", "w1", "w2", "w6", "w7", "w8", *words]) == 0
    found = lines(capsys)
    assert list(found) == ["w1", "w2", "w6", "w7", "w8"]
    for document in found.values():
        assert (document["ok"], document["missing"], document["problems"]) == (True, [], [])
    excused = {name: sorted(document["not_measured"]) for name, document in found.items()}
    assert excused["w2"] == ["server_peak_mib"]
    assert "idle_connection_kib" in excused["w6"] and "disk_server_times" in excused["w6"]
    assert found["w7"]["figures"] == {}
    assert "ratio" not in found["w1"]["figures"]["drain_ops_s"]
    assert "ratio" in found["w8"]["figures"]["get_ops_s"]


FIGURES_BESIDE_THE_FLOOR = {
    "w1": {"offline_ops_s", "offline_batch_ops_s", "drain_ops_s"},
    "w5": {"reconcile_s", "edits_s"},
}


def test_a_quick_run_measures_us_and_the_floor(capsys: pytest.CaptureFixture[str]) -> None:
    names = list(FIGURES_BESIDE_THE_FLOOR)
    assert main(["bench", *names, "--records", "100", "--runs", "1", "--json"]) == 0
    found = lines(capsys)
    for name, figures in FIGURES_BESIDE_THE_FLOOR.items():
        assert set(found[name]["figures"]) == figures
        for figure in found[name]["figures"].values():
            (ours,), (theirs,), (ratio,) = (
                figure["values"],
                figure["baseline"]["values"],
                figure["ratio"]["values"],
            )
            assert ratio in (ours / theirs, theirs / ours)


@pytest.mark.long
def test_a_quick_run_of_everything_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--records", "200", "--runs", "2", "--json"]) == 0
    found = lines(capsys)
    for workload in WORKLOADS:
        document = found[workload.name]
        assert set(document["figures"]) == {spec.name for spec in workload.specs}
        assert document["not_measured"] == {}
    assert [detail["entries"] for detail in found["w6"]["details"]] == [20, 2000]
    assert len(found["w2"]["figures"]["bootstrap_s"]["values"]) == 2


@pytest.mark.long
def test_the_largest_log_is_measured_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "w6", "w7", "--records", "100", "--runs", "2", "--full", "--json"]) == 0
    found = lines(capsys)
    assert found["w6"]["sizes"]["entries"] == [10, 1000, 10_000]
    assert len(found["w7"]["figures"]["storm_s"]["values"]) == 2
