"""What a model does: hooks in, hooks out, statistics where the tensors are, one transfer per sampled step.

The monitor watches any optimizer loop from outside. On a sampled step it hangs hooks on the modules whose
tensors it reads, takes their statistics at once (no tensor is kept), looks at the parameters around
``optimizer.step`` and moves what is on an accelerator to the host together. Between sampled steps no hook but
the optimizer's remains.
"""

from kilolayer.monitor.monitor import Monitor
from kilolayer.monitor.schedule import EverySteps, FirstSteps, LogSpaced
from kilolayer.monitor.sites import describe_sites
from kilolayer.recording.departures import Departure
from kilolayer.recording.spikes import Rise, Spike, find_spikes, trace_spike

__all__ = [
    "Departure",
    "EverySteps",
    "FirstSteps",
    "LogSpaced",
    "Monitor",
    "Rise",
    "Spike",
    "describe_sites",
    "find_spikes",
    "trace_spike",
]
