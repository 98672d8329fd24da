"""Whatever is in the files of one run: every command uses the others, or ends with one message.

OGKD_HOSTILE=all tries 1,000 changes instead of 60.
"""

from __future__ import annotations

import copy
import json
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from ogkd.bench.compare import differences_markdown, published_markdown
from ogkd.bench.figures.per_dataset import paired
from ogkd.bench.runs import RunsFolder, RunSpec
from ogkd.bench.tables import make_table
from ogkd.bench.tidy import collect
from tiny_runs import make_plan, write_run

EXAMPLES = 1000 if os.environ.get("OGKD_HOSTILE") == "all" else 60
SPECS = [
    RunSpec(protocol="base-to-novel", dataset="busi", method=method, shots=16, seed=seed)
    for method in ("ogkd", "coop")
    for seed in (1, 2)
]
PLAN = make_plan([(spec.method, spec) for spec in SPECS], "base-to-novel")

deep: Any = []
for _ in range(400):
    deep = [deep]
values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),  # NaN and infinities too
    st.text(max_size=5),
    st.sampled_from(
        [10**400, -(10**18), 1e308, "1", "a\nb\x1b[2J", "x" * 9000, [], {}, [[]], deep]
    ),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.lists(st.one_of(st.none(), st.integers(), st.text(max_size=3)), max_size=3),
)


@st.composite
def changes(draw: st.DrawFn) -> Callable[[Any], Any]:
    """A change of one place of a JSON value: another value there, or none."""
    path = draw(st.lists(st.integers(0, 30), min_size=0, max_size=4))
    delete, value = draw(st.booleans()), draw(values)

    def change(content: Any, path: Sequence[int] = path) -> Any:
        if not path or not isinstance(content, dict | list) or not content:
            return copy.deepcopy(value)  # a later change may go into it
        keys = list(content) if isinstance(content, dict) else range(len(content))
        key = keys[path[0] % len(keys)]
        if delete and len(path) == 1:
            del content[key]
        else:
            content[key] = change(content[key], path[1:])
        return content

    return change


@pytest.fixture(scope="module")
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as place:
        folder = RunsFolder(Path(place))
        for number, spec in enumerate(SPECS):
            write_run(folder, spec, {"base": 0.5 + number / 10, "novel": 0.5}, nll=1.0, kappa=None)
        folder.write_plan(PLAN)
        yield folder.root


def uses(root: Path) -> Iterator[str]:
    """Every command of `ogkd bench` that reads results, without its drawing."""
    folder = RunsFolder(root)
    for run in collect(folder)["run"]:
        yield f"collect {run}"
    yield make_table(folder, PLAN)
    yield published_markdown(folder, PLAN)
    yield differences_markdown(folder, PLAN, "ogkd", "coop")
    yield str(paired(folder.finished(PLAN), ("ogkd", "coop")))


@pytest.mark.filterwarnings("ignore:Skipped")
@pytest.mark.timeout(3600)  # with OGKD_HOSTILE=all
@settings(max_examples=EXAMPLES, deadline=None)
@example(SPECS[0], "result.json", [lambda content: {**content, "class_names": {}}], False)
@given(
    which=st.sampled_from(SPECS),
    name=st.sampled_from(["result.json", "result.json", "spec.json"]),
    change=st.lists(changes(), min_size=1, max_size=3),
    seal=st.booleans(),
)
def test_a_changed_run_is_left_out_or_harmless(
    root: Path, which: RunSpec, name: str, change: list[Any], seal: bool
) -> None:
    file = RunsFolder(root).folder_of(which) / name
    before = file.read_text()
    content = json.loads(before)
    if not seal:
        content.pop("sha256", None)  # as older versions wrote it
    for edit in change:
        content = edit(content)
    try:
        file.write_text(json.dumps(content))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            runs = RunsFolder(root).runs()
        notes = [str(warning.message) for warning in caught]
        read = {run.spec.hash for run in runs}
        left_out = {spec.hash for spec in SPECS} - read
        assert left_out <= {which.hash}
        assert [which.hash in note and len(note) < 1000 for note in notes] == [True] * len(left_out)
        assert not any(set("\n\x1b") & set(note) for note in notes)
        output = "\n".join(uses(root))
        assert all(f"collect {spec.hash}" in output for spec in SPECS if spec.hash in read)
    finally:
        file.write_text(before)
