"""What the rules read, where parts of it are not numbers."""

import numpy as np
import pyarrow as pa
import pytest
from test_rules import recording

from kilolayer.diagnosis import diagnose
from kilolayer.diagnosis.evidence import known_max, known_median
from kilolayer.recording import Recording


def test_medians_and_maxima_of_nothing_known_are_nan_without_a_warning():
    some, none = np.array([3.0, np.nan, 1.0]), np.array([np.nan, np.nan])
    assert (known_median(some), known_max(some)) == (2.0, 3.0)
    assert np.isnan([known_median(none), known_max(none), known_median(none[:0]), known_max(none[:0])]).all()


@pytest.mark.parametrize("shape", [{"skip": None}, {"skip": 1.0}, {"skip": 1.0, "placement": "post"}], ids=str)
@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0])
@pytest.mark.parametrize("stat", ["rms", "sample_cosine", "l2_norm", "update_ratio", "loss"])
def test_every_rule_lives_with_a_statistic_that_is_no_number(shape, value, stat):
    whole = recording(**shape)
    table = whole.rows
    is_hit = np.array(table["stat"].to_pylist()) == stat
    values = np.where(is_hit, value, table["value"].to_numpy())
    place = table.column_names.index("value")
    damaged = table.set_column(place, "value", pa.array(values, table.schema.field("value").type))
    diagnosis = diagnose(Recording(damaged, whole.sites, whole.facts))
    assert len(diagnosis.findings) <= 3
