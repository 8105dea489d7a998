"""Random programs recorded and replayed with new data. `random_programs.py` runs any number of them."""

from __future__ import annotations

import pytest
import random_programs


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("seed", range(30))
def test_random_program(seed: int) -> None:
    random_programs.check(seed)
