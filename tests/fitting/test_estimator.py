from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
import tifffile
from PIL import Image
from sklearn import config_context
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score

import ogkd
from ogkd import OGKDClassifier
from ogkd.data.read import read_dataset
from ogkd.errors import ConfigError, DataError
from ogkd.fitting import estimator
from ogkd.images import read_image
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


def test_gray_arrays_are_gray_pictures(clip, images):
    gray, y = images[0][..., 0], images[1]
    model = OGKDClassifier(clip, "gda").fit(gray, y)
    expected = model.predict_proba(np.repeat(gray[..., None], 3, axis=3))
    np.testing.assert_array_equal(model.predict_proba(gray), expected)
    np.testing.assert_array_equal(model.predict_proba(gray[..., None]), expected)


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


def test_numbers_without_names_are_warned_of(clip, images):
    pixels, names = images
    y = [NAMES.index(name) for name in names]
    with pytest.warns(UserWarning, match="class_names"):
        model = OGKDClassifier(clip, "gda").fit(pixels, y)
    assert model.model_.class_names == ("0", "1", "2")


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


def test_cross_validation_and_grid_search_work(clip, images, tmp_path):
    pixels, y = images
    model = OGKDClassifier(clip, "gda")
    scores = cross_val_score(model, np.array(files_of(pixels, tmp_path)), y, cv=3)
    np.testing.assert_allclose(scores, cross_val_score(model, pixels, y, cv=3))
    assert scores.shape == (3,)
    assert np.isfinite(scores).all()
    settings = [{"alpha": 0.01}, {"alpha": 10.0}]
    search = GridSearchCV(model, {"settings": settings, "method": ["gda"]}, cv=2)
    search.fit(pixels, y)
    assert search.best_params_["settings"] in settings
    assert search.predict(pixels).shape == (18,)


def test_single_settings_are_parameters_of_a_grid_search(clip, images):
    pixels, y = images
    model = OGKDClassifier(clip, "gda")
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


def test_a_prompt_learner_trains_through_it(clip, images):
    pixels, y = images
    fast = {"train.epochs": 1, "views": 1}
    model = OGKDClassifier(clip, "ogkd", shots=2, settings=fast).fit(pixels, y)
    assert model.model_.card.method == "ogkd"
    np.testing.assert_allclose(model.predict_proba(pixels).sum(axis=1), 1, atol=1e-5)


def test_it_must_be_fitted_first():
    with pytest.raises(NotFittedError):
        OGKDClassifier().predict(["a.png"])


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
        (np.zeros((2, 8, 8), np.uint8), ["a_b", "A b"]),
    ],
)
def test_data_that_cannot_be_used_is_refused(clip, X, y):
    with pytest.raises(DataError):
        OGKDClassifier(clip, "gda").fit(X, y)


def test_a_label_without_a_name_is_refused(clip, images):
    with pytest.raises(ConfigError):
        OGKDClassifier(clip, "gda", class_names={n: n for n in NAMES[:2]}).fit(*images)


def test_pictures_of_other_modes_and_turned_ones_are_read_like_their_files(clip, images, tmp_path):
    pixels, y = images
    model = OGKDClassifier(clip, "gda").fit(pixels, y)
    wide = Image.fromarray(pixels[0][:20])
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    wide.save(tmp_path / "turned.png", exif=exif)
    deep = Image.fromarray(pixels[1][..., 0].astype(np.uint16) * 200)
    deep.save(tmp_path / "deep.png")
    wide.convert("CMYK").convert("RGB").save(tmp_path / "cmyk.png")
    pictures = [Image.open(tmp_path / "turned.png"), deep, wide.convert("CMYK")]
    names = ("turned.png", "deep.png", "cmyk.png")
    files = [tmp_path / name for name in names]
    np.testing.assert_array_equal(model.predict_proba(pictures), model.predict_proba(files))
    pictures[0].close()


@pytest.mark.parametrize("mode", ["F", "I", "I;16", "I;16B"])
def test_deep_pictures_keep_their_range_as_files_do(images, tmp_path, mode):
    gray = images[0][0, :, :, 0].astype(np.float64)
    # Numbers that a byte cannot hold: shares (F), those of a scan, and more than 16 bits hold (I).
    values = {"F": gray / 500, "I": gray * 5000 - 900}.get(mode, gray * 250 + 300)
    kind = {"F": np.float32, "I": np.int32, "I;16": "<u2", "I;16B": ">u2"}[mode]
    picture = Image.fromarray(values.astype(kind))
    assert picture.mode == mode
    tifffile.imwrite(tmp_path / "deep.tiff", values.astype(kind))
    with estimator._files([picture]) as ([file],):
        seen = read_image(file)
    np.testing.assert_array_equal(seen, read_image(tmp_path / "deep.tiff"))
    shares = (gray - gray.min()) / (gray.max() - gray.min())
    assert np.abs(seen - 255 * shares[..., None]).max() < 0.51


