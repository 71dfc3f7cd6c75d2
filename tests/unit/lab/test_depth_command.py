from kilolayer.lab.depth_command import draw_depths
from kilolayer.lab.depth_results import Standing


def test_a_grid_in_which_nothing_trains_has_a_picture_too():
    standings = [
        Standing(scheme, layers, {1e-3: float("nan")}, {1e-3: ("stuck",)})
        for scheme in ("post-ln", "pre-ln")
        for layers in (8, 32)
    ]
    assert draw_depths(standings).startswith(b"\x89PNG")
