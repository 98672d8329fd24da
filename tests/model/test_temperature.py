"""Calibration is applied only where images show that it helps: a simulation."""

from __future__ import annotations

import json

import numpy as np
import pytest
from ogkd.model.temperature import fit_temperature, justified_temperature, softmax
from scipy.stats import chi2

from ogkd.evaluation.confidence import ece, nll
from ogkd.model.calibration import Calibration


def draw(count, *, sharpness, seed, classes=4):
    """Logits that are `sharpness` times too large, and labels."""
    rng = np.random.default_rng(seed)
    z = 2 * rng.normal(size=(count, classes))
    labels = (softmax(z).cumsum(axis=1) > rng.random((count, 1))).argmax(axis=1)
    return sharpness * z, labels


def simulate(sharpness, draws=120):
    """Mean NLL and ECE before and after calibrating on 48 images, and how often it is applied."""
    scores, applied = [], 0
    for seed in range(draws):
        z, y = draw(48, sharpness=sharpness, seed=seed)
        found = Calibration.fit(z, y, [f"{seed} {n}" for n in range(48)])
        new, truth = draw(500, sharpness=sharpness, seed=10_000 + seed)
        before, after = softmax(new), found.probabilities(new)
        scores.append([f(truth, p) for f in (nll, ece) for p in (before, after)])
        applied += found.applied
        assert found.applied == (found.reason is None)
    return np.mean(scores, axis=0), applied / draws


def test_calibrating_a_calibrated_model_does_no_harm():
    (nll_before, nll_after, ece_before, ece_after), applied = simulate(1.0)
    assert nll_after < nll_before + 0.02
    assert ece_after < ece_before + 0.012
    assert applied < 0.12


def test_strong_overconfidence_is_still_corrected():
    (nll_before, nll_after, ece_before, ece_after), applied = simulate(4.0)
    assert nll_after < 0.7 * nll_before
    assert ece_after < 0.6 * ece_before
    assert applied > 0.85


def test_many_images_of_one_patient_are_not_taken_for_evidence():
    z, y = draw(16, sharpness=3.0, seed=1)
    found, reason = justified_temperature(z, y, units=16)
    assert found > 1
    assert reason is None
    again = justified_temperature(z, y, units=2)
    assert again[0] == 1.0
    assert again[1] == (
        "The 16 images for fitting the temperature cannot show that rescaling helps; "
        "probabilities stay as they are."
    )


def test_sets_and_thresholds_work_where_nothing_is_rescaled(tmp_path):
    z, y = draw(300, sharpness=1.0, seed=2)
    z[np.arange(300), y] += 9
    found = Calibration.fit(z, z.argmax(axis=1), [str(n) for n in range(300)])
    assert not found.applied
    assert "makes no error there" in found.reason
    assert found.sets(softmax(z)).any()
    assert found.threshold(0.1) >= 0


def test_a_calibration_of_an_older_version_is_read(tmp_path):
    z, y = draw(60, sharpness=4.0, seed=3)
    Calibration.fit(z, y, [str(n) for n in range(60)], pixels=["p"]).write(tmp_path / "c.json")
    content = json.loads((tmp_path / "c.json").read_text())
    for key in ("reason", "image_pixels", "sha256"):
        del content[key]
    (tmp_path / "c.json").write_text(json.dumps(content))
    found = Calibration.read(tmp_path / "c.json")
    assert found.applied
    assert found.temperature == pytest.approx(content["temperature"])
    assert found.seen == set(content["image_keys"])


def test_logits_of_any_size_give_probabilities():
    extreme = np.array([[1e4, 0.0], [-1e4, 1e4], [-1e4, -2e4]])
    assert softmax(extreme).tolist() == [[1, 0], [0, 1], [1, 0]]


@pytest.mark.parametrize(("sharpness", "bound"), [(1e3, 20.0), (1e-3, 0.05)])
def test_a_temperature_stays_within_its_bounds(sharpness, bound):
    z, y = draw(2000, sharpness=sharpness, seed=0)
    assert fit_temperature(z, y) == pytest.approx(bound, rel=1e-3)


def test_rescaling_is_applied_from_a_chance_of_one_in_twenty_on():
    chances, applied = [], []
    for seed in range(60):
        z, y = draw(48, sharpness=1.4, seed=seed)
        gain = 48 * (nll(y, softmax(z)) - nll(y, softmax(z, fit_temperature(z, y))))
        chances.append(chi2.sf(2 * gain, 1))
        applied.append(justified_temperature(z, y, units=48)[1] is None)
    between = [
        said for chance, said in zip(chances, applied, strict=True) if 0.026 < chance < 0.049
    ]
    assert between
    assert all(between)
    assert not any(said for chance, said in zip(chances, applied, strict=True) if chance > 0.051)
