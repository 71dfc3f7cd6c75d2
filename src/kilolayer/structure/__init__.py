"""What a model **is**: its residual branches in order, norms, factors, activations, attention, final norm.

:func:`read_structure` runs a model once and looks at what flowed where; nothing is known of any library, class or
module name. The way, one file per step:

1. ``keep``: evaluation mode with gradients on, and everything put back behind it. ``recorder`` sees every ATen
   operation through a ``TorchDispatchMode``, ``calls`` which module ran it, ``values`` which value a tensor holds
   at that moment, through views and writes in place. The result is a ``record``.
2. ``normal_form`` turns the record into a ``graph`` in which a sum of two signals is written in one way only,
   whether the code says ``x + f``, ``torch.add(x, f, alpha=a)``, ``addmm``, ``lerp`` or ``x += f``. A value is
   *data* if a model input had a part in it, else a parameter, a constant, a mask or random.
3. ``norms`` finds norms, fused or written out: a signal divided by a root of a statistic of itself. ``signal``
   walks along the graph with them.
4. ``sums`` tells residual sums from others: the skip's operand, less views and factors, is an ancestor of the
   other operand, and between the two there is a matrix, a norm, attention or the like. ``rejects`` drops gates
   and skips that leave one branch for another; ``chains`` says which sums follow each other.
5. ``placement`` says where norms stand around each sum; ``contents``, ``recurrences`` what else there is;
   ``match`` and ``depths`` which scheme that makes, and whether DeepNorm's skip scale fits the depth.
6. ``structure`` is what comes out; ``sites`` its rows of the site table; ``drawing`` its text.

What it cannot know: the way not taken through data-dependent control flow, and what is inside an opaque
operation. That is listed as opaque: *unknown*, never *none*.
"""

from kilolayer.structure.drawing import render_structure
from kilolayer.structure.loading import load_model
from kilolayer.structure.read import read_structure
from kilolayer.structure.structure import Branch, DepthFit, Recurrence, Structure

__all__ = [
    "Branch",
    "DepthFit",
    "Recurrence",
    "Structure",
    "load_model",
    "read_structure",
    "render_structure",
]
