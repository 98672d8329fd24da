"""Images that are answered together, and classes of other frequencies: from Python."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import ogkd
from ogkd.errors import ConfigError
from ogkd.methods import TextSide, make_method
from ogkd.model.calibration import Calibration
from ogkd.model.decide import Decider
from ogkd.model.familiarity import Familiarity, of_this_kind
from ogkd.model.policy import Policy
from ogkd.model.prior import equal, reweighted
from tiny_backbones import make_clip

TOGETHER = Policy(together=True)


@pytest.fixture(scope="module")
def model(tmp_path_factory, pictures):
    folder = tmp_path_factory.mktemp("backbones") / "clip"
    make_clip(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OGKD_CACHE", str(tmp_path_factory.mktemp("cache")))
        out = tmp_path_factory.mktemp("models") / "m"
        ogkd.fit(pictures, backbone=folder, method="fused", out=out)
        return ogkd.load(out)


@pytest.fixture
def files(pictures):
    return sorted((pictures / "test").rglob("*.png"))


@pytest.fixture
def rows(model, files):
    return np.stack([said.features for said in model.decide(files)])


def with_(model, **changes):
    """A copy of a model."""
    parts = {"calibration": model.calibration, "support": model.support, **changes}
    return type(model)(model.backbone, parts.pop("head", model.head), model.card, **parts)


def calibrated(model):
    rng = np.random.default_rng(0)
    labels, keys = rng.integers(0, 3, 60), [f"{number:016x}" for number in range(60)]
    logits = 3 * np.eye(3)[labels] + rng.normal(size=(60, 3))
    return with_(model, calibration=Calibration.fit(logits, labels, keys))


def probabilities(decisions):
    return np.array([said.probabilities for said in decisions])


def test_together_is_the_fit_with_the_batch_as_unlabelled_images(model, rows):
    """The oracle fits from the beginning, with the images of this kind as its pool."""
    from ogkd.backbones.base import ImageFeatures
    from ogkd.features.views import FixedViews
    from ogkd.methods import Support

    near = of_this_kind(model.support, rows, model.backbone.embed_dim)
    assert 6 <= near.sum() < len(rows)
    known = torch.from_numpy(model.support.features)
    d = model.backbone.embed_dim
    length = known[:, :d].norm(dim=1, keepdim=True)
    views = ImageFeatures(known[:, None, :d] / length[:, None], None, (known / length)[:, None, d:])
    support = Support(
        FixedViews(views),
        torch.from_numpy(model.support.labels),
        None,
        torch.from_numpy(rows[near]),
    )
    text = TextSide(model.backbone, model.class_names, ())
    object.__setattr__(text, "bank", [_pair(row) for row in model.head.bank])
    settings = {"rounds": 1, "balance": 0.0}
    learned = make_method("fused", settings=settings).fit([support], text, seeds=[1])[0]
    both = [head.logits(torch.from_numpy(rows)) for head in (learned, model.head)]
    expected = (sum(both) / 2).softmax(-1).numpy()
    found = probabilities(Decider(model, TOGETHER).decide(rows))
    np.testing.assert_allclose(found, expected, atol=2e-4)
    assert np.abs(found - probabilities(Decider(model).decide(rows))).max() > 1e-3


def _pair(text):
    """Two texts of unit length whose mean has the direction of `text` and its length squared."""
    length = float(text.norm())
    along, other = text / length, torch.randn(len(text), generator=torch.Generator().manual_seed(1))
    across = other - (other @ along) * along
    across = across / across.norm() * (1 - length**4) ** 0.5
    return torch.stack([length**2 * along + across, length**2 * along - across])


def test_answers_belong_to_the_batch_not_to_its_order_or_cut(model, files):
    found = probabilities(model.decide(files, policy=TOGETHER, batch_size=5))
    turned = probabilities(model.decide(files[::-1], policy=TOGETHER))
    np.testing.assert_allclose(found, turned[::-1], atol=1e-5)
    fewer = probabilities(model.decide(files[:8], policy=TOGETHER))
    assert np.abs(found[:8] - fewer).max() > 1e-5


def test_nothing_is_promised_and_the_notes_say_so(model, rows):
    decider = Decider(calibrated(model), TOGETHER)
    said = decider.decide(rows)
    assert all(one.set is None and one.abstain is None for one in said)
    assert "Nothing is promised" in decider.notes[0]
    assert any(note.startswith(f"Answered {len(rows)} images together") for note in decider.notes)


def test_a_batch_that_is_not_learned_from_is_answered_with_the_calibration(
    model, rows, monkeypatch
):
    kind = type(make_method("fused"))
    monkeypatch.setattr(kind, "together", lambda self, head, *_: replace(head, said=("Why.",)))
    for one, how in ((model, ""), (calibrated(model), ", with calibrated probabilities")):
        decider = Decider(one, TOGETHER)
        said = decider.decide(rows)
        np.testing.assert_array_equal(probabilities(said), probabilities(Decider(one).decide(rows)))
        assert all(answer.set is None for answer in said)
        assert decider.notes[-1].endswith(f"answered one by one{how}. Why.")


def test_a_batch_that_is_learned_from_is_answered_without_the_calibration(model, rows):
    found = probabilities(Decider(calibrated(model), TOGETHER).decide(rows))
    np.testing.assert_array_equal(found, probabilities(Decider(model, TOGETHER).decide(rows)))
    assert calibrated(model).calibration.temperature != 1


@pytest.mark.parametrize("labelled", [1, 100])
def test_images_unlike_the_labelled_ones_change_nothing(model, rows, labelled):
    """Also with so few labelled images that none is called unfamiliar."""
    support = model.support
    number = np.array([(support.labels[:i] == y).sum() for i, y in enumerate(support.labels)])
    few = replace(
        support,
        features=support.features[number < labelled],
        labels=support.labels[number < labelled],
    )
    model = with_(model, support=few)
    rng = np.random.default_rng(0)
    strange = normalize(torch.from_numpy(rng.normal(size=(5, rows.shape[1])))).float().numpy()
    near = of_this_kind(few, rows, model.backbone.embed_dim)
    assert near.sum() >= 6
    before, after = Decider(model, TOGETHER), Decider(model, TOGETHER)
    alone = probabilities(before.decide(rows))
    said = after.decide(np.concatenate([rows, strange]))
    assert [one.unfamiliar for one in said[-5:]] == [True if labelled > 1 else None] * 5
    np.testing.assert_allclose(probabilities(said)[: len(rows)], alone, atol=1e-6)
    assert f"{(~near).sum() + 5} of them were not learned from" in after.notes[-1]


def test_a_prior_is_applied_to_answers_given_together(model, rows):
    prior = dict(zip(model.class_names, (0.6, 0.3, 0.1), strict=True))
    together = probabilities(Decider(model, TOGETHER).decide(rows))
    found = probabilities(Decider(model, Policy(prior=prior, together=True)).decide(rows))
    expected = reweighted(together, np.array([0.6, 0.3, 0.1]), equal(3))
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_a_prior_reweights_and_takes_the_sets_away(model, rows):
    prior = dict(zip(model.class_names, (0.6, 0.3, 0.1), strict=True))
    ready = calibrated(model)
    assert Decider(ready).decide(rows)[0].set is not None
    decider = Decider(ready, Policy(prior=prior))
    said = decider.decide(rows)
    expected = reweighted(ready.probabilities(rows), np.array([0.6, 0.3, 0.1]), equal(3))
    np.testing.assert_allclose(probabilities(said), expected, rtol=1e-5)
    assert said[0].set is None
    assert any("no prediction sets" in note for note in decider.notes)
    same = Decider(model, Policy(prior=dict.fromkeys(model.class_names, 1 / 3))).decide(rows)
    np.testing.assert_allclose(probabilities(same), model.probabilities(rows), rtol=1e-5)


def test_an_estimate_says_from_how_many_images(model, rows):
    decider = Decider(model, Policy(prior="estimate"))
    decider.decide(rows)
    count = int((~Familiarity(model.support, model.backbone.embed_dim).unfamiliar(rows)).sum())
    assert "depends on the others" in decider.notes[0]
    assert f"from {count} images: {model.class_names[0]} " in decider.notes[-1]
    assert decider.prior.sum() == pytest.approx(1)


def test_an_image_that_cannot_be_read_is_a_row_with_its_reason(model, files, tmp_path):
    bad = tmp_path / "bad.png"
    bad.write_bytes(b"no picture")
    said = list(model.decide([*files[:7], bad, *files[7:]], policy=TOGETHER, batch_size=4))
    assert [one.error is None for one in said] == [True] * 7 + [False] + [True] * 5
    np.testing.assert_allclose(
        probabilities(said[:7] + said[8:]), probabilities(model.decide(files, policy=TOGETHER))
    )


def test_too_few_images_streams_and_maps_get_one_message(model, files):
    for few in (files[:1], files[0], files[:5]):
        with pytest.raises(ConfigError, match="at least 2 images per class, 6 in all") as found:
            list(model.decide(few, policy=TOGETHER))
        assert found.value.argument == "together"
    for policy in (TOGETHER, Policy(prior="estimate")):
        with pytest.raises(ConfigError, match="a stream of images"):
            model.decide(iter(files), policy=policy)
        with pytest.raises(ConfigError, match="Evidence maps"):
            list(model.decide(files, policy=policy, patches=True))


def test_models_that_cannot_answer_together_say_why(model, tmp_path, pictures):
    other = ogkd.fit(pictures, backbone=model.backbone, method="gda", out=tmp_path / "gda")
    half = replace(
        model.support,
        features=model.support.features[model.support.labels > 0],
        labels=model.support.labels[model.support.labels > 0],
    )
    cases = {
        "gda answers each image by itself": other,
        "does not have the features of labelled images": with_(model, support=None),
        "of every class": with_(model, support=half),
        "learned from 30 unlabelled images": with_(model, head=replace(model.head, pool=30)),
        "made for other classes": with_(model, head=model.head.text),
    }
    for message, one in cases.items():
        with pytest.raises(ConfigError, match=message) as found:
            Decider(one, TOGETHER)
        assert found.value.argument == "together"
