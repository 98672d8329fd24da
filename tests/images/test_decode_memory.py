from __future__ import annotations

import pytest

from ogkd.errors import DataError
from ogkd.images import decode, read_image
from tiny_data import write_image


def test_an_image_that_memory_does_not_suffice_for_is_named(tmp_path, monkeypatch):
    def read(*args, **options):
        raise MemoryError

    monkeypatch.setattr(decode, "read_plain", read)
    with pytest.raises(DataError, match=r"not enough memory to read .*a.png"):
        read_image(write_image(tmp_path / "a.png"))
