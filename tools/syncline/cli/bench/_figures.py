"""Figures: values of several runs, their median and spread, and the ratio to a baseline.

A baseline (the floor, or bare ``sqlite3``) is measured in the same runs, so a ratio is taken within
each run and its median is reported: a slow moment of the machine hits both sides. A ratio always
says how many times the baseline's *time* (or bytes) ours is: 1 is as good, 2 is twice as slow.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Spread:
    """The median of several values, and how far they lie apart."""

    median: float
    low: float
    high: float

    @staticmethod
    def of(values: Sequence[float]) -> Spread:
        return Spread(statistics.median(values), min(values), max(values))

    def as_json(self) -> dict[str, float]:
        return {"median": self.median, "min": self.low, "max": self.high}


@dataclass(frozen=True)
class Spec:
    """What a figure is: its unit, whether more of it is better, and what we aim at.

    ``ratio_max`` bounds the ratio to the baseline, ``least`` and ``most`` the value itself.
    """

    name: str
    unit: str
    says: str
    more_is_better: bool = False
    ratio_max: float | None = None
    least: float | None = None
    most: float | None = None
    baseline: str | None = "floor"

    def ratio(self, ours: float, baseline: float) -> float:
        """Ours as a multiple of the baseline's time, whichever way the figure counts."""
        return baseline / ours if self.more_is_better else ours / baseline

    def aims(self) -> dict[str, float]:
        aims = {"ratio_max": self.ratio_max, "least": self.least, "most": self.most}
        return {name: aim for name, aim in aims.items() if aim is not None}


@dataclass
class Figure:
    """One figure's values, run by run, and the baseline's in the same runs."""

    spec: Spec
    values: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """Run by run; empty where nothing of the kind was measured beside it."""
        if len(self.baseline) != len(self.values) or not all((*self.values, *self.baseline)):
            return []
        pairs = zip(self.values, self.baseline, strict=True)
        return [self.spec.ratio(ours, theirs) for ours, theirs in pairs]

    def meets(self) -> bool | None:
        """Whether the aims are met by the medians; None when there is none that can be judged."""
        verdicts: list[bool] = []
        if self.values:
            median = statistics.median(self.values)
            if self.spec.least is not None:
                verdicts.append(median >= self.spec.least)
            if self.spec.most is not None:
                verdicts.append(median <= self.spec.most)
        if self.spec.ratio_max is not None and self.ratios:
            verdicts.append(statistics.median(self.ratios) <= self.spec.ratio_max)
        return all(verdicts) if verdicts else None

    def as_json(self) -> dict[str, Any]:
        document: dict[str, Any] = {"unit": self.spec.unit, **Spread.of(self.values).as_json()}
        document["values"] = self.values
        if self.baseline:
            baseline = {**Spread.of(self.baseline).as_json(), "values": self.baseline}
            document["baseline"] = {"is": self.spec.baseline, **baseline}
        if self.ratios:
            document["ratio"] = {**Spread.of(self.ratios).as_json(), "values": self.ratios}
        if self.spec.aims():
            document["aim"] = {**self.spec.aims(), "met": self.meets()}
        return document


class Result:
    """What one workload found out: its figures, what was wrong, what could not be measured."""

    def __init__(self, name: str, title: str, specs: Sequence[Spec], sizes: dict[str, Any]) -> None:
        self.name = name
        self.title = title
        self.sizes = sizes
        self.figures = {spec.name: Figure(spec) for spec in specs}
        self.problems: list[str] = []
        self.not_measured: dict[str, str] = {}
        self.details: list[dict[str, float]] = []
        """What stands behind the figures, where they are of several sizes."""
        self.seconds = 0.0

    def add(self, name: str, value: float) -> None:
        """Ours, of one more run. A name that the workload did not announce is a KeyError."""
        self.figures[name].values.append(value)

    def add_baseline(self, name: str, value: float) -> None:
        self.figures[name].baseline.append(value)

    def expect(self, holds: bool, otherwise: str) -> None:
        """An end state: what is not as it must be is a problem, and ends in a bad exit code."""
        if not holds:
            self.problems.append(otherwise)

    def equal(self, what: str, found: object, wanted: object) -> None:
        self.expect(found == wanted, f"{what}: {found!r}, where it must be {wanted!r}")

    def cannot(self, names: Sequence[str], why: str) -> None:
        """These cannot be measured here, which is said and is no failure."""
        self.not_measured.update(dict.fromkeys(names, why))

    @property
    def missing(self) -> list[str]:
        """Figures without a value that nobody has excused."""
        return [
            name
            for name, figure in self.figures.items()
            if not figure.values and name not in self.not_measured
        ]

    @property
    def ok(self) -> bool:
        return not self.problems and not self.missing

    def as_json(self) -> dict[str, Any]:
        return {
            "workload": self.name,
            "title": self.title,
            "ok": self.ok,
            "seconds": round(self.seconds, 3),
            "sizes": self.sizes,
            "figures": {name: f.as_json() for name, f in self.figures.items() if f.values},
            **({"details": self.details} if self.details else {}),
            "missing": self.missing,
            "not_measured": self.not_measured,
            "problems": self.problems,
        }
