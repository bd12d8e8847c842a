"""One file: find out whose it is, and check everything in it."""

from __future__ import annotations

from pathlib import Path

from ._file import DataFile
from ._replica import check_replica
from ._report import Report
from ._server import check_server


def verify_file(path: str | Path) -> Report:
    """Recompute everything that a server's or a replica's file holds.

    Never raises for what is in the file: a report that is not ``ok`` names table and row. A file
    in use is read at one moment.
    """
    report = Report(str(path))
    with DataFile(path, report.problems) as file:
        report.kind = file.kind()
        if report.kind == "unknown":
            return report
        file.check_pages()
        if report.kind == "server":
            check_server(file, report)
        else:
            check_replica(file, report)
    return report
