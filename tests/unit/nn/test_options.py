import pytest

from kilolayer.nn import TransformerConfig, TransformerEncoderLayer


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"dropout": "a"}, TypeError, "dropout must be a number, got 'a'"),
        ({"dropout": True}, TypeError, "dropout must be a number, got True"),
        ({"dropout": 1.0}, ValueError, r"dropout must be in \[0, 1\), got 1.0"),
        ({"norm_eps": "x"}, TypeError, "norm_eps must be a number, got 'x'"),
        ({"norm_eps": -1.0}, ValueError, "norm_eps must be >= 0 and finite, got -1.0"),
        ({"norm_eps": float("nan")}, ValueError, "norm_eps must be >= 0 and finite, got nan"),
        ({"bias": "no"}, TypeError, "bias must be True or False, got 'no'"),
        ({"qk_norm": 1}, TypeError, "qk_norm must be True or False, got 1"),
        ({"recompute_activations": None}, TypeError, "recompute_activations must be True or False, got None"),
        ({"scheme": None}, TypeError, "scheme must be a Scheme or its name, got None"),
        ({"skip_scale": "2.2"}, TypeError, "skip_scale must be a number, got '2.2'"),
        ({"tied_head": "yes"}, TypeError, "tied_head must be True or False, got 'yes'"),
    ],
)
def test_arguments_of_another_kind_are_named(change, error, message):
    sizes = {"vocab_size": 10, "width": 16, "num_heads": 2, "decoder_layers": 2}
    with pytest.raises(error, match=message):
        TransformerConfig(**(sizes | change))


def test_the_drop_in_layer_checks_the_same():
    with pytest.raises(TypeError, match="dropout must be a number, got 'a'"):
        TransformerEncoderLayer(16, 2, dropout="a")
    with pytest.raises(ValueError, match="norm_eps must be >= 0 and finite, got -1"):
        TransformerEncoderLayer(16, 2, layer_norm_eps=-1)
