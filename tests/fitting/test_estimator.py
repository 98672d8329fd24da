from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score

import ogkd
from ogkd import OGKDClassifier
from ogkd.data.read import read_dataset
from ogkd.errors import ConfigError, DataError
from tiny_backbones import make_clip
from tiny_data import write_exams
from tiny_images import volume

NAMES = ("benign tumor", "malignant tumor", "normal lung")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    folder = tmp_path_factory.mktemp("estimator") / "clip"
    make_clip(folder)
    return str(folder)


@pytest.fixture(scope="module")
def images():
    """Arrays [N, H, W, 3] of three classes that differ in brightness, and their names."""
    rng = np.random.default_rng(0)
    pixels = [rng.integers(0, 40, (36, 40, 3)) + 70 * (row % 3) for row in range(18)]
    return np.stack(pixels).astype(np.uint8), np.array([NAMES[row % 3] for row in range(18)])


@pytest.fixture(autouse=True)
def _own_temporary_folder(tmp_path, monkeypatch):
    """What is left in it after a test was left by the estimator."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield
    assert list(folder.iterdir()) == []


def files_of(pixels, folder):
    paths = []
    for row, image in enumerate(pixels):
        paths.append(str(folder / f"{row}.png"))
        Image.fromarray(image).save(paths[-1])
    return paths


def test_files_arrays_and_pictures_of_the_same_images_give_the_same_model(clip, images, tmp_path):
    pixels, y = images
    forms = {
        "paths": files_of(pixels, tmp_path),
        "Path objects": [Path(path) for path in files_of(pixels, tmp_path)],
        "array of paths": np.array(files_of(pixels, tmp_path)),
        "bytes": pixels,
        "shares": pixels / 255.0,
        "float32 shares": (pixels / 255.0).astype(np.float32),
        "list of arrays": list(pixels),
        "pictures": [Image.fromarray(image) for image in pixels],
    }
    expected = None
    for name, X in forms.items():
        model = OGKDClassifier(clip, "gda").fit(X, y)
        p = model.predict_proba(X[:5])
        assert p.shape == (5, 3), name
        expected = p if expected is None else expected
        np.testing.assert_array_equal(p, expected, err_msg=name)


def test_it_agrees_with_fit_on_a_folder_and_its_model_can_be_saved(clip, images, tmp_path):
    pixels, y = images
    folder = tmp_path / "data"
    for row, image in enumerate(pixels):
        (folder / y[row]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / y[row] / f"{row:02}.png")
    files = sorted(folder.rglob("*.png"))
    same = ogkd.fit(folder, backbone=clip, method="gda")
    model = OGKDClassifier(clip, "gda").fit(files, [file.parent.name for file in files])
    assert list(model.classes_) == list(same.class_names) == list(NAMES)
    np.testing.assert_allclose(model.predict_proba(files), same.predict_proba(files), atol=1e-5)
    model.model_.save(tmp_path / "model")
    again = ogkd.load(tmp_path / "model")
    np.testing.assert_allclose(again.predict_proba(files), model.predict_proba(files), atol=1e-5)
    assert model.score(files, [file.parent.name for file in files]) == pytest.approx(
        np.mean([a == f.parent.name for a, f in zip(same.predict(files), files, strict=True)])
    )


def test_labels_come_back_as_they_were_given(clip, images):
    pixels, names = images
    numbers = np.array([10 * NAMES.index(name) - 5 for name in names])
    known = {-5: NAMES[0], 5: NAMES[1], 15: NAMES[2]}
    model = OGKDClassifier(clip, "gda", class_names=known).fit(pixels, numbers)
    assert model.classes_.tolist() == [-5, 5, 15]
    assert model.model_.class_names == NAMES
    assert model.predict(pixels).dtype == numbers.dtype
    by_name = OGKDClassifier(clip, "gda").fit(pixels, names)
    assert [known[label] for label in model.predict(pixels).tolist()] == list(
        by_name.predict(pixels)
    )


def test_labels_without_names_are_refused_or_warned_of(clip, images):
    pixels, names = images
    y = [NAMES.index(name) for name in names]
    with pytest.warns(UserWarning, match="class_names"):
        model = OGKDClassifier(clip, "gda").fit(pixels, y)
    assert model.model_.class_names == ("0", "1", "2")
    with pytest.raises(ConfigError):
        OGKDClassifier(clip, "gda", class_names={n: n for n in NAMES[:2]}).fit(*images)
    with pytest.raises(NotFittedError):
        OGKDClassifier().predict(["a.png"])


def test_parameters_are_kept_cloned_and_changed_as_scikit_learn_does():
    settings = {"train.epochs": 3}
    model = OGKDClassifier("builtin", "coop", shots=4, settings=settings, class_names={0: "a"})
    params = model.get_params()
    assert params["settings"] is settings
    copy = clone(model)
    assert copy is not model
    assert copy.get_params() == params
    assert copy.set_params(shots=8, method="gda").shots == 8
    assert model.shots == 4
    assert is_classifier(model)
    assert "shots=4" in repr(model)


def test_cross_validation_and_single_settings_in_a_grid_search(clip, images, tmp_path):
    pixels, y = images
    model = OGKDClassifier(clip, "gda")
    scores = cross_val_score(model, np.array(files_of(pixels, tmp_path)), y, cv=3)
    np.testing.assert_allclose(scores, cross_val_score(model, pixels, y, cv=3))
    search = GridSearchCV(model, {"settings__alpha": [0.01, 10.0], "shots": [2, None]}, cv=2)
    search.fit(pixels, y)
    assert set(search.best_params_) == {"settings__alpha", "shots"}
    best = search.best_estimator_.model_.card
    assert best.config["alpha"] == search.best_params_["settings__alpha"]
    assert {row["settings__alpha"] for row in search.cv_results_["params"]} == {0.01, 10.0}
    assert model.settings is None


def test_settings_have_names_that_can_be_listed_set_and_cloned():
    model = OGKDClassifier(method="coop", settings={"train": {"lr": 0.5}})
    params = model.get_params()
    assert params["settings__train__lr"] == 0.5
    assert (
        params["settings__train__epochs"]
        == ogkd.methods.make_method("coop", preset="auto").config.train.epochs
    )
    changed = clone(model).set_params(settings__train__epochs=3)
    assert changed.get_params()["settings__train__epochs"] == 3
    assert changed.get_params()["settings__train__lr"] == 0.5
    assert clone(changed).settings == {"train.lr": 0.5, "train.epochs": 3}
    assert model.settings == {"train": {"lr": 0.5}}
    assert clone(model).set_params(**params).get_params()["settings__train__lr"] == 0.5
    both = clone(model).set_params(method="gda", settings={}, settings__alpha=2.0)
    assert both.settings == {"alpha": 2.0}


def test_an_unknown_setting_is_refused_with_what_is_near():
    model = OGKDClassifier(method="gda")
    for method, wrong in (("gda", "settings__alpa"), ("ogkd", "settings__train__epoch")):
        with pytest.raises(ConfigError) as error:
            OGKDClassifier(method=method).set_params(**{wrong: 1})
        assert error.value.argument == "settings"
    with pytest.raises(ValueError, match="Invalid parameter 'shot'"):
        model.set_params(shot=1)
    assert "settings__alpha" not in OGKDClassifier(method="no such method").get_params()


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (np.zeros((2, 8, 8), np.uint8), ["a"]),
        (np.zeros((2, 8, 8), np.uint8), ["a", "a"]),
        (np.zeros((2, 8, 8, 5), np.uint8), ["a", "b"]),
        (np.zeros((2, 8), np.uint8), ["a", "b"]),
        (np.zeros((9, 8, 3), np.uint8), ["a"] * 9),
        (np.full((2, 8, 8), 7.5), ["a", "b"]),
        (np.full((2, 8, 8), np.nan), ["a", "b"]),
        (np.zeros((2, 8, 8), np.int64), ["a", "b"]),
        ([], []),
        ("a.png", ["a"]),
        (["gone.png", "away.png"], ["a", "b"]),
        ([["a.png"], []], ["a", "b"]),
        (np.zeros((2, 8, 8), np.uint8), ["a_b", "A b"]),
    ],
)
def test_data_that_cannot_be_used_is_refused(clip, X, y):
    with pytest.raises(DataError):
        OGKDClassifier(clip, "gda").fit(X, y)


def test_pictures_of_other_modes_and_turned_ones_are_read_like_their_files(clip, images, tmp_path):
    pixels, y = images
    model = OGKDClassifier(clip, "gda").fit(pixels, y)
    wide = Image.fromarray(pixels[0][:20])
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    wide.save(tmp_path / "turned.png", exif=exif)
    deep = Image.fromarray(pixels[1][..., 0].astype(np.uint16) * 200)
    deep.save(tmp_path / "deep.png")
    pictures = [Image.open(tmp_path / "turned.png"), deep]
    names = ("turned.png", "deep.png")
    files = [tmp_path / name for name in names]
    np.testing.assert_array_equal(model.predict_proba(pictures), model.predict_proba(files))
    pictures[0].close()


@pytest.mark.parametrize("findings", [False, True])
def test_lists_of_images_are_cases(clip, tmp_path, findings):
    dataset = read_dataset(write_exams(tmp_path, per_class=6))
    exams = {}
    for case in dataset.cases:
        exams.setdefault((case.columns["exam"], dataset.task.text(case.target)), []).append(
            str(case.image)
        )
    X, y = list(exams.values()), np.array([label for _, label in exams])
    options = {"normal": ["normal"]}
    if findings:
        y = np.stack([y == "spot", y == "normal"], axis=1).astype(int)
        options = {"class_names": {0: "spot", 1: "nothing"}}
    classifier = OGKDClassifier(clip, **options).fit(X, y)
    assert (classifier.model_.card.images, classifier.model_.card.learned_cases) == (48, 12)
    expected = classifier.model_.predict_proba({str(n): images for n, images in enumerate(X)})
    p = classifier.predict_proba(X)
    np.testing.assert_allclose(
        np.stack([table[:, 1] for table in p], 1) if findings else p, expected, atol=1e-5
    )
    assert classifier.predict(X).shape == y.shape
    assert classifier.score(X, y) > 0.5


def test_volumes_are_cases_with_slices(clip, tmp_path):
    files = [str(volume(tmp_path / f"{n}.nii", filled=range(4, 8 + n))) for n in range(4)]
    classifier = OGKDClassifier(clip, "gda", slices="all").fit(files, ["a", "b", "a", "b"])
    p = classifier.predict_proba([files[3], files[0], files[3]])
    assert p.shape == (3, 2)
    np.testing.assert_array_equal(p[0], p[2])
    np.testing.assert_allclose(p[:1], classifier.model_.predict_proba([files[3]]), atol=1e-5)
