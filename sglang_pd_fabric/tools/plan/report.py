"""A plan, the published figures and a fit, as text for people and as plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any

from sglang_pd_fabric.tools.plan.constants import FITTED, Constants
from sglang_pd_fabric.tools.plan.published import ASSUMED, Row

_WIDTH = 100
_SHOWN = (
    ("TTFT mean", "ttft_mean_ms", "{:.0f}"),
    ("p95", "ttft_p95_ms", "{:.0f}"),
    ("TPOT mean", "tpot_mean_ms", "{:.1f}"),
    ("p95", "tpot_p95_ms", "{:.1f}"),
    ("in time", "met", "{:.1%}"),
    ("goodput", "goodput_qps", "{:.2f}"),
)


def plan_text(plan: dict[str, Any]) -> str:
    """A plan: the model, the transfer, the servers, and what users see."""
    model, transfer, servers = plan["model"], plan["transfer"], plan["servers"]
    carries, tokens = plan["server_carries_qps"], transfer["prompt_tokens"]
    lines = [
        f"{model['name']}: {model['parameters'] / 1e9:.0f} G parameters, "
        f"{model['active_parameters'] / 1e9:.0f} G for "
        f"a token, {model['layers']} layers",
        f"KV cache: {model['kv_bytes_per_token']:,} bytes a token, "
        f"{model['kv_bytes_per_token_and_layer']:,} in a layer; "
        f"a decode server keeps {model['kv_tokens_of_a_decode_server']:,} tokens",
        "",
        f"a prompt of {tokens:,} tokens, {transfer['prompt_bytes'] / 1e6:.0f} MB of KV cache, computes for "
        f"{transfer['prefill_ms']:.0f} ms",
        f"  a layer of its first chunk: {transfer['layer_compute_ms']:.2f} ms to compute, "
        f"{transfer['layer_transfer_ms']:.2f} ms to send {transfer['layer_bytes'] / 1e6:.1f} MB",
        f"  shows behind its last pass: {transfer['exposed_layerwise_ms']:.2f} ms layer by layer, "
        f"{transfer['exposed_chunkwise_ms']:.2f} ms chunk by chunk",
        "",
        "requests a second that one server carries within the objectives: "
        + ", ".join(f"{name.removesuffix('_qps')} {value:.2f}" for name, value in carries.items()),
        f"decode servers for one prefill server: {plan['decode_servers_for_one_prefill']:.2f}",
        f"fleet: {servers['prefill']} prefill, {servers['decode']} decode, {servers['gpus']} GPUs",
        "",
    ]
    rows: list[tuple[str, ...]] = [("", "", *(head for head, _, _ in _SHOWN))]
    for kind in ("forecast", "simulated"):
        rows += [(name, kind, *_cells(figures)) for name, figures in plan[kind].items()]
    lines += ["milliseconds; share of requests in time; requests a second in time", *_table(rows)]
    if not plan["simulated"]:
        lines.append("not simulated: too many servers for that, or --requests 0")
    return "\n".join(lines)


def published_data(rows: Sequence[Row], constants: Constants) -> list[dict[str, Any]]:
    """Each row with its prediction and error."""
    return [
        {
            "source": row.source,
            "what": row.what,
            "unit": row.unit,
            "published": row.published,
            "at_least": row.least,
            "predicted": row.predict(constants),
            "error": row.error(constants),
            "stated_error": row.within,
        }
        for row in rows
    ]


def published_text(rows: Sequence[Row], constants: Constants) -> str:
    """A table for each source, with what had to be assumed."""
    lines: list[str] = []
    for source in dict.fromkeys(row.source for row in rows):
        lines += [source, *wrap(f"assumed: {ASSUMED[source]}", _WIDTH)] if source in ASSUMED else [source]
        cells: list[tuple[str, ...]] = [("", "published", "predicted", "", "error", "stated", "")]
        cells += [
            _row(each) for each in published_data([row for row in rows if row.source == source], constants)
        ]
        lines += [*_table(cells), ""]
    return "\n".join(lines).rstrip()


def fit_text(before: Constants, after: Constants) -> str:
    """The constants as they are and as they were found again."""
    was, now = asdict(before), asdict(after)
    rows = [("constant", "in use", "found")]
    rows += [(name, f"{was[name]:.4g}", f"{now[name]:.4g}" if name in FITTED else "held") for name in was]
    return "\n".join(_table(rows))


def _row(each: dict[str, Any]) -> tuple[str, ...]:
    return (
        each["what"],
        f"{'> ' if each['at_least'] else ''}{each['published']:g}",
        f"{each['predicted']:.4g}",
        each["unit"],
        f"{each['error']:+.1%}",
        f"{each['stated_error']:.0%}",
        "" if abs(each["error"]) <= each["stated_error"] else "outside",
    )


def _cells(figures: dict[str, Any]) -> tuple[str, ...]:
    if not figures["settled"]:
        return ("never settles", *[""] * (len(_SHOWN) - 2), "0.00")
    return tuple(form.format(figures[key]) for _, key, form in _SHOWN)


def _table(rows: Iterable[tuple[str, ...]]) -> list[str]:
    rows = list(rows)
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
