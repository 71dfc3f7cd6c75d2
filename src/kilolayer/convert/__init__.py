"""Change the scheme of a model that is there: plan, apply, verify; back where it does not hold.

1. ``reading`` finds the residual branches of any model through ``structure``: what each ends in (``endings``), which
   matrix has which role (``matrices``). ``own_layers`` reads kilolayer's from what they hold.
2. ``planning`` says what changes. ``plan`` is the plan, to be printed.
3. ``apply`` does it with a ``snapshot`` at hand and compares outputs (``verify``). ``carriers`` is how modules that
   nobody here wrote take a skip scale, ``optimizers`` keeps training going.
"""

from kilolayer.convert.apply import apply_conversion
from kilolayer.convert.auditing import Audit, Check, audit
from kilolayer.convert.branches import Refusal
from kilolayer.convert.change_depth import Redepth, redepth
from kilolayer.convert.plan import BranchChange, Conversion, ConversionPlan
from kilolayer.convert.planning import plan_conversion
from kilolayer.convert.pretrained import load_pretrained, restore_scheme

__all__ = [
    "Audit",
    "BranchChange",
    "Check",
    "Conversion",
    "ConversionPlan",
    "Redepth",
    "Refusal",
    "apply_conversion",
    "audit",
    "load_pretrained",
    "plan_conversion",
    "redepth",
    "restore_scheme",
]