@pytest.fixture(scope="module")
def exams(tmp_path_factory):
    """Files of exams, their labels, and the exam of each."""
    table = write_exams(tmp_path_factory.mktemp("exams"), per_class=6)
    dataset = read_dataset(table)
    rows = [
        (str(case.image), dataset.task.text(case.target), case.columns["exam"])
        for case in dataset.cases
    ]
    return tuple(np.array(column) for column in zip(*rows, strict=True))


def in_lists(X, y, groups):
    """The same exams as lists of images, with a label each."""
    names = list(dict.fromkeys(groups))
    return [list(X[groups == n]) for n in names], [y[groups == n][0] for n in names]


def test_images_in_groups_and_lists_of_images_are_the_same_cases(clip, exams):
    X, y, groups = exams
    order = np.random.default_rng(0).permutation(len(X))  # images need not be neighbours
    X, y, groups = X[order], y[order], groups[order]
    classifier = OGKDClassifier(clip, "gda", normal=["normal"])
    p = classifier.fit(X, y, groups=groups).predict_proba(X, groups=groups)
    names = list(dict.fromkeys(groups))
    assert p.shape == (12, 2)
    assert classifier.model_.card.images == 48
    expected = classifier.model_.predict_proba({n: list(X[groups == n]) for n in names})
    np.testing.assert_allclose(p, expected, atol=1e-5)
    cases, labels = in_lists(X, y, groups)
    other = clone(classifier).fit(cases, labels)
    np.testing.assert_allclose(other.predict_proba(cases), p, atol=1e-5)
    assert other.score(cases, labels) == classifier.score(X, y, groups=groups) > 0.5
    np.testing.assert_array_equal(other.predict(cases[:2]), classifier.predict(X, groups)[:2])


def test_images_may_have_labels_of_their_own(clip, exams):
    X, y, groups = exams
    own = np.array(
        [
            label if f"-{int(g[-1]) % 4}.png" in x else "normal"
            for x, label, g in zip(X, y, groups, strict=True)
        ]
    )
    classifier = OGKDClassifier(clip, "gda", normal=["normal"]).fit(X, own, groups=groups)
    assert classifier.model_.card.support_counts == (6, 6)
    assert classifier.score(X, own, groups=groups) == classifier.score(X, y, groups=groups)
    with pytest.raises(DataError) as error:
        OGKDClassifier(clip, "gda", normal=[]).fit(X, own, groups=groups)
    assert error.value.argument == "cases"


def test_findings_of_cases_are_fitted_and_scored(clip, exams):
    X, y, groups = exams
    marks = np.stack([y == "spot", y == "normal"], axis=1).astype(int)
    names = {0: "spot", 1: "nothing"}
    classifier = OGKDClassifier(clip, class_names=names).fit(X, marks, groups=groups)
    assert classifier.predict(X, groups=groups).shape == (12, 2)
    assert [p.shape for p in classifier.predict_proba(X, groups=groups)] == [(12, 2)] * 2
    cases, labels = in_lists(X, marks, groups)
    other = clone(classifier).fit(cases, np.array(labels))
    assert other.score(cases, np.array(labels)) == classifier.score(X, marks, groups=groups)


def test_cases_are_cross_validated_as_samples_or_by_routed_groups(clip, exams):
    X, y, groups = exams
    cases, labels = in_lists(X, y, groups)
    classifier = OGKDClassifier(clip, "gda", normal=["normal"])
    folds = np.arange(12) % 2
    split = [(np.flatnonzero(folds != k), np.flatnonzero(folds == k)) for k in (0, 1)]
    alone = cross_val_score(classifier, cases, labels, cv=split)
    fold = {name: folds[n] for n, name in enumerate(dict.fromkeys(groups))}
    of = np.array([fold[name] for name in groups])
    wide = [(np.flatnonzero(of != k), np.flatnonzero(of == k)) for k in (0, 1)]
    with config_context(enable_metadata_routing=True):
        asking = classifier.set_fit_request(groups=True).set_score_request(groups=True)
        routed = cross_val_score(asking, X, y, cv=wide, params={"groups": groups})
    np.testing.assert_allclose(alone, routed)


def test_volumes_are_cases_with_slices(clip, tmp_path):
    files = [str(volume(tmp_path / f"{n}.nii", filled=range(4, 8 + n))) for n in range(4)]
    classifier = OGKDClassifier(clip, "gda", slices="all").fit(files, ["a", "b", "a", "b"])
    p = classifier.predict_proba([files[3], files[0], files[3]])
    assert p.shape == (3, 2)
    np.testing.assert_array_equal(p[0], p[2])
    np.testing.assert_allclose(p[:1], classifier.model_.predict_proba([files[3]]), atol=1e-5)


def test_invalid_cases_are_refused(clip, exams):
    X, y, groups = exams
    classifier = OGKDClassifier(clip, "gda")
    for wrong in (groups[:3], [None, *groups[1:]]):
        with pytest.raises(DataError):
            classifier.fit(X, y, groups=wrong)
    with pytest.raises(DataError):
        classifier.fit([[X[0]], []], ["a", "b"])
