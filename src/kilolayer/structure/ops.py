"""Names of operations by what they do to a signal; in-place variants go by the same name."""

from __future__ import annotations

VIEWS = frozenset({
    "view", "_unsafe_view", "reshape", "_reshape_alias", "expand", "expand_as", "permute", "transpose", "t",
    "unsqueeze", "squeeze", "flatten", "unflatten", "contiguous", "clone", "detach", "alias", "lift_fresh",
    "lift_fresh_copy", "_to_copy", "to", "copy", "view_copy", "as_strided", "view_as", "view_as_real",
    "view_as_complex", "_conj", "resolve_conj", "unbind", "split", "split_with_sizes", "unsafe_split",
    "unsafe_split_with_sizes", "chunk", "slice", "select", "narrow", "roll", "constant_pad_nd", "repeat",
    "movedim", "swapaxes", "_autocast_to_reduced_precision", "_autocast_to_full_precision", "channel_shuffle",
    "pixel_shuffle", "pixel_unshuffle", "im2col", "flip",
})  # fmt: skip
"""Show the same numbers in another shape, order or precision, or part of them."""

WHOLE_VIEWS = VIEWS - {
    "unbind", "split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes", "chunk", "slice", "select",
    "narrow", "constant_pad_nd", "as_strided", "repeat", "im2col",
}  # fmt: skip
"""Views that keep every number once, so that statistics agree."""

DROPOUTS = frozenset({"native_dropout", "dropout", "feature_dropout", "alpha_dropout"})

POOLS = frozenset({
    "mean", "avg_pool1d", "avg_pool2d", "avg_pool3d", "_adaptive_avg_pool2d", "_adaptive_avg_pool3d",
    "adaptive_avg_pool1d", "max_pool1d", "max_pool2d", "max_pool2d_with_indices", "max_pool3d_with_indices",
    "adaptive_max_pool2d", "adaptive_max_pool3d", "mkldnn_max_pool2d", "mkldnn_max_pool3d", "amax", "max",
    "index", "index_select", "gather", "upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d",
    "upsample_bilinear2d", "upsample_bicubic2d", "upsample_linear1d", "upsample_trilinear3d",
    "_upsample_nearest_exact2d",
})  # fmt: skip
"""Change how many positions there are, without weights."""

MATRICES = frozenset({
    "mm", "bmm", "matmul", "linear", "addmm", "baddbmm", "addmv", "mv", "dot", "convolution", "_convolution",
    "conv1d", "conv2d", "conv3d", "mkldnn_convolution", "cudnn_convolution", "mkldnn_linear", "_mkldnn_linear",
    "miopen_convolution", "convolution_overrideable", "thnn_conv2d", "_slow_conv2d_forward", "conv_depthwise3d",
    "_conv_depthwise2d", "bilinear", "_trilinear", "_addmm_activation", "_grouped_mm", "_scaled_mm", "einsum",
    "_weight_int8pack_mm", "_weight_int4pack_mm", "_int_mm",
})  # fmt: skip

ATTENTION = frozenset({
    "scaled_dot_product_attention", "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu", "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention", "_scaled_dot_product_fused_attention_overrideable",
    "_scaled_dot_product_attention_math", "_scaled_dot_product_attention_math_for_mps", "_flash_attention_forward",
    "_efficient_attention_forward", "flex_attention",
})  # fmt: skip
"""Attention in one operation, from query, key and value to what is mixed."""

SOFTMAX = frozenset({"_softmax", "softmax", "_safe_softmax"})

RECURRENT = frozenset({
    "lstm", "gru", "rnn_tanh", "rnn_relu", "mkldnn_rnn_layer", "_cudnn_rnn", "miopen_rnn", "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell", "lstm_mps", "lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell",
})  # fmt: skip
RECURRENT_CELLS = frozenset(name for name in RECURRENT if name.endswith("_cell"))

FOURIER = frozenset({"_fft_r2c", "_fft_c2c", "_fft_c2r", "stft"})

FUSED_NORMS = {
    "native_layer_norm": "layer", "layer_norm": "layer", "native_group_norm": "group", "group_norm": "group",
    "native_batch_norm": "batch", "batch_norm": "batch", "cudnn_batch_norm": "batch", "miopen_batch_norm": "batch",
    "_native_batch_norm_legit": "batch", "_native_batch_norm_legit_no_training": "batch",
    "_native_batch_norm_legit_functional": "batch", "_batch_norm_with_update": "batch",
    "_batch_norm_no_update": "batch", "_batch_norm_impl_index": "batch", "batch_norm_elemt": "batch",
    "instance_norm": "instance", "_fused_rms_norm": "rms", "rms_norm": "rms",
}  # fmt: skip
"""Norms in one operation, and their kinds."""

ACTIVATIONS = {
    "relu": "relu", "gelu": "gelu", "silu": "silu", "tanh": "tanh", "sigmoid": "sigmoid", "elu": "elu",
    "leaky_relu": "leaky_relu", "hardtanh": "hardtanh", "relu6": "relu6", "hardswish": "hardswish",
    "hardsigmoid": "hardsigmoid", "mish": "mish", "softplus": "softplus", "prelu": "prelu",
    "_prelu_kernel": "prelu", "celu": "celu", "selu": "selu", "log_sigmoid_forward": "logsigmoid",
    "rrelu_with_noise": "rrelu", "softshrink": "softshrink", "hardshrink": "hardshrink", "sin": "sin",
    "erf": "erf", "clamp_min": "relu", "threshold": "relu", "_addmm_activation": "relu", "glu": "glu",
}  # fmt: skip
"""Elementwise nonlinearities, and the names people use."""

ELEMENTWISE = frozenset({
    "add", "sub", "rsub", "mul", "div", "neg", "pow", "sqrt", "rsqrt", "reciprocal", "square", "abs", "clamp",
    "clamp_min", "clamp_max", "maximum", "minimum", "exp", "log", "true_divide",
})  # fmt: skip

REDUCTIONS = frozenset({
    "mean", "sum", "var", "var_mean", "std", "std_mean", "linalg_vector_norm", "norm", "frobenius_norm",
})  # fmt: skip
ROOTED_REDUCTIONS = frozenset({"std", "std_mean", "linalg_vector_norm", "norm", "frobenius_norm"})
"""Reductions that end in a square root."""

SHAPE_ONLY = frozenset({
    "empty_like", "zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_empty", "new_full",
    "new_empty_strided", "rand_like", "randn_like", "randint_like", "zero", "fill", "bernoulli", "normal",
    "uniform", "empty", "zeros", "ones", "full", "arange", "random", "exponential",
})  # fmt: skip
"""Their results know the shape of a tensor argument, never its numbers (``bernoulli`` of numbers excepted, a mask)."""

KNOWN_FUSED = frozenset({
    "_transformer_encoder_layer_fwd", "_native_multi_head_attention", "_triton_multi_head_attention",
})  # fmt: skip
"""Operations of torch that hold whole layers."""
