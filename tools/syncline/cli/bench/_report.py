"""What people read of the results: a table per workload, and plain lines in a pipe."""

from __future__ import annotations

from collections.abc import Iterator

from ._figures import Figure, Result, Spread

COLUMNS = ("figure", "unit", "median", "spread", "baseline", "ratio", "aim", "")


def number(value: float) -> str:
    """With as many digits as a figure of its size deserves."""
    if value and abs(value) < 0.1:
        return f"{value:.4f}"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:,.2f}"


def spread(of: Spread) -> str:
    return f"{number(of.low)} to {number(of.high)}" if of.low != of.high else ""


def rows(result: Result) -> Iterator[dict[str, str]]:
    """One line per figure that was measured."""
    for name, figure in result.figures.items():
        if figure.values:
            yield {"figure": name, "unit": figure.spec.unit, **_cells(figure)}


def _cells(figure: Figure) -> dict[str, str]:
    ours = Spread.of(figure.values)
    cells = {"median": number(ours.median), "spread": spread(ours)}
    cells["baseline"] = number(Spread.of(figure.baseline).median) if figure.baseline else ""
    cells["ratio"] = f"{Spread.of(figure.ratios).median:.2f} ×" if figure.ratios else ""
    spec, aims = figure.spec, []
    if spec.ratio_max is not None:
        aims.append(f"{spec.ratio_max:g} ×")
    if spec.least is not None:
        aims.append(f"≥ {number(spec.least)}")
    if spec.most is not None:
        aims.append(f"≤ {number(spec.most)}")
    cells["aim"] = ", ".join(aims)
    cells[""] = {True: "met", False: "not met", None: ""}[figure.meets()]
    return cells


def notes(result: Result) -> Iterator[str]:
    """What is to be said beside the figures."""
    for why in sorted(set(result.not_measured.values())):
        names = [name for name, reason in result.not_measured.items() if reason == why]
        yield f"not measured: {', '.join(names)}: {why}"
    if result.missing:
        yield f"MISSING: {', '.join(result.missing)}"
    for problem in result.problems:
        yield f"WRONG: {problem}"
