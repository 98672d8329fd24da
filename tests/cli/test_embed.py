from __future__ import annotations

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from ogkd import load_backbone, read_image
from ogkd.images import to_pixels
from tiny_backbones import CONTEXT
from tiny_data import write_image


@pytest.fixture
def pictures(tmp_path):
    folder = tmp_path / "pictures"
    names = ["b/2.png", "a-b/1.png", "a/deep/0.JPG", "ä.png", "a/.hidden.png", "notes.txt"]
    for seed, name in enumerate(names[:5]):
        write_image(folder / name, seed)
    (folder / names[5]).write_text("x")
    return folder


def read(path):
    with safe_open(path, "pt") as file:
        return load_file(path), file.metadata()


def test_images_are_written_in_sorted_order_with_their_files(ogkd, clip, pictures, tmp_path):
    out = tmp_path / "new" / "f.safetensors"
    words = ["embed", pictures / "b", pictures, "--backbone", clip, "--out", out]
    outcome = ogkd(*words, "--patches")
    assert outcome.code == 0, outcome.err
    assert "4 images" in outcome.out
    assert "images/s" in outcome.out
    tensors, metadata = read(out)
    files = json.loads(metadata["files"])
    assert files == sorted(files)
    assert files == [
        f"{pictures}/{name}" for name in ("a-b/1.png", "a/deep/0.JPG", "b/2.png", "ä.png")
    ]
    backbone = load_backbone(clip, device="cpu")
    pixels = to_pixels([read_image(file) for file in files], backbone.preprocessing)
    expected = backbone.encode_images(pixels)
    assert set(tensors) == {"globals", "patches"}
    torch.testing.assert_close(tensors["globals"], expected.globals, atol=1e-6, rtol=0)
    torch.testing.assert_close(tensors["patches"], expected.patches, atol=1e-6, rtol=0)
    assert tensors["patches"].dtype == torch.float32
    assert metadata["digest"] == backbone.digest


def test_texts_give_one_row_for_each_line(ogkd, clip, tmp_path):
    lines = ["a photo of a benign tumor.", "", "normal\u2028lung", "scan " * CONTEXT, "the brain"]
    text = tmp_path / "t.txt"
    text.write_bytes(("\ufeff" + "\r\n".join(lines) + "\r\n").encode())
    out = tmp_path / "t.safetensors"
    outcome = ogkd("embed", "--texts", text, "-b", clip, "-o", out)
    assert outcome.code == 0, outcome.err
    assert "5 texts" in outcome.out
    assert f"1 text(s) longer than {CONTEXT - 2} tokens" in outcome.err
    tensors, metadata = read(out)
    assert json.loads(metadata["lines"]) == lines
    backbone = load_backbone(clip, device="cpu")
    expected = torch.cat([backbone.encode_texts([line]) for line in lines])
    torch.testing.assert_close(tensors["texts"], expected, atol=1e-5, rtol=0)


def test_bad_files_are_listed_all_at_once_and_nothing_is_written(refused, clip, pictures, tmp_path):
    for name in ("a/bad1.png", "z/bad2.png"):
        (pictures / name).parent.mkdir(exist_ok=True)
        (pictures / name).write_bytes(b"no picture")
    out = tmp_path / "f.safetensors"
    message = refused("embed", pictures, "-b", clip, "-o", out, "--patches")
    assert "2 file(s) could not be read" in message
    assert "bad1.png" in message
    assert "bad2.png" in message
    assert "or skip unreadable files (option --on-error)." in message


def test_bad_files_can_be_left_out(ogkd, clip, pictures, tmp_path):
    (pictures / "a" / "bad.png").write_bytes(b"no picture")
    out = tmp_path / "f.safetensors"
    outcome = ogkd("embed", pictures, "-b", clip, "-o", out, "--on-error", "skip", "--patches")
    assert outcome.code == 0
    assert "bad.png" in outcome.err
    tensors, metadata = read(out)
    rows = (tensors["globals"], tensors["patches"], json.loads(metadata["files"]))
    assert [len(row) for row in rows] == [4, 4, 4]


def test_out_must_be_a_file_of_ours(refused, clip, pictures, tmp_path):
    picture = pictures / "b" / "2.png"
    before = picture.read_bytes()
    for out in (tmp_path, picture, picture / "f.safetensors"):
        refused("embed", pictures, "-b", clip, "-o", out)
    assert picture.read_bytes() == before


def test_invalid_arguments_are_refused(refused, clip, pictures, tmp_path):
    (tmp_path / "t.txt").write_text("a")
    for words in (
        (),
        (pictures, "--texts", tmp_path / "t.txt"),
        ("--texts", tmp_path / "t.txt", "--patches"),
        ("--texts", tmp_path / "gone.txt"),
        (tmp_path / "gone.png",),
        (clip,),
        (pictures, "-b", "nothing"),
        (pictures, "--device", "warp"),
    ):
        refused("embed", "-b", clip, *words, "-o", tmp_path / "f")
