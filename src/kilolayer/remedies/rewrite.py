"""The line of a user's file that a remedy changes, changed: only where it can be found for certain."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from kilolayer.diagnosis.examined import Examined
from kilolayer.diagnosis.finding import Finding
from kilolayer.remedies.numerics import HALF_EPS
from kilolayer.remedies.rate import ADAM_DECAY, MAX_NORM, SGD_DECAY, lr_factor

Rewrite = Callable[[str, Finding, Examined], str | None]
"""The source behind the change; ``None`` where the line is not there, or there are several it could be."""


# ---------------------------------------------------------------------- finding lines
def _calls(tree: ast.AST, names: set[str]) -> list[ast.Call]:
    return [node for node in ast.walk(tree) if isinstance(node, ast.Call) and _name(node.func) in names]


def _name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _offset(source: str, line: int, column: int) -> int:
    """The place of a node in the text; columns count bytes."""
    lines = source.splitlines(keepends=True)
    return sum(map(len, lines[: line - 1])) + len(lines[line - 1].encode()[:column].decode())


def _span(source: str, node: ast.expr | ast.stmt) -> tuple[int, int]:
    assert node.end_lineno is not None
    assert node.end_col_offset is not None
    return _offset(source, node.lineno, node.col_offset), _offset(source, node.end_lineno, node.end_col_offset)


def _with(source: str, node: ast.expr | ast.stmt, text: str) -> str:
    start, end = _span(source, node)
    return source[:start] + text + source[end:]


def _parse(source: str) -> ast.Module | None:
    try:
        return ast.parse(source)
    except SyntaxError:
        return None


def _set_keyword(source: str, call: ast.Call, key: str, text: str) -> str | None:
    """The call with a keyword set; ``None`` where keywords come out of a dictionary, which may hold it."""
    for keyword in call.keywords:
        if keyword.arg == key:
            return _with(source, keyword.value, text)
    if any(keyword.arg is None for keyword in call.keywords):
        return None
    if key == "lr" and len(call.args) > 1:
        return _with(source, call.args[1], text)
    end = _span(source, call)[1] - 1
    before = source[:end].rstrip()
    separator = "" if before.endswith("(") else " " if before.endswith(",") else ", "
    return f"{before}{separator}{key}={text}{source[end:]}"


def _optimizer_option(source: str, found: Examined, key: str, text: str) -> str | None:
    tree = _parse(source)
    calls = [] if tree is None else _calls(tree, {str(found.facts["optimizer"].get("name"))})
    return _set_keyword(source, calls[0], key, text) if len(calls) == 1 else None


# ---------------------------------------------------------------------- options of the optimizer
def set_lr(source: str, finding: Finding, found: Examined) -> str | None:
    """The learning rate in the optimizer's call."""
    if found.lr is None:
        return None
    return _optimizer_option(source, found, "lr", f"{found.lr * lr_factor(finding, found):g}")


def set_weight_decay(source: str, finding: Finding, found: Examined) -> str | None:
    """The weight decay in the optimizer's call."""
    is_adam = "adamw" in str(found.facts["optimizer"].get("name")).lower()
    return _optimizer_option(source, found, "weight_decay", f"{ADAM_DECAY if is_adam else SGD_DECAY:g}")


def drop_weight_decay(source: str, finding: Finding, found: Examined) -> str | None:
    """A weight decay of 0 there."""
    return _optimizer_option(source, found, "weight_decay", "0.0")


def set_eps(source: str, finding: Finding, found: Examined) -> str | None:
    """The eps there."""
    return _optimizer_option(source, found, "eps", f"{HALF_EPS:g}")


# ---------------------------------------------------------------------- lines of the loop
def _loop(source: str) -> tuple[ast.Expr, ast.Expr, str] | None:
    """The statements ``loss.backward()`` and ``optimizer.step()`` of one loop, and the optimizer as it is written."""
    tree = _parse(source)
    if tree is None:
        return None
    found = {name: list(_statements(tree, name)) for name in ("backward", "step")}
    steps = [one for one in found["step"] if "sched" not in _owner(source, one)]
    if len(found["backward"]) != 1 or len(steps) != 1:
        return None
    return found["backward"][0], steps[0], _owner(source, steps[0])


