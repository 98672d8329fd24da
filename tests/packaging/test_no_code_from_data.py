"""Nothing in the package turns data into code: no pickle, no eval, no code of a hub."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "src" / "ogkd"
RULES = "S102,S301,S302,S307,S506,S602,S604,S605"  # ruff's: exec, pickle, eval, yaml, shells
# What ruff has no rule for: loaders without the option that forbids code, or with one that allows.
LOADERS = re.compile(
    r"\b(?:torch\.load\((?![^)]*weights_only=True)"
    r"|(?:np|numpy)\.load\((?![^)]*allow_pickle=False)"
    r"|read_array\((?![^)]*allow_pickle=False)"
    r"|(?:trust_remote_code|allow_pickle)=(?!False\b)|weights_only=(?!True\b)"
    r"|(?:joblib|dill|cloudpickle|marshal|shelve)\.\w)"
)
PLUGINS = "plugins.py"  # runs code that the user names: that is what it is for


def faults(folder):
    """Every place of the sources that could run code from data."""
    ruff = [sys.executable, "-m", "ruff", "check", "--isolated", "--no-cache", "--select", RULES]
    options = ["--ignore-noqa", "--quiet", "--output-format", "concise"]
    found = subprocess.run([*ruff, *options, folder], capture_output=True, text=True)
    yield from found.stdout.splitlines()
    for file in sorted(folder.rglob("*.py")):
        text = file.read_text(encoding="utf-8")
        yield from (f"{file}: {match[0]}" for match in LOADERS.finditer(text))


def test_no_file_of_the_package_runs_code_from_data():
    assert not [fault for fault in faults(PACKAGE) if PLUGINS not in fault]


@pytest.mark.parametrize(
    "line",
    [
        "import pickle; pickle.load(f)",
        "eval(text)",
        "exec(text)",
        "AutoModel.from_pretrained(x, trust_remote_code=trusted)",
        "torch.load(path)",
        "np.load(path, allow_pickle=True)",
        "subprocess.run(line, shell=True)",
        "import yaml; yaml.load(text)",
    ],
)
def test_what_would_run_code_is_noticed(tmp_path, line):
    (tmp_path / "a.py").write_text(f"import subprocess\n{line}\n")
    assert list(faults(tmp_path))
