"""The cycle collector is paused while things are built, and looks less often afterwards."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from chmv_assets.collector import collector_paused, freeze_built


@pytest.fixture
def kept_thresholds() -> Iterator[None]:
    before = gc.get_threshold()
    yield
    gc.unfreeze()
    gc.set_threshold(*before)


def test_collector_is_off_while_paused_and_on_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="broken"), collector_paused():
        assert not gc.isenabled()
        raise ValueError("broken")
    assert gc.isenabled()


@pytest.mark.usefixtures("kept_thresholds")
@pytest.mark.parametrize(("before", "after"), [(700, 10_000), (50_000, 50_000), (0, 0)])
def test_freezing_raises_the_first_threshold_only_and_never_lowers_it(before: int, after: int) -> None:
    _, *older = gc.get_threshold()
    gc.set_threshold(before, *older)
    freeze_built()
    assert gc.get_threshold() == (after, *older)
    assert gc.get_freeze_count() > 0
