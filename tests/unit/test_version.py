"""The version guard."""

import pytest

from sglang_pd_fabric.integration.version import SUPPORTED_SGLANG, UnsupportedSGLangError, require_supported


def test_the_sglang_that_we_pin_is_accepted() -> None:
    require_supported(SUPPORTED_SGLANG)


@pytest.mark.parametrize("installed", ["0.5.22", "0.5.24", "0.6.0", "0.5.23.post1"])
def test_another_sglang_is_refused_with_both_versions_and_the_fix(installed: str) -> None:
    with pytest.raises(UnsupportedSGLangError) as caught:
        require_supported(installed)
    assert installed in str(caught.value)
    assert f"pip install 'sglang=={SUPPORTED_SGLANG}'" in str(caught.value)