def _statements(tree: ast.AST, method: str) -> Iterator[ast.Expr]:
    for node in ast.walk(tree):
        is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if is_call and isinstance(node.value.func, ast.Attribute) and node.value.func.attr == method:  # type: ignore[attr-defined]
            yield node  # type: ignore[misc]


def _owner(source: str, statement: ast.Expr) -> str:
    assert isinstance(statement.value, ast.Call)
    assert isinstance(statement.value.func, ast.Attribute)
    start, end = _span(source, statement.value.func.value)
    return source[start:end]


def _insert(source: str, before: ast.stmt, text: str) -> str | None:
    """The source with a line in front of a statement that has a line of its own."""
    start = _offset(source, before.lineno, 0)
    indent = source[start : _span(source, before)[0]]
    return None if indent.strip() else f"{source[:start]}{indent}{text}\n{source[start:]}"


def insert_zero_grad(source: str, finding: Finding, found: Examined) -> str | None:
    """A line in front of ``loss.backward()``."""
    loop = _loop(source)
    return None if loop is None else _insert(source, loop[0], f"{loop[2]}.zero_grad()")


def insert_clipping(source: str, finding: Finding, found: Examined) -> str | None:
    """A line in front of ``optimizer.step()``."""
    loop = _loop(source)
    if loop is None:
        return None
    parameters = f"[p for group in {loop[2]}.param_groups for p in group['params']]"
    return _insert(source, loop[1], f"torch.nn.utils.clip_grad_norm_({parameters}, {MAX_NORM})")


# ---------------------------------------------------------------------- lines of the model
def right_axis(source: str, finding: Finding, found: Examined) -> str | None:
    """The ``dim`` of the one softmax of the file."""
    tree = _parse(source)
    calls = [] if tree is None else _calls(tree, {"Softmax", "LogSoftmax", "softmax", "log_softmax"})
    if len(calls) != 1:
        return None
    dim = "-1" if finding.predicted is None else f"{int(finding.predicted)}"
    if not any(keyword.arg == "dim" for keyword in calls[0].keywords) and calls[0].args:
        return _with(source, calls[0].args[-1], dim)
    return _set_keyword(source, calls[0], "dim", dim)


def drop_softmax(source: str, finding: Finding, found: Examined) -> str | None:
    """The one ``nn.Softmax(...)`` or ``nn.Sigmoid()`` of the file becomes ``nn.Identity()``."""
    tree = _parse(source)
    if tree is None or not found.step0["losses"]:
        return None
    done = {one["operation"].title() for one in found.step0["losses"][0]["done"] if one["operation"] != "log_softmax"}
    calls = _calls(tree, done & {"Softmax", "Sigmoid"})
    if len(calls) != 1 or not isinstance(calls[0].func, ast.Attribute):
        return None
    start, end = _span(source, calls[0].func.value)
    return _with(source, calls[0], f"{source[start:end]}.Identity()")


def register(source: str, finding: Finding, found: Examined) -> str | None:
    """The one assignment of the attribute wraps its list in ``nn.ModuleList``."""
    tree = _parse(source)
    name = str(finding.first_site or "").partition("[")[0].rpartition(".")[2]
    if tree is None or not name:
        return None
    values = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Attribute)
        and node.targets[0].attr == name
    ]  # fmt: skip
    if len(values) != 1:
        return None
    start, end = _span(source, values[0])
    return _with(source, values[0], f"torch.nn.ModuleList({source[start:end]})")


REWRITES: dict[str, Rewrite] = {
    "lower learning rate": set_lr,
    "higher learning rate": set_lr,
    "lower weight decay": set_weight_decay,
    "no weight decay": drop_weight_decay,
    "larger eps": set_eps,
    "zero_grad": insert_zero_grad,
    "clipping": insert_clipping,
    "right axis": right_axis,
    "what the loss wants": drop_softmax,
    "registered parameters": register,
}
"""By the name of the remedy; the others have no single line."""
