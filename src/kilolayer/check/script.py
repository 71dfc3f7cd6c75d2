"""A set-up from a training script as it stands: it is run up to its first optimizer steps, which are left out."""

from __future__ import annotations

import contextlib
import copy
import io
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.utils.hooks import RemovableHandle

from kilolayer.check.recorded import Clip, Recorded, setup_of
from kilolayer.check.setup import Setup
from kilolayer.check.source import SetupError, located
from kilolayer.check.tape import Iteration, Tape

NUM_STEPS = 8
"""Steps whose batches are kept; a run goes through them again and again."""

LONGEST_S = 3.0
"""Seconds after the first step in which others are waited for."""

MOST_BYTES = 256 << 20
"""Batches that are kept."""

CLIPS = ("clip_grad_norm_", "clip_grad_value_")


class _Enough(BaseException):
    """Ends the script; no ``except Exception`` of its own keeps it."""


def read_script(path: str | Path, arguments: Sequence[str] = ()) -> Callable[[], Setup]:
    """A function that makes a set-up of a training script, by running it anew each time.

    The script runs as ``python path arguments`` does, with its own data, model, loss and loop, up to its eighth
    optimizer step. The steps change nothing; what each of them was computed from is kept. Model, loss, batches,
    clipping, a scheduler stepped at each step, and gradients that nobody drops go into the set-up. What a script does
    before its eighth step besides, such as writing files, it does at each call.

    Args:
        path: the script.
        arguments: its command line.

    Raises:
        SetupError: when the function is called: the script fails or ends before an optimizer step, steps several
            optimizers, or goes back from no loss.
        FileNotFoundError: no such file.

    Examples:
        >>> import pathlib, tempfile
        >>> script = pathlib.Path(tempfile.mkdtemp()) / "train.py"
        >>> _ = script.write_text('''
        ... import torch
        ... model = torch.nn.Linear(4, 2)
        ... optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        ... for step in range(1000):
        ...     x = torch.randn(32, 4)
        ...     loss = torch.nn.functional.cross_entropy(model(x), (x[:, 0] > 0).long())
        ...     optimizer.zero_grad()
        ...     loss.backward()
        ...     optimizer.step()
        ... ''')
        >>> setup = read_script(script)()
        >>> type(setup.model).__name__, setup.optimizer.defaults["lr"], tuple(setup.batches(1)[0].shape)
        ('Linear', 0.1, (32, 4))
    """
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"no such file: {path}")

    def build() -> Setup:
        return setup_of(_Capture(path).run(arguments))

    return build


