from __future__ import annotations

import json

from ogkd.prompts.bank import read_bank, shipped_banks
from released_bank import PATH, released_source
from stub_server import serve
from tiny_data import texts, write_dataset


def test_show_lists_every_bank_or_prints_one(ogkd, tmp_path):
    listed = ogkd("prompts", "show").out
    assert len(banks := shipped_banks()) == 11
    assert all(name in listed for name in banks)
    table = tmp_path / "texts.csv"
    table.write_text("class,text\ncyst,short one\nstone,a small stone\n")
    assert (
        ogkd("prompts", "show", table).out == "cyst (1)\n  short one\nstone (1)\n  a small stone\n"
    )
    assert all(f"{name} (50)" in ogkd("prompts", "show", "busi").out for name in read_bank("busi"))


def test_check_ends_with_code_1_on_errors_and_names_them(ogkd, tmp_path):
    path = tmp_path / "bad.json"
    path.write_text(json.dumps({"cyst": ["1. a cyst", *texts("cyst", 11)]}))
    outcome = ogkd("prompts", "check", path)
    assert outcome.code == 1
    assert "[numbering]" in outcome.out
    assert "[length]" in outcome.out
    assert "FAILED" in outcome.out
    assert ogkd("prompts", "check", "busi").code == 0


def test_new_makes_a_bank_that_fit_accepts(ogkd, refused, tmp_path, clip, data):
    out = tmp_path / "new.json"
    names = "benign tumor, malignant tumor, normal lung"
    words = ("prompts", "new", "--modality", "x-ray", "--organ", "lung", "--out", out)
    outcome = ogkd(*words, "--classes", names)
    assert outcome.code == 0, outcome.err
    assert set(json.loads(out.read_text())) == {"benign tumor", "malignant tumor", "normal lung"}
    assert ogkd("prompts", "check", out).code == 0
    model = tmp_path / "model"
    fit = ("fit", data, "--backbone", clip, "--method", "zero-shot-ensemble", "--out", model)
    assert ogkd(*fit, "--prompts", out).code == 0
    assert "already exists" in refused("prompts", "new", "-c", "a", "--out", out)


def test_the_released_bank_is_fetched_listed_shown_and_used_by_name(
    ogkd, refused, tmp_path, monkeypatch
):
    assert "ogkd prompts fetch released" in refused("prompts", "show", "released")
    refused("prompts", "fetch", "other")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    with serve() as server:
        monkeypatch.setenv("OGKD_GITHUB", server.address)
        server.files[PATH] = released_source()
        outcome = ogkd("prompts", "fetch", "released")
    assert outcome.code == 0
    assert "72 classes with 3600 texts" in outcome.out
    assert "released" in ogkd("prompts", "show").out
    assert "cataract (50)" in ogkd("prompts", "show", "released").out
    assert len(set(read_bank("released")["cataract"])) == 10  # repetitions are kept
    images = write_dataset(tmp_path / "eyes", classes=("cataract", "glaucoma"))
    words = ("--prompts", "released", "--method", "zero-shot-ensemble", "--backbone", "builtin")
    assert ogkd("fit", images, *words, "--out", tmp_path / "model").code == 0
    card = json.loads((tmp_path / "model" / "model.json").read_text())
    assert card["prompts"] == "released"
