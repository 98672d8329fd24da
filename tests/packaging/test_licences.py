"""The table of licences has every package that users install, with what its metadata say."""

from __future__ import annotations

import re
import tomllib
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
PAGE = (ROOT / "docs/reference/licences.md").read_text(encoding="utf-8")
PINNED = (ROOT / "constraints.txt").read_text(encoding="utf-8").lower()
ROWS = re.findall(r"(?m)^\| ([\w-]+) \| (always|`\w+`) \| (.+) \|$", PAGE)
FAMILIES = ("apache", "bsd", "mit", "gpl", "psf")
OTHER_NAMES = {"python software foundation": "psf", "matplotlib": "psf"}


def needed():
    for extra, lines in {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}.items():
        if extra not in ("dev", "docs"):
            yield from (
                (Requirement(line).name, f"`{extra}`" if extra else "always") for line in lines
            )


def test_every_package_of_users_is_listed_where_it_belongs():
    assert [(name, use) for name, use, _ in ROWS] == list(needed())


@pytest.mark.parametrize(("name", "licence"), [(name, licence) for name, _, licence in ROWS])
def test_the_licence_is_the_one_of_the_installed_package(name, licence):
    try:
        facts = metadata(name)
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    version = facts["Version"].partition("+")[0]  # not which build of torch
    if f"{name}=={version}\n".lower() not in PINNED:
        pytest.skip(f"{name} has another version than constraints.txt, perhaps another licence")
    kinds = [line for line in facts.get_all("Classifier", []) if line.startswith("License")]
    facts_text = " ".join(
        [facts.get("License-Expression") or "", (facts.get("License") or "")[:80], *kinds]
    )
    facts_text = facts_text.lower()
    for words, family in OTHER_NAMES.items():
        facts_text = facts_text.replace(words, family)
    shown = {family for family in FAMILIES if family in licence.lower()}
    assert shown
    assert shown <= {family for family in FAMILIES if family in facts_text}, facts_text
    assert ("gpl" in facts_text) == ("gpl" in licence.lower())


def test_the_gpl_is_named_where_people_install():
    install = (ROOT / "docs/get-started/install.md").read_text(encoding="utf-8")
    for name, _, licence in ROWS:
        if "GPL" in licence:
            assert name in install
    assert "GPL-3.0" in install
