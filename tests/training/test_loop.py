"""The loop reads as its docstring says."""

from __future__ import annotations

import ast
import inspect
import re

from launcher.training import loop


def test_the_docstring_lists_the_events_of_a_step_in_the_order_of_the_code() -> None:
    listed = re.findall(r"^ {8}(\w+) ", str(loop.__doc__), re.MULTILINE)
    function = ast.parse(inspect.getsource(loop.train)).body[0]
    (body,) = (node.body for node in ast.walk(function) if isinstance(node, ast.For))
    calls = [node.func for statement in body for node in ast.walk(statement) if isinstance(node, ast.Call)]
    names = [call.attr if isinstance(call, ast.Attribute) else ast.unparse(call) for call in calls]
    events = [name for name in names if name in listed]
    if isinstance(body[-1], ast.If) and ast.unparse(body[-1].test) == "last":
        events.append("last")
    assert events == listed