class _Capture:
    """One run of a script."""

    def __init__(self, path: Path):
        self.path = path
        self._tape = Tape()
        self._recorded = Recorded()
        self._is_active = True
        self._buffers: dict[int, tuple[Tensor, Tensor]] = {}
        self._before: dict[str, Any] = {}
        self._errors = io.StringIO()
        self._stand_in: Any = None
        self._rates: list[Any] = []
        self._first_step = 0.0

    def run(self, arguments: Sequence[str]) -> Recorded:
        """Run it; what was seen."""
        found = self._recorded
        try:
            with self._patched(arguments), located(None):
                runpy.run_path(str(self.path), run_name="__main__")
        except _Enough as end:
            found.names = _names_in(end)
        except SetupError as error:
            if not isinstance(error.__cause__, SystemExit):
                raise
            if not found.iterations:
                said = self._errors.getvalue().strip().splitlines()
                raise SetupError(f"{error}{f': {said[-1]}' if said else ''}") from error
        finally:
            self._is_active = False
        if found.optimizer is None:
            raise SetupError(
                f"{self.path} ended without an optimizer step, so there is no training to look at; a function of it is "
                f"named: {self.path}:FUNCTION"
            )
        self._restore(found.optimizer)
        return found

    @contextlib.contextmanager
    def _patched(self, arguments: Sequence[str]) -> Iterator[None]:
        init = torch.optim.Optimizer.__init__
        capture = self

        def begin(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            if capture._is_active:
                optimizer.step = MethodType(left_out, optimizer)

        # A function, not a method: schedulers bind it anew.
        def left_out(optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
            return capture._left_out(optimizer, closure)

        self._stand_in = left_out
        with contextlib.ExitStack() as stack:
            stack.enter_context(_command_line(self.path, arguments))
            stack.enter_context(_silence(self._errors))
            torch.optim.Optimizer.__init__ = begin  # type: ignore[method-assign, assignment]
            stack.callback(setattr, torch.optim.Optimizer, "__init__", init)
            stack.callback(register_module_forward_pre_hook(self._enter).remove)
            leave = register_module_forward_hook(self._leave, with_kwargs=True, always_call=True)
            stack.callback(_remove, leave)
            for name in CLIPS:
                for home in (torch.nn.utils, torch.nn.utils.clip_grad):
                    function = getattr(home, name)
                    stack.callback(setattr, home, name, function)
                    setattr(home, name, partial(self._clip, name, function))
            step = torch.optim.lr_scheduler.LRScheduler.step
            stack.callback(setattr, torch.optim.lr_scheduler.LRScheduler, "step", step)
            torch.optim.lr_scheduler.LRScheduler.step = self._scheduled(step)  # type: ignore[method-assign]
            if "torch._dynamo" in sys.modules:
                stack.enter_context(torch.compiler.set_stance("force_eager"))
            stack.enter_context(self._tape)
            yield

    # ------------------------------------------------------------------ what the script does
    def _enter(self, module: nn.Module, args: Any) -> None:
        if not _has_parameters(module):
            return
        for buffer in module.buffers():
            if id(buffer) not in self._buffers:
                self._buffers[id(buffer)] = (buffer, buffer.detach().clone())
        self._tape.enter(module)

    def _leave(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if _has_parameters(module):
            self._tape.leave(module, args, kwargs, output)

    def _clip(self, name: str, function: Callable[..., Any], parameters: Any, *args: Any, **kwargs: Any) -> Any:
        self._recorded.clips[name] = Clip(function, args, kwargs)
        return function(parameters, *args, **kwargs)

    def _scheduled(self, step: Callable[..., Any]) -> Callable[..., Any]:
        capture = self

        def scheduled(scheduler: Any, *args: Any, **kwargs: Any) -> Any:
            found = capture._recorded
            is_first = capture._is_active and len(found.iterations) == 1 and found.scheduler is None
            # By its groups: trainers put a wrapper around the optimizer.
            if is_first and scheduler.optimizer.param_groups is found.optimizer.param_groups:
                found.scheduler = scheduler
                capture._before = copy.deepcopy(scheduler.state_dict())
            return step(scheduler, *args, **kwargs)

        return scheduled

    def _left_out(self, optimizer: Any, closure: Callable[[], Any] | None = None) -> Any:
        """In the place of an optimizer's step: everything but the step."""
        if not self._is_active:
            return type(optimizer).step(optimizer, *(() if closure is None else (closure,)))
        result = None
        if closure is not None:
            with torch.enable_grad():
                result = closure()
        self._end_step(optimizer)
        return result

    def _end_step(self, optimizer: Any) -> None:
        found = self._recorded
        if found.optimizer is None:
            found.optimizer = optimizer
            self._rates = [group["lr"] for group in optimizer.param_groups]
            self._first_step = time.perf_counter()
        elif found.optimizer is not optimizer:
            raise SetupError(
                f"{self.path} steps several optimizers; write one of them with its loss as a function and name it: "
                f"kilolayer check {self.path}:FUNCTION"
            )
        entries, losses = self._tape.take()
        if losses:
            found.iterations.append(Iteration(entries, losses))
        parameters = [one for group in optimizer.param_groups for one in group["params"]]
        found.arm(parameters)
        is_long = time.perf_counter() - self._first_step > LONGEST_S and len(found.iterations) > 1
        if len(found.iterations) >= NUM_STEPS or is_long or found.num_bytes > MOST_BYTES:
            raise _Enough

    def _restore(self, optimizer: Any) -> None:
        """Nothing of the steps stays."""
        with torch.no_grad():
            for buffer, value in self._buffers.values():
                buffer.copy_(value)
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad = None
        for group, rate in zip(optimizer.param_groups, self._rates, strict=False):
            group["lr"] = rate
        if self._recorded.scheduler is not None:
            self._recorded.scheduler.load_state_dict(self._before)
        self._recorded.release()
        if getattr(optimizer.__dict__.get("step"), "__func__", None) is self._stand_in:
            del optimizer.step


def _has_parameters(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


@contextlib.contextmanager
def _command_line(path: Path, arguments: Sequence[str]) -> Iterator[None]:
    kept = sys.argv, list(sys.path)
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.resolve().parent))
    try:
        yield
    finally:
        sys.argv, sys.path[:] = kept


@contextlib.contextmanager
def _silence(errors: io.StringIO) -> Iterator[None]:
    """What the script prints is not the answer, and it is run several times."""
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        yield


def _names_in(error: BaseException) -> dict[int, str]:
    """``id`` of a module -> the name of the script's variable that holds it."""
    names: dict[int, str] = {}
    trace = error.__traceback__
    while trace is not None:
        for scope in (trace.tb_frame.f_globals, trace.tb_frame.f_locals):
            for name, value in list(scope.items()):
                if isinstance(value, nn.Module):
                    names.setdefault(id(value), name)
        trace = trace.tb_next
    return names


def _remove(handle: RemovableHandle) -> None:
    """Remove a hook of all modules; PyTorch leaves the mark of one with keywords, as if it were there still."""
    handle.remove()
    getattr(torch.nn.modules.module, "_global_forward_hooks_with_kwargs", {}).pop(handle.id, None)
