from __future__ import annotations

import json

import pytest
from pydantic import BaseModel

from ogkd.errors import ConfigError
from ogkd.records import check_seal, read_record, sealed


class Shoe(BaseModel):
    schema_version: int = 1
    size: int


def test_a_seal_notices_every_change():
    content = sealed({"a": 1, "b": ["ü", None]})
    check_seal(content)
    check_seal({"a": 1})  # never sealed
    for change in ({"a": 2}, {"c": 1}, {"b": ["ü"]}):
        with pytest.raises(ValueError, match="changed"):
            check_seal(content | change)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        ({"size": "large"}, "field 'size'"),
        ({}, "field 'size'"),
        ([1], "dictionary"),
        ({"size": 44, "schema_version": "1"}, "schema_version"),
        ({**sealed({"size": 44}), "size": 45}, "does not match its checksum"),
    ],
)
def test_what_is_wrong_with_a_record_is_said(tmp_path, content, problem):
    path = tmp_path / "shoe.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=problem):
        read_record(path, Shoe, newest=1)


def test_a_record_of_a_later_version_is_not_guessed_at(tmp_path):
    path = tmp_path / "shoe.json"
    path.write_text(json.dumps({"schema_version": 2, "size": 44}))
    assert read_record(path, Shoe, newest=2).size == 44
    with pytest.raises(ConfigError, match="newer ogkd"):
        read_record(path, Shoe, newest=1)
