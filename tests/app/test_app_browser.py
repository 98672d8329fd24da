"""The page in a real browser: Chromium, driven by playwright-core."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parent / "browser" / "page.mjs"
REPOSITORY = Path(__file__).parents[2]


def tools() -> tuple[str, str, Path]:
    """Node, Chromium and playwright-core, or a skip that says what is missing.

    With OGKD_REQUIRE_BROWSER set, as in .ci/run, what is missing is a failure.
    """
    missing = pytest.fail if os.environ.get("OGKD_REQUIRE_BROWSER") else pytest.skip
    node = shutil.which("node")
    names = ("chromium", "chromium-browser", "google-chrome")
    chromium = os.environ.get("OGKD_CHROMIUM") or next(filter(None, map(shutil.which, names)), None)
    root = Path(os.environ.get("OGKD_PLAYWRIGHT") or REPOSITORY / ".venv" / "node")
    core = root / "node_modules" / "playwright-core" / "index.js"
    if node is None or chromium is None:
        missing("node or chromium is not installed")
    if not core.is_file():
        missing(
            f"no playwright-core in {root}: run `make browser`, or set OGKD_PLAYWRIGHT to a folder "
            "that has it in node_modules"
        )
    return node, chromium, core


@pytest.fixture(scope="session")
def visit(request, tmp_path_factory):
    """What a visit to the page met; the screenshots lie beside it."""
    node, chromium, core = tools()
    server, phantoms, stranger = map(request.getfixturevalue, ("server", "phantoms", "stranger"))
    folder = tmp_path_factory.mktemp("browser")
    broken = folder / "scan.png"
    broken.write_text("this is text")
    good = phantoms / "test" / "simple_cyst" / "0000.png"
    done = subprocess.run(
        [node, SCRIPT, core, chromium, server.address, good, stranger, broken, folder],
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stderr
    print("screenshots:", folder)
    return json.loads(done.stdout.splitlines()[-1])


def test_no_request_leaves_this_machine(visit):
    assert visit["outside"] == []
    (refused,) = visit["failed"]  # the file that is no image
    assert refused.startswith("422 ")
    assert visit["pageErrors"] == []


def test_the_page_has_a_title_a_language_and_the_caution(visit):
    assert (visit["title"], visit["language"]) == ("ogkd", "en")
    assert "not for autonomous clinical use" in visit["header"][0]
    assert "Not calibrated" in visit["header"][0]


def test_an_upload_is_answered_by_both_models(visit):
    good = visit["good"]
    assert [name.split()[0] for name in good["models"]] == ["gda", "zero"]
    assert good["states"][0].startswith("Suggestion: simple cyst")
    assert "Not calibrated" in good["states"][1]
    assert len(good["classes"]) == 4
    assert good["classes"][0].startswith("simple cyst")
    assert good["sets"] == ["Plausible classes at 90 % coverage: simple cyst"]
    assert (good["evidence"], good["similar"]) == (2, 4)  # maps, or why there is none
    assert "models" in good["agree"][0]


def test_every_image_is_drawn_and_described(visit):
    assert visit["good"]["drawn"]
    assert visit["good"]["described"]


def test_a_file_that_is_no_image_gets_a_message(visit):
    (message,) = visit["broken"]["alert"]
    assert message.startswith("No answer. The file is not a readable image.")
    assert visit["broken"]["cards"] == 0


def test_an_image_unlike_the_others_is_referred_to_a_specialist(visit):
    assert visit["stranger"][0].startswith("Uncertain: refer to a specialist")
    assert "unlike" in visit["stranger"][0]


def test_the_probabilities_of_such_an_image_are_shown_only_on_demand(visit):
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
