"""Rules that keep the house small: who may ask what, and how things are called.

A case has any number of images, and a task is asked, never compared. Where a rule is broken on
purpose, the place is named here.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1] / "src" / "ogkd"
# Rooms whose names are already terms of art; others follow.
CLEAN = ("data", "model", "fitting", "evaluation", "methods")
VAGUE = {"found", "said", "mine", "told"}

COUNTS_IMAGES = re.compile(r"len\((?:\w+\.)*\w*case\w*(?:\[\w+\])?\.images\)")
MAY_COUNT_IMAGES = ("data/", "model/", "core/pooling.py")

COMPARES_TASKS = re.compile(
    r"isinstance\([^()]*,[^()]*\b(?:OneOf|Findings)\b"
    r"|\btask\.kind *(?:==|!=|in\b|not in\b)"
    r"|(?:==|!=) *(?:\w+\.)*task\.kind\b"
    r"|type\((?:\w+\.)*task\)"
    r"|\b(?:has_findings|is_findings)\b"
)
MAY_COMPARE_TASKS = ("data/tasks.py",)
# Registries: what a room does for each kind of task, in one place.
REGISTRIES = re.compile(r"\w+\[(?:\w+\.)*task\.kind\]")


def sources(*rooms: str) -> Iterator[tuple[str, str]]:
    for room in rooms or (".",):
        for path in sorted((ROOT / room).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")


def matches(pattern: re.Pattern[str], allowed: tuple[str, ...]) -> list[str]:
    return [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match[0]}"
        for name, text in sources()
        if not name.startswith(allowed)
        for match in pattern.finditer(text)
    ]


def test_only_data_and_model_ask_how_many_images_a_case_has() -> None:
    assert matches(COUNTS_IMAGES, MAY_COUNT_IMAGES) == []


def test_only_the_task_itself_knows_which_task_it_is() -> None:
    assert matches(COMPARES_TASKS, MAY_COMPARE_TASKS) == []


def test_a_room_has_one_registry_by_kind_of_task_at_most() -> None:
    rooms = [match.split("/")[0] for match in {m.split(":")[0] for m in matches(REGISTRIES, ())}]
    assert len(rooms) == len(set(rooms)), rooms


def bound(tree: ast.AST) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno


@pytest.mark.parametrize("room", CLEAN)
def test_results_are_named_after_what_they_are(room: str) -> None:
    assert [
        f"{name}:{line}: {word}"
        for name, text in sources(room)
        for word, line in bound(ast.parse(text))
        if word in VAGUE
    ] == []


def test_the_patterns_match_what_they_forbid() -> None:
    assert COUNTS_IMAGES.search("if len(decision.case.images) > 1:")
    assert COUNTS_IMAGES.search("max(len(case.images) for case in cases)")
    assert COUNTS_IMAGES.search("len(cases[0].images)")
    assert not COUNTS_IMAGES.search("len(pool.images)")
    for line in (
        "isinstance(model.task, Findings)",
        "isinstance(task, OneOf | Findings)",
        "if task.kind == 'classes':",
        "if 'findings' == card.task.kind:",
        "type(task) is OneOf",
        "if dataset.has_findings:",
    ):
        assert COMPARES_TASKS.search(line), line
    assert not COMPARES_TASKS.search("_MEASURES[judged.task.kind]")
