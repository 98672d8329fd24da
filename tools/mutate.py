"""Mutation testing: change one thing of a module at a time, and see whether tests notice.

python tools/mutate.py src/ogkd/core/losses.py tests/core/test_losses.py tests/property
A mutant lives in the memory of a forked child that runs pytest; no file is changed. The parent has
imported all libraries, so a mutant costs little more than the tests up to the first that fails.
"""

from __future__ import annotations

import argparse
import ast
import copy
import gc
import importlib
import importlib.abc
import importlib.machinery
import os
import random
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BINARY = {
    ast.Add: [ast.Sub], ast.Sub: [ast.Add], ast.Mult: [ast.Div], ast.Div: [ast.Mult],
    ast.FloorDiv: [ast.Div], ast.Mod: [ast.Mult], ast.Pow: [ast.Mult],
    ast.BitAnd: [ast.BitOr], ast.BitOr: [ast.BitAnd],
}  # fmt: skip
_COMPARE = {
    ast.Lt: [ast.LtE, ast.GtE], ast.LtE: [ast.Lt, ast.Gt], ast.Gt: [ast.GtE, ast.LtE],
    ast.GtE: [ast.Gt, ast.Lt], ast.Eq: [ast.NotEq], ast.NotEq: [ast.Eq], ast.In: [ast.NotIn],
    ast.NotIn: [ast.In], ast.Is: [ast.IsNot], ast.IsNot: [ast.Is],
}  # fmt: skip
_PAIRS = ("mean sum", "min max", "amin amax", "argmin argmax", "any all", "ceil floor")
_PAIRS = (*_PAIRS, "minimum maximum", "nanmean nansum", "square abs", "ones zeros", "exp log")
_NAMES = dict(pair for text in _PAIRS for pair in (text.split(), text.split()[::-1]))
# Inside these the text of messages and types would be changed, not what is computed.
_SKIPPED = (ast.Raise, ast.JoinedStr, ast.ImportFrom, ast.Import)
_SAME_EITHER_WAY = (
    "zip",
    "max",
    "min",
    "maximum",
    "minimum",
    "isinstance",
    "getattr",
    "hasattr",
    "range",
    "super",
)


@dataclass(frozen=True)
class Mutant:
    """One change: of the part with this number in the order of `_parts`."""

    number: int
    choice: int
    line: int
    before: str
    after: str

    def __str__(self) -> str:
        return f"{self.line}: {self.before}  ->  {self.after}"


