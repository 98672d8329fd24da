from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from released_bank import PATH, released_source
from stub_server import Reply, StubServer, serve, texts
from tiny_data import write_dataset

KEY = "sk-never-shown"


@pytest.fixture
def stub(monkeypatch: pytest.MonkeyPatch) -> Iterator[StubServer]:
    monkeypatch.setattr("openai._base_client.INITIAL_RETRY_DELAY", 0.01)
    with serve() as running:
        monkeypatch.setenv("OGKD_LLM_URL", running.url)
        monkeypatch.setenv("OGKD_LLM_KEY", KEY)
        yield running


def ask_for(out: Path, *more: object) -> list[object]:
    names = "kidney stone, normal kidney"
    return ["prompts", "new", "--model", "tiny", "--out", out, "--classes", names, *more]


def test_show_lists_every_bank_or_prints_one(ogkd, tmp_path):
    banks = json.loads(ogkd("prompts", "show", "--json").out)
    assert (len(banks), sum(map(len, banks.values()))) == (11, 56)
    listed = ogkd("prompts", "show").out
    assert all(name in listed for name in banks)
    table = tmp_path / "texts.csv"
    table.write_text("class,text\ncyst,short one\nstone,a small stone\n")
    assert (
        ogkd("prompts", "show", table).out == "cyst (1)\n  short one\nstone (1)\n  a small stone\n"
    )
    assert len(json.loads(ogkd("prompts", "show", "busi", "--json").out)) == 3


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


def test_generate_writes_a_bank_that_passes_the_check(ogkd, stub, tmp_path):
    out = tmp_path / "bank.json"
    outcome = ogkd(*ask_for(out, "--modality", "ct", "--organ", "abdomen"))
    assert outcome.code == 0, outcome.err
    assert ogkd("prompts", "check", out).code == 0
    assert "CT images of the abdomen" in stub.questions[0]["messages"][-1]["content"]
    assert f"Bearer {KEY}" in stub.posts[0][1].values()
    assert KEY not in outcome.out + outcome.err + out.read_text()


def test_generate_keeps_what_it_has_when_the_model_gives_too_little(ogkd, stub, tmp_path):
    out = tmp_path / "bank.json"
    first = json.dumps(texts("kidney stone", 1))
    stub.script = [Reply(first)] * 8
    outcome = ogkd(*ask_for(out))
    assert outcome.code == 2
    assert "kidney stone" in outcome.err
    assert "normal kidney" not in outcome.err
    assert len(json.loads(out.read_text())["normal kidney"]) == 50
    assert ogkd(*ask_for(out)).code == 0
    assert json.loads(out.read_text())["kidney stone"][0] == json.loads(first)[0]


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
    shown = json.loads(ogkd("prompts", "show", "released", "--json").out)["cataract"]
    assert (len(shown), len(set(shown))) == (50, 10)  # repetitions are kept
    images = write_dataset(tmp_path / "eyes", classes=("cataract", "glaucoma"))
    words = ("--prompts", "released", "--method", "zero-shot-ensemble", "--backbone", "builtin")
    assert ogkd("fit", images, *words, "--out", tmp_path / "model").code == 0
    card = json.loads((tmp_path / "model" / "model.json").read_text())
    assert card["prompts"] == "released"
