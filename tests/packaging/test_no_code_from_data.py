"""Nothing in the package turns data into code: no pickle, no eval, no code of a hub."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "ogkd"
FILES = sorted(PACKAGE.rglob("*.py"))
CALLS = {"eval", "exec", "compile", "os.system", "os.popen"}
LOADERS = {"pickle", "cPickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "yaml"}
PLUGINS = "plugins.py"  # runs code that the user names: that is what it is for


def name_of(node):
    if isinstance(node, ast.Attribute):
        return f"{name_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else ""


def faults(source):
    """Every place of a source that could run code from data."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr != "UnpicklingError":  # an exception
            if isinstance(node.value, ast.Name) and node.value.id in LOADERS:
                yield f"{node.lineno}: {name_of(node)}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LOADERS:
            yield f"{node.lineno}: from {node.module}"
        elif isinstance(node, ast.keyword):
            value = node.value.value if isinstance(node.value, ast.Constant) else None
            wrong = {"trust_remote_code": False, "allow_pickle": False, "weights_only": True}
            if node.arg in wrong and value is not wrong[node.arg]:
                yield f"{node.value.lineno}: {node.arg}"
            if node.arg == "shell" and value is not False:
                yield f"{node.value.lineno}: shell"
        elif isinstance(node, ast.Call):
            called, given = name_of(node.func), {word.arg for word in node.keywords}
            if called in CALLS:
                yield f"{node.lineno}: {called}"
            if called == "torch.load" and "weights_only" not in given:
                yield f"{node.lineno}: torch.load"
            if called.split(".")[-1] == "read_array" and "allow_pickle" not in given:
                yield f"{node.lineno}: read_array"
            if called in ("np.load", "numpy.load") and "allow_pickle" not in given:
                yield f"{node.lineno}: np.load"


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(PACKAGE)))
def test_no_file_of_the_package_runs_code_from_data(file):
    problems = list(faults(file.read_text(encoding="utf-8")))
    assert not problems or file.name == PLUGINS, problems


@pytest.mark.parametrize(
    "line",
    [
        "import pickle; pickle.load(f)",
        "from pickle import loads",
        "eval(text)",
        "exec(text)",
        "AutoModel.from_pretrained(x, trust_remote_code=True)",
        "AutoModel.from_pretrained(x, trust_remote_code=trusted)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "np.load(path, allow_pickle=True)",
        "subprocess.run(line, shell=True)",
        "yaml.load(text)",
    ],
)
def test_what_would_run_code_is_noticed(line):
    assert list(faults(line))
