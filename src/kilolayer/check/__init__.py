"""Find out why a set-up does not train: examine it in stages, judge what was measured, prove a remedy.

The public names::

    Setup(model, batch, loss_fn=None, compute_loss=None, optimizer=None, batches=None, scheduler=None, scaler=None,
          train_step=None)
    check(setup_or_function, budget_s=60, trial=True, steps=None) -> Diagnosis
    examine(setup, budget_s=60, steps=None) -> Recording      # the stages alone, nothing judged
    read_script(path, arguments=()) -> function               # a training script as it stands, as a function for check
    train(setup, steps, budget_s=None) -> TrainingRun         # the plain run of a set-up: losses, non-finite step

**Stages**, the cheapest first, each on the caller's own objects:

1. *set-up*: what can be told without a number. Which parameters are trained, by whom, and whether gradients reach them.
2. *step 0*: one pass forward and backward in training mode, which shows the structure and all values: every operation's
   output and the gradient that comes back to it. Where one output per sample is given, three passes forward in
   evaluation mode more: does a sample's answer depend on the others?
3. *run*: a few dozen steps with the user's own optimizer, scheduler and loop body, and a second look at its end.

What they find is a :class:`~kilolayer.recording.Recording`: rows by step and site, and the tables of one step among
the facts. Rules in :mod:`kilolayer.diagnosis` read nothing else. Behind each stage the objects are as they were:
parameters, buffers, gradients, optimizer state, random state, mode (:mod:`kilolayer.check.snapshot`).

**Trials** need a second set-up of the same kind, and a copy of the first would not do: it loses what hangs on the
original. So a trial calls the user's function again. ``check`` builds a function ``build() -> Setup`` from what it
was given (``None`` where it was given a ``Setup``: then there are no trials), and hands it on, with :func:`train`,
to the remedies::

    trials = prove(root, build, train=train, found=..., steps=..., budget_s=...)  # a tuple of kilolayer.diagnosis.Trial

Each edit works on what ``build()`` returned; each trial trains the set-up as built and as edited for the same number of
steps, on the same data, from the same seed. The remedies know a ``Setup`` by its fields alone and import nothing from
here, so that the street keeps running one way.
"""

import sys
from types import ModuleType

from kilolayer.check.examine import examine
from kilolayer.check.loop import TrainingRun, train
from kilolayer.check.script import read_script
from kilolayer.check.setup import Setup
from kilolayer.check.source import SetupError
from kilolayer.check.verdict import check

__all__ = ["Setup", "SetupError", "TrainingRun", "check", "examine", "read_script", "train"]


class _Room(ModuleType):
    """A room that is called like the function it is named after: the import system puts the room where
    ``kilolayer.check`` is looked for."""

    __call__ = staticmethod(check)


sys.modules[__name__].__class__ = _Room
