"""What a model does: hooks in, hooks out, statistics where the tensors are, one transfer per sampled step.

The monitor watches any optimizer loop from outside. On a sampled step it hangs hooks on the modules whose
tensors it reads, takes the statistics as 0-d tensors, looks at the weights around ``optimizer.step`` and
moves everything to the host at once. Between sampled steps no hook but the optimizer's remains.
"""

from kilolayer.monitor.monitor import Monitor
from kilolayer.monitor.sites import describe_sites

__all__ = ["Monitor", "describe_sites"]
