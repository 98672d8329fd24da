from __future__ import annotations

import pickle
import tempfile

import numpy as np
import pytest
from PIL import Image
from sklearn.base import clone, is_classifier
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score

import ogkd
from ogkd import OGKDClassifier
from ogkd.data.read import read_dataset
from ogkd.errors import ConfigError, DataError
from tiny_data import write_exams
from tiny_images import volume

NAMES = ("benign tumor", "malignant tumor", "normal lung")


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
    files = files_of(pixels, tmp_path)
    expected = OGKDClassifier(clip, "gda").fit(files, y).predict_proba(files)
    for X in (np.array(files), pixels, pixels / 255.0, [Image.fromarray(one) for one in pixels]):
        p = OGKDClassifier(clip, "gda").fit(X, y).predict_proba(X)
        np.testing.assert_array_equal(p, expected)


def test_it_agrees_with_fit_on_a_folder(clip, data):
    files = sorted((data / "train").rglob("*.png"))
    y = [file.parent.name.replace("_", " ") for file in files]
    same = ogkd.fit(data, backbone=clip, method="gda")
    model = OGKDClassifier(clip, "gda").fit(files, y)
    assert list(model.classes_) == list(same.class_names)
    np.testing.assert_allclose(model.predict_proba(files), same.predict_proba(files), atol=1e-5)
    assert model.score(files, y) == np.mean(np.array(same.predict(files)) == y)


def test_labels_come_back_as_they_were_given(clip, images):
    pixels, names = images
    numbers = np.array([10 * NAMES.index(name) - 5 for name in names])
    known = {-5: NAMES[0], 5: NAMES[1], 15: NAMES[2]}
    model = OGKDClassifier(clip, "gda", class_names=known).fit(pixels, numbers)
    assert model.classes_.tolist() == [-5, 5, 15]
    assert model.model_.class_names == NAMES
    assert set(model.predict(pixels).tolist()) <= set(known)
    with pytest.warns(UserWarning, match="class_names"):
        OGKDClassifier(clip, "gda").fit(pixels, numbers)
    with pytest.raises(ConfigError):
        OGKDClassifier(clip, "gda", class_names={5: "a"}).fit(pixels, numbers)
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


def test_cross_validation_and_grid_search(clip, images, tmp_path):
    pixels, y = images
    model = OGKDClassifier(clip, "gda")
    scores = cross_val_score(model, np.array(files_of(pixels, tmp_path)), y, cv=3)
    np.testing.assert_allclose(scores, cross_val_score(model, pixels, y, cv=3))
    grid = {"settings": [{"alpha": 0.01}, {"alpha": 10.0}], "shots": [2, None]}
    search = GridSearchCV(model, grid, cv=2).fit(pixels, y)
    best = search.best_estimator_.model_.card
    assert best.config["alpha"] == search.best_params_["settings"]["alpha"]
    assert model.settings is None


@pytest.mark.parametrize(
    ("X", "y"),
    [
        (np.zeros((2, 8, 8), np.uint8), ["a"]),
        (np.zeros((2, 8, 8), np.uint8), ["a", "a"]),
        (np.zeros((9, 8, 3), np.uint8), ["a"] * 9),
        (np.full((2, 8, 8), np.nan), ["a", "b"]),
        ("a.png", ["a"]),
        (["gone.png", "away.png"], ["a", "b"]),
        ([["a.png"], []], ["a", "b"]),
    ],
)
def test_data_that_cannot_be_used_is_refused(clip, X, y):
    with pytest.raises(DataError) as error:
        OGKDClassifier(clip, "gda").fit(X, y)
    assert isinstance(error.value, ValueError)  # which scikit-learn expects


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


def test_errors_are_those_that_scikit_learn_expects_and_survive_processes(clip, images):
    pixels, y = images
    fitted = OGKDClassifier(clip, "gda").fit(pixels, y)
    with pytest.raises(ValueError, match="one image") as data:
        fitted.predict("a.png")
    with pytest.raises(ConfigError) as config:
        OGKDClassifier(clip, "no-such-method").fit(pixels, y)
    for error, kind in ((data.value, DataError), (config.value, ConfigError)):
        again = pickle.loads(pickle.dumps(error))
        assert isinstance(again, kind)
        assert isinstance(again, ValueError)
        assert (str(again), again.argument) == (str(error), error.argument)


def test_a_pickle_names_the_backbone_and_holds_no_weights_of_it(clip, images):
    pixels, y = images
    for backbone in (clip, ogkd.load_backbone(clip)):
        fitted = OGKDClassifier(backbone, "gda", shots=4).fit(pixels, y)
        content = pickle.dumps(fitted)
        assert len(content) < (clip / "model.safetensors").stat().st_size
        again = pickle.loads(content)
        np.testing.assert_array_equal(again.predict_proba(pixels), fitted.predict_proba(pixels))
        assert (again.shots, again.classes_.tolist()) == (4, fitted.classes_.tolist())
        assert str(clip) in repr(fitted)
        assert len(repr(fitted)) < 400
    unfitted = pickle.loads(pickle.dumps(OGKDClassifier(clip, shots=2)))
    assert unfitted.get_params()["shots"] == 2
    assert unfitted.backbone == clip


def test_labels_that_cross_val_predict_has_numbered_keep_their_names(clip, images):
    pixels, names = images
    y = np.array([name.split()[0] for name in names])  # benign, malignant, normal
    known = {"normal": NAMES[2], "benign": NAMES[0], "malignant": NAMES[1]}
    model = OGKDClassifier(clip, "gda", class_names=known)
    p = cross_val_predict(model, pixels, y, cv=3, method="predict_proba")
    folds = cross_val_predict(model, pixels, y, cv=3)
    assert (np.unique(y)[p.argmax(axis=1)] == folds).all()
    numbered = model.fit(pixels, np.unique(y, return_inverse=True)[1])
    assert numbered.model_.class_names == NAMES
    assert numbered.classes_.tolist() == [0, 1, 2]
    with pytest.raises(ConfigError):
        model.fit(pixels[:12], [0, 1] * 6)  # which two of the three names is not known
