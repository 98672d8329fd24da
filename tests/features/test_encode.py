from __future__ import annotations

import pytest
import torch

import ogkd.features.encode as encode
from ogkd.errors import DataError
from ogkd.features.encode import encode_files
from ogkd.features.unreadable import BadFile, unreadable_error
from ogkd.images import ImageRef, read_image, to_pixels
from tiny_data import write_image


@pytest.fixture
def files(tmp_path):
    sizes = [(40, 48), (33, 90), (64, 64), (120, 31), (32, 32)]
    return [
        ImageRef(write_image(tmp_path / f"{n}.png", n, size=size)) for n, size in enumerate(sizes)
    ]


@pytest.mark.parametrize("batch_size", [1, 2, 5, 9])
def test_batches_are_the_backbones_features_in_order(bert_backbone, files, batch_size):
    batches = list(encode_files(bert_backbone, files, patches=True, batch_size=batch_size))
    assert [image for batch in batches for image in batch.readable] == files
    assert max(len(batch.images) for batch in batches) <= batch_size
    pixels = to_pixels([read_image(file) for file in files], bert_backbone.preprocessing)
    expected = bert_backbone.encode_images(pixels)
    assert next(iter(encode_files(bert_backbone, files))).features.patches is None
    for name in ("globals", "patches"):
        found = torch.cat([getattr(batch.features, name) for batch in batches])
        torch.testing.assert_close(found, getattr(expected, name), atol=1e-6, rtol=0)


def test_bad_files_are_set_apart_with_the_reason(bert_backbone, files, tmp_path):
    bad, gone = ImageRef(tmp_path / "bad.png"), ImageRef(tmp_path / "gone.png")
    bad.file.write_bytes(b"no picture")
    paths = [files[0], bad, files[1], gone, gone]
    first, last = encode_files(bert_backbone, paths, batch_size=3)
    assert first.readable == [files[0], files[1]]
    assert len(first.features.globals) == 2
    assert [file.image for file in first.bad] == [bad]
    assert list(first.images) == paths[:3]
    assert last.features is None
    assert last.readable == []
    assert [file.image for file in last.bad] == [gone, gone]


def test_a_picture_that_cannot_be_scaled_is_a_bad_file(bert_backbone, files, monkeypatch):
    def fail(image, prep):
        raise MemoryError

    monkeypatch.setattr(encode, "center_crop", fail)
    (batch,) = encode_files(bert_backbone, files[:1])
    assert "48 x 40" in batch.bad[0].reason


def test_files_are_read_at_most_one_batch_ahead(bert_backbone, files, monkeypatch):
    read = []

    def counting(path, **options):
        read.append(path)
        return read_image(path, **options)

    monkeypatch.setattr(encode, "look_at", counting)
    batches = encode_files(bert_backbone, files * 20, batch_size=2)
    next(batches)
    assert len(read) <= 4
    next(batches)
    assert len(read) <= 6
    batches.close()
    assert len(read) <= 6


def test_an_error_that_is_not_the_files_fault_is_not_hidden(bert_backbone, files, monkeypatch):
    def fail(path, **options):
        raise ZeroDivisionError

    monkeypatch.setattr(encode, "look_at", fail)
    with pytest.raises(ZeroDivisionError):
        list(encode_files(bert_backbone, files))


def test_the_error_lists_some_files_and_counts_the_rest(tmp_path):
    bad = [BadFile(ImageRef(tmp_path / f"{n}"), f"reason {n}.") for n in range(25)]
    error = unreadable_error(bad, "Do this.")
    assert isinstance(error, DataError)
    lines = str(error).splitlines()
    assert lines[0] == "25 file(s) could not be read:"
    assert lines[1:21] == [f"  reason {n}." for n in range(20)]
    assert lines[21:] == ["  ... and 5 more", "Do this."]
