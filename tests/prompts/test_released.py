"""The released bank: fetched from its pinned commit, checked, read without being run."""

from __future__ import annotations

from pathlib import Path

import pytest

from ogkd.errors import ConfigError, DataError
from ogkd.prompts.bank import read_bank
from ogkd.prompts.released import (
    fetch_released,
    import_released,
    pin,
    released_path,
)
from released_bank import PATH, released_bank, released_source
from stub_server import serve


def test_it_is_fetched_from_the_pinned_commit_and_kept_as_it_is(monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with serve() as server:
        monkeypatch.setenv("OGKD_GITHUB", server.address)
        server.files[PATH] = released_source()
        assert fetch_released() == released_bank()
        assert server.asked == [(PATH, "")]
    assert pin().commit in PATH
    bank = read_bank(released_path())
    assert bank == released_bank()
    assert len(bank["cataract"]) == 50  # repetitions count in a prototype
    assert len(set(bank["cataract"])) == 10
    left = {path.name for path in released_path().parent.iterdir()}
    assert left == {"released.json"}


def test_without_a_network_it_says_what_to_do():
    with pytest.raises(DataError, match="ogkd prompts fetch FILE"):
        fetch_released()
    with pytest.raises(ConfigError, match="ogkd prompts fetch released") as caught:
        read_bank(Path("released"))
    assert caught.value.argument == "prompts"


def test_an_own_copy_is_imported(tmp_path):
    path = tmp_path / "copy.py"
    path.write_bytes(released_source())
    import_released(path)
    assert read_bank(Path("released")) == released_bank()


def _without(name):
    return {key: texts for key, texts in released_bank().items() if key != name}


@pytest.mark.parametrize(
    "content",
    [
        released_source(_without("debris")),
        released_source(_without("debris") | {"dust": ["d"] * 50}),
        released_source(released_bank() | {"polyps": ["a"] * 49}),
        *(b"BIOMEDCOOP_TEMPLATES = dict(a=['b'])", b"BIOMEDCOOP_TEMPLATES = {'a': 'b'}"),
        *(b"OTHER = {'a': ['b']}", b"def ("),
    ],
    ids=range(7),
)
def test_another_file_is_refused_and_nothing_is_stored(tmp_path, content):
    path = tmp_path / "copy.py"
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        import_released(path)
    assert caught.value.argument == "source"
    assert not released_path().exists()
