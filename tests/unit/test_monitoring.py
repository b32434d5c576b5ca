"""The dashboard and the alert rules name only metrics that servers export, with labels that they have.

SGLang's are looked up in recorded pages (tests/unit/explain), ours in the list of descriptors. Both lists are
also compared.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from sglang_pd_fabric.integration.metrics import DESCRIPTORS, PREFIX
from sglang_pd_fabric.messenger.states import Held
from sglang_pd_fabric.tools.explain.page import Page
from tests.unit.explain.recordings import text

MONITORING = Path(__file__).parents[2] / "launch" / "monitoring"
NAME = re.compile(r"\bsglang(?:_pd_fabric)?:\w+")
SELECTOR = re.compile(r"\b(sglang(?:_pd_fabric)?:\w+)\{([^}]*)\}")
EQUAL = re.compile(r'(\w+)="([^"$]*)"')
PAGES = [Page.parse(text("burst", 2, role)) for role in ("prefill", "decode")]
LABELS = {f"{PREFIX}{each.name}{'_total' * (each.kind == 'counter')}": each.labels for each in DESCRIPTORS}


def dashboard() -> dict[str, Any]:
    data: dict[str, Any] = json.loads((MONITORING / "dashboard.json").read_text())
    return data


def rules() -> list[dict[str, Any]]:
    data = yaml.safe_load((MONITORING / "alerts.yaml").read_text())
    return [rule for group in data["groups"] for rule in group["rules"]]


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        yield from (target["expr"] for target in panel.get("targets", ()))
    yield from (rule["expr"] for rule in rules())


EXPRESSIONS = list(dict.fromkeys(expressions()))


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_each_metric_is_exported_with_the_labels_that_are_asked_for(expression: str) -> None:
    assert NAME.search(expression), "an expression without a metric shows nothing"
    for name in NAME.findall(expression):
        assert name in LABELS if name.startswith(PREFIX) else any(name in page.values for page in PAGES), name
    for name, selector in SELECTOR.findall(expression):
        wanted = set(EQUAL.findall(selector))
        series = [key for page in PAGES for key in page.values.get(name, {})]
        assert not wanted or any(wanted <= key for key in series), f"{name}{wanted}"


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_brackets_are_closed(expression: str) -> None:
    for opening, closing in ("()", "{}", "[]"):
        assert expression.count(opening) == expression.count(closing)


def test_panels_have_places_of_their_own_and_numbers() -> None:
    panels = dashboard()["panels"]
    places = {
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    }
    assert len(places) == sum(panel["gridPos"]["w"] * panel["gridPos"]["h"] for panel in panels)
    assert len({panel["id"] for panel in panels}) == len(panels)


def test_each_of_our_metrics_has_a_panel() -> None:
    shown = {
        name
        for panel in dashboard()["panels"]
        for each in panel.get("targets", ())
        for name in NAME.findall(each["expr"])
    }
    assert set(LABELS) <= shown


def test_alerts_have_names_of_their_own_and_say_what_to_do() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names)
    for rule in rules():
        assert rule["labels"]["severity"] in {"warning", "critical"}
        assert rule["annotations"].keys() == {"summary", "description"}


def test_what_is_exported_is_described_and_the_other_way_round() -> None:
    exported = {name for page in PAGES for name in page.values if name.startswith(PREFIX)}
    # One with labels is there when it has its first value; four are younger than the recordings.
    counters = ("failed_requests", "first_token", "grammars", "sampled_rows", "dropped_messages")
    later = {f"{PREFIX}{name}_total" for name in counters} | {f"{PREFIX}nics"}
    assert exported == set(LABELS) - later


def test_everything_that_a_messenger_holds_is_described() -> None:
    assert set(Held._fields) <= {each.name for each in DESCRIPTORS if each.kind == "gauge"}
