"""Pages of Prometheus metrics, and what happened between two of them."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

Series = Mapping[frozenset[tuple[str, str]], float]


class Page(NamedTuple):
    """One reading of one server: the value of each series, by name and labels."""

    values: Mapping[str, Series]

    @classmethod
    def parse(cls, text: str) -> "Page":
        """Reads the text format.

        Raises:
            ValueError: it is something else.
        """
        from prometheus_client.parser import text_string_to_metric_families

        values: dict[str, dict[frozenset[tuple[str, str]], float]] = {}
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                values.setdefault(sample.name, {})[frozenset(sample.labels.items())] = sample.value
        return cls(values)


@dataclass(frozen=True)
class Histogram:
    """Observations of a window.

    Attributes:
        count: how many.
        total: their sum.
        buckets: for each upper bound, ascending, how many were not above it.
    """

    count: float
    total: float
    buckets: tuple[tuple[float, float], ...] = ()

    @property
    def mean(self) -> float:
        return self.total / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The value that this share of the observations does not exceed, as Prometheus estimates it."""
        rank, lower, before = share * self.count, 0.0, 0.0
        for upper, count in self.buckets:
            if count >= rank and count > before:
                if math.isinf(upper):
                    return lower
                return lower + (upper - lower) * (rank - before) / (count - before)
            lower, before = upper, count
        return lower

    def seconds_above(self, bound: float) -> float:
        """At least so much of the total lies in observations above the bound: buckets count from below."""
        total, lower, before = 0.0, 0.0, 0.0
        for upper, count in self.buckets:
            if lower >= bound:
                total += lower * (count - before)
            lower, before = upper, count
        return total


class Window(NamedTuple):
    """The same servers read twice.

    Attributes:
        pages: for each server its page before and after.
        seconds: between the readings.
    """

    pages: Sequence[tuple[Page, Page]]
    seconds: float

    def change(self, name: str, **labels: str) -> float | None:
        """How much a counter has grown, over all servers and series with these labels; None: nobody has it.

        A counter that is smaller than before belongs to a server that was started again: it counts from 0.
        """
        grown = [
            value if value < (earlier := before.values.get(name, {}).get(key, 0.0)) else value - earlier
            for before, after in self.pages
            for key, value in _matching(after, name, labels)
        ]
        return sum(grown) if grown else None

    def gauge(self, name: str, **labels: str) -> float | None:
        """The sum of a gauge's present values; None: nobody has it."""
        values = [value for _, after in self.pages for _, value in _matching(after, name, labels)]
        known = [value for value in values if not math.isnan(value)]
        return sum(known) if known else None

    def largest(self, name: str) -> float | None:
        """The largest of a gauge's present values."""
        values = [value for _, after in self.pages for _, value in _matching(after, name, {})]
        return max((value for value in values if not math.isnan(value)), default=None)

    def histogram(self, name: str, **labels: str) -> Histogram | None:
        """What was observed between the readings; None: nobody has it, or nothing was observed."""
        count, total = self.change(f"{name}_count", **labels), self.change(f"{name}_sum", **labels)
        if not count or total is None:
            return None
        bounds = {
            dict(key)["le"]
            for _, after in self.pages
            for key, _ in _matching(after, f"{name}_bucket", labels)
        }
        buckets = [(float(le), self.change(f"{name}_bucket", le=le, **labels) or 0.0) for le in bounds]
        return Histogram(count, total, tuple(sorted(buckets)))

    def ranks(self, name: str) -> int:
        """How many series there are of a counter: scheduler processes, of one that each has."""
        return sum(len(after.values.get(name, {})) for _, after in self.pages)


def _matching(
    page: Page, name: str, labels: Mapping[str, str]
) -> Iterable[tuple[frozenset[tuple[str, str]], float]]:
    wanted = set(labels.items())
    return ((key, value) for key, value in page.values.get(name, {}).items() if wanted <= key)