def _parts(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that may be changed, always in the same order."""
    for name, value in ast.iter_fields(tree):
        if name in ("annotation", "returns", "decorator_list"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST) and not isinstance(child, _SKIPPED):
                yield child
                yield from _parts(child)


def _changes(node: ast.AST) -> list[ast.AST]:
    """All that this node may become."""
    found: list[ast.AST] = []

    def other(**fields: Any) -> None:
        new = copy.deepcopy(node)
        for name, value in fields.items():
            setattr(new, name, value)
        found.append(new)

    if isinstance(node, ast.BinOp | ast.AugAssign):
        for kind in _BINARY.get(type(node.op), []):
            other(op=kind())
    elif isinstance(node, ast.Compare) and len(node.ops) >= 1:
        for place, op in enumerate(node.ops):
            for kind in _COMPARE.get(type(op), []):
                other(ops=[*node.ops[:place], kind(), *node.ops[place + 1 :]])
    elif isinstance(node, ast.BoolOp):
        other(op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp):
        found.append(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        other(value=not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        other(value=0 if node.value == 1 else node.value + 1)
        if isinstance(node.value, float) and node.value not in (0.0, 1.0):
            other(value=node.value / 2)
    elif isinstance(node, ast.Attribute) and node.attr in _NAMES:
        other(attr=_NAMES[node.attr])
    elif isinstance(node, ast.Name) and node.id in _NAMES:
        other(id=_NAMES[node.id])
    elif isinstance(node, ast.Call) and len(node.args) >= 2:
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        if name not in _SAME_EITHER_WAY and ast.dump(node.args[0]) != ast.dump(node.args[1]):
            other(args=[node.args[1], node.args[0], *node.args[2:]])
    elif isinstance(node, ast.If | ast.IfExp) and isinstance(node.test, ast.Name | ast.Call):
        other(test=ast.UnaryOp(ast.Not(), node.test))
    return found


def mutants(source: str) -> list[Mutant]:
    """Every mutant of a module's source."""
    found = []
    for number, node in enumerate(_parts(ast.parse(source))):
        for choice, new in enumerate(_changes(node)):
            texts = [_short(ast.unparse(ast.fix_missing_locations(part))) for part in (node, new)]
            found.append(Mutant(number, choice, getattr(node, "lineno", 0), *texts))
    return found


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 70 else f"{text[:67]}..."


def mutated(source: str, mutant: Mutant) -> ast.Module:
    """The module with that change."""
    tree = ast.parse(source)
    target = next(node for n, node in enumerate(_parts(tree)) if n == mutant.number)
    new = _changes(target)[mutant.choice]

    class Exchange(ast.NodeTransformer):
        def visit(self, node: ast.AST) -> ast.AST:
            return ast.copy_location(new, node) if node is target else self.generic_visit(node)

    return ast.fix_missing_locations(Exchange().visit(tree))


class _Finder(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """Gives the mutated code where the module is imported."""

    def __init__(self, name: str, path: Path, tree: ast.Module) -> None:
        super().__init__(name, str(path))
        self._code = compile(tree, str(path), "exec")

    def find_spec(self, fullname: str, path: object, target: object = None) -> Any:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(fullname, self.path, loader=self)

    def get_code(self, fullname: str) -> Any:
        return self._code


def survives(name: str, path: Path, tree: ast.Module, tests: Sequence[str], limit: int) -> bool:
    """Whether the tests pass with this tree as the module, in a child of this process."""
    child = os.fork()
    if child == 0:
        try:
            nothing = os.open(os.devnull, os.O_RDWR)
            for handle in (0, 1, 2):
                os.dup2(nothing, handle)
            signal.alarm(limit)  # a mutant that never ends is noticed too
            sys.meta_path.insert(0, _Finder(name, path, tree))
            os._exit(_run(tests))
        finally:
            os._exit(99)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) == 0


def _run(tests: Sequence[str]) -> int:
    import hypothesis
    import pytest

    quick = [hypothesis.Phase.explicit, hypothesis.Phase.generate]  # nothing is made smaller
    hypothesis.settings.register_profile(
        "mutate", derandomize=True, database=None, deadline=None, phases=quick
    )
    hypothesis.settings.load_profile("mutate")
    fast = ["-x", "-q", "-n0", "-p", "no:cacheprovider"]
    return int(pytest.main([*fast, "-W", "ignore::pytest.PytestAssertRewriteWarning", *tests]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("module", type=Path, help="a file below src/")
    parser.add_argument("tests", nargs="+", help="test files or folders, for pytest")
    parser.add_argument("--sample", type=int, help="so many mutants, drawn with seed 0")
    parser.add_argument("--lines", type=int, nargs=2, help="only those of these lines, from and to")
    parser.add_argument("--limit", type=int, default=120, help="seconds for one mutant")
    given = parser.parse_args()
    sys.path[:0] = ["src", "tests"]
    name = ".".join(given.module.with_suffix("").parts[1:])
    # The first run imports all libraries, which stay; our own modules every child imports again.
    if _run(given.tests) != 0:
        sys.exit("The tests fail without any change. Nothing was measured.")
    here = tuple(str(Path.cwd() / folder) for folder in ("src", "tests"))  # not an environment
    for key, loaded in list(sys.modules.items()):
        if str(getattr(loaded, "__file__", None) or "").startswith(here):
            del sys.modules[key]
    gc.collect()
    gc.freeze()  # otherwise every child copies what its first collection touches
    source = given.module.read_text(encoding="utf-8")
    every = mutants(source)
    chosen = every if given.sample is None else random.Random(0).sample(every, given.sample)
    if given.lines:
        chosen = [one for one in chosen if given.lines[0] <= one.line <= given.lines[1]]
    began, left = time.monotonic(), []
    for mutant in sorted(chosen, key=lambda one: (one.line, one.number, one.choice)):
        tree = mutated(source, mutant)
        if survives(name, given.module, tree, given.tests, given.limit):
            left.append(mutant)
            print(f"{given.module}:{mutant}", flush=True)
    minutes = (time.monotonic() - began) / 60
    print(f"{len(left)} of {len(chosen)} survive ({len(every)} in all; {minutes:.1f} minutes).")


if __name__ == "__main__":
    main()
