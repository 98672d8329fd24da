"""The studio as a person uses it: real Chromium, from an empty project to an exported model."""

from __future__ import annotations

import re
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("uvicorn")
from web_client import browse, started

SCRIPTS = Path(__file__).parent / "browser"


@pytest.fixture(scope="module")
def results(pile, tmp_path_factory):
    folder = tmp_path_factory.mktemp("studio") / "web"
    with started(folder, pile, "--out", folder / "project", command="studio") as server:
        yield browse(SCRIPTS / "studio.mjs", server.address, folder)


def test_nothing_fails_and_no_request_leaves_this_machine(results):
    assert (results["outside"], results["failed"], results["pageErrors"]) == ([], [], [])


def test_a_new_project_begins_with_images_and_classes(results):
    assert results["title"] == "ogkd studio"
    assert results["step"].startswith("1")
    assert (results["cells"] > 20, results["broken"]) == (True, 1)
    assert re.search(r"Not readable: 1 \(\S*broken\.png\)\.", results["counts"])


def test_labels_undo_and_unsure_are_kept_by_the_server(results):
    assert (results["labelled"], results["undone"], results["unsure"]) == (12, 11, 11)
    assert results["twice"] == 0
    assert "Another window has labelled this image as simple cyst" in results["conflict"]


def test_the_accuracy_follows_soon_after_a_label_and_the_guess_only_if_asked_for(results):
    assert results["accuracy"].endswith("%")
    assert results["secondsToFit"] < 20  # a second or two on an idle machine
    assert results["hidden"]
    assert results["guessBottom"] <= 900  # in view without scrolling


def test_an_image_is_explained_and_corrected(results):
    assert (results["drawn"], results["described"], results["corrected"]) == (True, True, 1)


def test_everything_is_downloaded_as_one_archive(results):
    assert results["export"]["name"].endswith(".zip")
    assert results["export"]["bytes"] > 500


def test_every_control_has_a_name_dark_is_dark_and_no_screen_scrolls_sideways(results):
    assert results["unnamed"] == []
    assert results["dark"] != results["light"]
    assert set(results["overflow"].values()) == {0}


@pytest.mark.slow
def test_a_gallery_of_five_thousand_images_stays_fluid(tmp_path):
    pile = tmp_path / "pile"
    pile.mkdir()
    rng = np.random.default_rng(0)
    for number in range(5000):
        small = rng.integers(0, 255, (24, 24), np.uint8)
        Image.fromarray(small).save(pile / f"{number:04d}.png", compress_level=1)
    words = (pile, "--out", tmp_path / "project", "--backbone", "builtin")
    with started(tmp_path / "web", *words, command="studio") as server:
        while server.get("/api/state").json()["images"] < 5000:
            time.sleep(0.1)
        results = browse(SCRIPTS / "many.mjs", server.address, tmp_path)
    assert results["most"] < 120
    assert results["median"] < 400  # milliseconds, on a busy machine without a graphics card
    assert results["last"].startswith("4999.png")
