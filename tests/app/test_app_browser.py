"""The page in a real browser: Chromium, driven by playwright-core."""

from __future__ import annotations

from pathlib import Path

import pytest

from web_client import browse, started

SCRIPT = Path(__file__).parent / "browser" / "page.mjs"


@pytest.fixture(scope="session")
def visit(request, tmp_path_factory):
    """What a visit to the page met; the screenshots lie beside it."""
    folder = tmp_path_factory.mktemp("browser")
    broken = folder / "scan.png"
    broken.write_text("this is text")
    server, cyst, stranger = map(request.getfixturevalue, ("server", "cyst", "stranger"))
    zero = request.getfixturevalue("folders") / "zero"
    with started(tmp_path_factory.mktemp("zero"), zero) as other:
        return browse(SCRIPT, server.address, cyst, stranger, broken, folder, other.address)


def test_no_request_leaves_this_machine(visit):
    assert visit["outside"] == []
    (refused,) = visit["failed"]  # the file that is no image
    assert refused.startswith("422 ")
    assert visit["pageErrors"] == []
    assert (visit["title"], visit["language"]) == ("ogkd", "en")
    assert "not for autonomous clinical use" in visit["header"][0]
    assert "Right on 160 of 200 images that it had not learned from (80 %)" in visit["header"][0]


def test_an_upload_is_answered(visit):
    good = visit["good"]
    assert [name.split()[0] for name in good["models"]] == ["gda"]
    assert good["states"][0].startswith("Suggestion: simple cyst")
    assert len(good["classes"]) == 4
    assert good["classes"][0].startswith("simple cyst")
    assert good["sets"] == ["Plausible classes at 90 % coverage: simple cyst"]
    assert good["evidence"] == 1  # a map, or why there is none
    assert (good["drawn"], good["described"]) == (True, True)


def test_a_model_without_a_calibration_says_so(visit):
    (state,) = visit["uncalibrated"]
    assert "Not calibrated" in state


def test_a_file_that_is_no_image_gets_a_message(visit):
    (message,) = visit["broken"]["alert"]
    assert message.startswith("No answer. The file is not a readable image.")
    assert visit["broken"]["cards"] == 0


def test_an_image_unlike_the_others_is_to_be_judged_without_the_model(visit):
    assert visit["stranger"][0].startswith("Uncertain: judge this image without the model")
    assert "unlike" in visit["stranger"][0]
    withheld = visit["withheld"]
    assert "do not rely on them" in withheld["summary"][0]
    assert (withheld["shown"], withheld["opened"]) == (False, True)


def test_the_page_can_be_used_without_a_mouse(visit):
    keyboard = visit["keyboard"]
    assert 0 < keyboard["upload"] <= 5
    assert keyboard["name"]
    assert keyboard["outline"]
    assert 0 < keyboard["clear"] <= 5
    assert keyboard["cards"] == 0


def test_dark_is_dark_and_a_narrow_screen_needs_no_scrolling_sideways(visit):
    assert visit["background"] != visit["darkBackground"]
    assert visit["overflow"] <= 0
