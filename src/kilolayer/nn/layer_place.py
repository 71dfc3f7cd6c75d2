"""Where a layer stands: under which scheme, in which stack, at which index, in a network of which depth."""

from __future__ import annotations

from dataclasses import dataclass

from kilolayer.schemes import BranchScales, Depth, Scheme, Stack, get_scheme


@dataclass(frozen=True)
class LayerPlace:
    """All that a scheme asks for, to say what the branches of a layer get.

    Attributes:
        scheme: the scheme.
        stack: ``"encoder"`` or ``"decoder"``.
        depth: of the network; ``None`` in a template, whose stack will tell it.
        layer_index: from 0; ``None`` in a template, under a scheme whose layers differ.
        is_given: whether the depth was given rather than assumed, so that a stack has to agree with it.
    """

    scheme: Scheme
    stack: Stack
    depth: Depth | None
    layer_index: int | None = 0
    is_given: bool = False

    def scales(self, num_branches: int) -> tuple[BranchScales, ...]:
        """What each branch of the layer gets; a template without depth or index gets plain residual branches."""
        if self.depth is None or self.layer_index is None:
            return (BranchScales(),) * num_branches
        per_layer = self.depth.branches_per_layer(self.stack)
        if per_layer != num_branches:
            raise ValueError(f"a layer of {num_branches} branches cannot stand in a stack of {per_layer} per layer")
        first = self.layer_index * per_layer
        return tuple(self.scheme.at(self.depth, first + index, self.stack) for index in range(per_layer))

    def check_known(self, layer_type: str) -> None:
        """Raises ``ValueError`` in a template without depth or index, which cannot run."""
        if self.depth is not None and self.layer_index is not None:
            return
        index = " and layer_index= (its place in that stack, from 0)" if self.scheme.varies_by_layer else ""
        raise ValueError(
            f"a lone {layer_type} under scheme {self.scheme.name!r} needs num_layers= (the layers of the stack it will "
            f"stand in){index}, because its scales depend on them; TransformerEncoder(layer, num_layers) and "
            "TransformerDecoder(layer, num_layers) tell it to the layers they build"
        )


def resolve_scheme(scheme: str | Scheme | None, *, norm_first: bool) -> Scheme:
    """The scheme a layer was asked for: post-LN unless said otherwise, pre-LN for ``norm_first=True``.

    Raises:
        ValueError: an unknown scheme, or ``norm_first=True`` with one that is neither of the two.
    """
    if scheme is None:
        return get_scheme("pre-ln" if norm_first else "post-ln")
    resolved = get_scheme(scheme) if isinstance(scheme, str) else scheme
    if norm_first and resolved.name not in ("post-ln", "pre-ln"):
        raise ValueError(
            f"norm_first=True means scheme='pre-ln', got scheme={resolved.name!r} too; a scheme says where its norms "
            "stand, so leave norm_first out"
        )
    return get_scheme("pre-ln") if norm_first else resolved


def find_place(scheme: Scheme, stack: Stack, *, num_layers: int | Depth | None, layer_index: int | None) -> LayerPlace:
    """The place of a layer, its depth ``None`` where the scheme depends on what was not given.

    Raises:
        ValueError: a depth without this stack, or an index outside of it.
    """
    if num_layers is None:
        needs_depth = scheme.uses_depth != "never" or scheme.varies_by_layer or scheme.needs_profile
        return LayerPlace(scheme, stack, None if needs_depth else as_depth(1, stack))
    depth = as_depth(num_layers, stack)
    count = depth.num_layers(stack)
    if layer_index is None:
        is_open = scheme.varies_by_layer and count > 1
        return LayerPlace(scheme, stack, depth, None if is_open else 0, is_given=True)
    if not 0 <= layer_index < count:
        raise ValueError(f"layer_index {layer_index} is outside of a stack of {count} layers")
    return LayerPlace(scheme, stack, depth, layer_index, is_given=True)


def as_depth(num_layers: int | Depth, stack: Stack) -> Depth:
    """A depth from a number of layers: an encoder alone, or a decoder beside as many encoder layers.

    Raises:
        ValueError: fewer than one layer, or a depth without this stack.
        TypeError: neither an int nor a :class:`~kilolayer.schemes.Depth`.
    """
    if isinstance(num_layers, Depth):
        if num_layers.num_layers(stack) == 0:
            raise ValueError(f"num_layers={num_layers} has no {stack} layer, and this is one")
        if stack == "decoder" and not num_layers.encoder_layers:
            raise ValueError(
                f"num_layers={num_layers} has no encoder, but this decoder layer attends to one; pass "
                "Depth(encoder_layers=..., decoder_layers=...)"
            )
        return num_layers
    if isinstance(num_layers, bool) or not isinstance(num_layers, int):
        raise TypeError(f"num_layers must be an int or a Depth, got {num_layers!r}")
    if num_layers < 1:
        raise ValueError(f"num_layers must be >= 1, got {num_layers}")
    return Depth(encoder_layers=num_layers, decoder_layers=num_layers if stack == "decoder" else 0)
