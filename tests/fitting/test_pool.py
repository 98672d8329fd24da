"""Unlabelled images at fit time: what is left out, what is said, and that the model is ordinary."""

from __future__ import annotations

import shutil

import pytest
from PIL import Image

from ogkd.data.phantoms import write_folder
from ogkd.errors import ConfigError, DataError
from ogkd.evaluation import evaluate
from ogkd.model.load import load
from ogkd.notes import notes_to
from world import fit


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    """Phantoms with labels, and a drawer of others without."""
    root = tmp_path_factory.mktemp("pool")
    write_folder("us-breast", root / "data", splits={"train": 4, "test": 4}, seed=1)
    write_folder("us-breast", root / "more", splits={"train": 6}, seed=2)
    drawer = root / "drawer"
    drawer.mkdir()
    for number, image in enumerate(sorted((root / "more").rglob("*.png"))):
        shutil.copy(image, drawer / f"{number:03}.png")
    return root


def fit_with(world, pool, **options):
    notes: list[str] = []
    settings = {"shots": 4, **options}
    with notes_to(notes.append):
        model = fit(world / "data", "builtin", unlabelled=pool, **settings)
    return model, " ".join(notes)


def test_a_model_with_a_pool_is_an_ordinary_model(world, tmp_path):
    out = tmp_path / "m"
    model, notes = fit_with(world, world / "drawer", out=out, shots=1)
    count = len(model.card.unlabelled_images) // 2  # by content and by pixels
    assert f"Found {count} unlabelled images to learn from" in notes
    assert count > 0.6 * len(list((world / "drawer").iterdir()))  # some are not near any other
    again = load(out)
    images = sorted((world / "data" / "test").rglob("*.png"))[:5]
    assert again.predict(images) == model.predict(images)
    without, _ = fit_with(world, None, shots=1)
    assert not (model.head.W == without.head.W).all()
    _, notes = fit_with(world, world / "drawer", out=out, shots=1)
    assert "already fitted" in notes
    with pytest.raises(ConfigError) as error:  # it would replace the model
        fit_with(world, world / "drawer" / "000.png", out=out, shots=1)
    assert error.value.argument == "restart"


def test_copies_of_labelled_and_test_images_and_bad_files_are_left_out(world, tmp_path):
    drawer = tmp_path / "drawer"
    shutil.copytree(world / "drawer", drawer)
    (drawer / "broken.png").write_bytes(b"not an image")
    learned = sorted((world / "data" / "train").rglob("*.png"))[:2]
    for number, image in enumerate(learned):  # the same pixels in another format
        Image.open(image).save(drawer / f"copy{number}.bmp")
    tested = sorted((world / "data" / "test").rglob("*.png"))[0]
    shutil.copy(tested, drawer / "test.png")
    shutil.copy(drawer / "000.png", drawer / "twice.png")
    model, notes = fit_with(world, drawer)
    plain, _ = fit_with(world, world / "drawer")
    assert "1 unlabelled file left out, unreadable" in notes
    assert "1 unlabelled image left out: copies of images in the data's own val or test" in notes
    assert "2 copies of labelled images" in notes
    assert model.card.unlabelled_images == plain.card.unlabelled_images


def test_too_few_images_are_not_used_and_change_nothing(world):
    model, notes = fit_with(world, [world / "drawer" / "000.png"])
    assert "the unlabelled images are not used: 1 of 1 can be" in notes
    assert model.card.unlabelled_images == ()
    without, _ = fit_with(world, None)
    assert (model.head.W == without.head.W).all()


def test_images_unlike_the_labelled_ones_are_left_out(world, tmp_path):
    write_folder("endoscopy", tmp_path / "other", splits={"train": 5}, seed=3)
    _, notes = fit_with(world, tmp_path / "other", shots=4)
    assert "unlike the labelled images" in notes
    assert "not used" in notes


def test_an_evaluation_on_the_pool_says_so(world):
    model, _ = fit_with(world, world / "drawer")
    result = evaluate(model, world / "more", split="train")
    assert "were among the unlabelled images of the fit" in " ".join(result["warnings"])
    assert "unlabelled" not in " ".join(evaluate(model, world / "data")["warnings"])


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"method": "gda"}, ConfigError),
        ({"pool": "nowhere"}, DataError),
        ({"pool": []}, DataError),
    ],
)
def test_invalid_pools_are_refused(world, options, error):
    pool = options.pop("pool", world / "drawer")
    with pytest.raises(error) as caught:
        fit_with(world, pool, **options)
    assert error is DataError or caught.value.argument == "unlabelled"
