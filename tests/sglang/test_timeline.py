"""The picture of a real request: real servers that trace, a real prompt in chunks."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from sglang_pd_fabric.tools import cli

pytestmark = [pytest.mark.sglang, pytest.mark.nightly]


def test_a_real_chunked_request_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("sglang", reason="SGLang is not installed")
    out = tmp_path / "timeline.svg"
    assert cli.main(["timeline", "--out", str(out), "--tokens", "500", "--chunk", "128"]) == 0
    texts = [
        text.text or "" for text in ET.fromstring(out.read_text()).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert sum(text.startswith("pass ") for text in texts) == 4
    assert {"layer 1", "layer 4", "metadata"} <= set(texts)
    assert "4 forward passes" in capsys.readouterr().out
