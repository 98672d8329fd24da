"""fidelity = "released": adapters and probes as the benchmark's code runs them, read plainly.

Each reference is written with modules and loops, in the order of the released scripts, and shares
no code with the methods.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as fn
from toys import make_support, make_text, unit

from ogkd.data.case import Dataset
from ogkd.data.tasks import OneOf
from ogkd.features.store import FeatureStore, View
from ogkd.fitting.prepare import draw
from ogkd.fitting.prepare import make_support as support_of
from ogkd.images.transforms import ADAPTER_AREAS, Preprocessing, random_resized_crop
from ogkd.methods import METHODS, make_method
from ogkd.methods.feature_method import RivalConfig, rows_of
from tiny_data import case_of, write_dataset

RIVALS = sorted(name for name, method in METHODS.items() if issubclass(method.Config, RivalConfig))
GRID = [0.1 + i * 49.9 / 200 for i in range(200)]


def fitted(name, support, text, seed=1, **settings):
    method = make_method(name, settings={"fidelity": "released", **settings})
    return method.fit(support, text, seed=seed)


def views_of(support):
    """Features [V, N, d] and labels [N]."""
    return support.views.features.globals.transpose(0, 1), support.labels


def accuracy(logits, labels):
    return float((logits.argmax(1) == labels).float().mean())


def close(ours, other, tolerance=2e-4):
    torch.testing.assert_close(ours, other, rtol=tolerance, atol=tolerance)


def tip_search(K, onehot, T, scale, val, labels):
    """The first best of beta (outer loop) and alpha (inner)."""
    best, chosen = 0.0, (0.0, 0.0)
    for beta in GRID[::20]:
        near = torch.exp(-(beta - beta * (val @ K.T))) @ onehot
        for alpha in GRID[::20]:
            acc = accuracy(scale * val @ T.T + alpha * near, labels)
            if acc > best:
                best, chosen = acc, (beta, alpha)
    return chosen


@pytest.fixture
def coarse(monkeypatch):
    """Ten values of alpha and beta instead of 200."""
    monkeypatch.setattr("ogkd.methods.tip_adapter.GRID", tuple(GRID[::20]))


@pytest.mark.parametrize("seed", [0, 3])
def test_tip_adapter_has_one_view_for_a_key_and_the_first_of_equals(coarse, seed):
    support, text = make_support(views=2, validation=2, seed=seed, spread=1.5), make_text()
    (keys, _), y = views_of(support)
    onehot, (val, truth) = fn.one_hot(y, 4).float(), support.validation
    beta, alpha = tip_search(keys, onehot, text.single, 30.0, val, truth)
    v = unit(20, 12, seed=9)
    expected = 30.0 * v @ text.single.T + alpha * torch.exp(-(beta - beta * (v @ keys.T))) @ onehot
    head = fitted("tip-adapter", support, text)
    close(head.logits(v), expected)
    assert head.beta == pytest.approx(beta)


def test_tip_adapter_f_trains_the_same_keys_for_all_ten_alphas(coarse):
    support, text = make_support(views=21, validation=2, spread=1.5), make_text()
    views, y = views_of(support)
    onehot, (val, truth) = fn.one_hot(y, 4).float(), support.validation
    adapter = nn.Linear(12, len(y), bias=False)
    keys = views[0].clone()  # one storage for all ten
    shuffle = torch.Generator().manual_seed(1)
    for alpha in range(10):
        adapter.weight = nn.Parameter(keys)
        optimiser = torch.optim.AdamW(adapter.parameters(), lr=0.001, eps=1e-4)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 20 * 2)
        for epoch in range(20):
            for batch in torch.randperm(len(y), generator=shuffle).split(8):
                v = views[1 + epoch][batch]
                near = torch.exp(-(1 - adapter(v))) @ onehot
                loss = fn.cross_entropy(30.0 * v @ text.single.T + alpha * near, y[batch])
                optimiser.zero_grad()
                loss.backward()
                optimiser.step()
                scheduler.step()
    keys = keys.detach()
    assert float((keys - views[0]).norm()) > 0.05
    beta, alpha = tip_search(keys, onehot, text.single, 30.0, val, truth)
    v = unit(20, 12, seed=9)
    expected = 30.0 * v @ text.single.T + alpha * torch.exp(-(beta - beta * (v @ keys.T))) @ onehot
    got = fitted("tip-adapter-f", support, text, batch_size=8).logits(v)
    # Keys are normalised images here and trained vectors there: the products are the same.
    close(got, expected, 2e-3)


def test_clip_adapter_does_not_normalise_again_and_its_rate_swings_with_every_step():
    support, text = make_support(views=20), make_text()
    views, y = views_of(support)
    first = torch.Generator().manual_seed(1)
    W1 = torch.empty(3, 12).uniform_(-1 / math.sqrt(12), 1 / math.sqrt(12), generator=first)
    W2 = torch.empty(12, 3).uniform_(-1 / math.sqrt(3), 1 / math.sqrt(3), generator=first)
    net = nn.Sequential(nn.Linear(12, 3, bias=False), nn.ReLU(), nn.Linear(3, 12, bias=False))
    net.append(nn.ReLU())
    net[0].weight.data, net[2].weight.data = W1, W2
    optimiser = torch.optim.SGD(net.parameters(), 0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, 20)
    step, rates = 0, []

    def logits(v):
        return 30.0 * (0.5 * net(v) + 0.5 * v) @ text.single.T

    for epoch in range(20):
        for batch in torch.randperm(len(y), generator=first).split(4):
            if step == 0:
                optimiser.param_groups[0]["lr"] = 1e-5
            elif step == 1:
                optimiser.param_groups[0]["lr"] = 0.01
            else:
                scheduler.step()
            rates.append(optimiser.param_groups[0]["lr"])
            step += 1
            loss = fn.cross_entropy(logits(views[epoch][batch]), y[batch])
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
    assert rates[:2] == [1e-5, 0.01]
    assert rates[21] == pytest.approx(0, abs=1e-9)
    assert max(rates[22:]) == pytest.approx(0.01)  # it has risen again
    v = unit(20, 12, seed=9)
    head = fitted("clip-adapter", support, text, batch_size=4)
    close(head.logits(v), logits(v).detach())
    again = make_method("clip-adapter").read_head(head.tensors(), text, 30.0)
    assert torch.equal(again.logits(v), head.logits(v))
    head_of_paper = make_method("clip-adapter").fit(support, text, seed=1)
    assert "raw" not in head_of_paper.tensors()


def test_lp_plus_plus_never_clears_the_gradient_of_alpha():
    support, text = make_support(validation=3, spread=1.5), make_text()
    (v, *_), y = views_of(support)
    val, truth = support.validation
    T, n, start = text.single, len(y), torch.Generator().manual_seed(1)
    onehot = fn.one_hot(y, 4).float()
    classifier = nn.Linear(12, 4)
    classifier.weight.data = (onehot.T @ v.half().float()).half().float()
    bound = 1 / math.sqrt(12)
    classifier.bias.data = torch.empty(4).uniform_(-bound, bound, generator=start)
    lr_w = 4 * n / np.linalg.eigvalsh((v.T @ v).numpy()).max()
    near = v @ T.T
    lr_alpha = n / (4 * float((near**2).sum(0).max()))
    first = 250 * torch.stack([near[y == c, c].mean() for c in range(4)]).mean()
    alpha = (first * torch.ones(1, 4)).requires_grad_()
    optimiser = torch.optim.SGD(classifier.parameters(), float(lr_w), momentum=0.9)
    x = unit(20, 12, seed=9)
    best, expected = 0.0, None
    for epoch in range(40):
        loss = fn.cross_entropy(classifier(v) + torch.ones(n, 1) @ alpha * near, y)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if (epoch + 1) % 10 == 0:
            alpha.data -= lr_alpha * alpha.grad.data
        with torch.no_grad():
            acc = accuracy(classifier(val) + alpha * (val @ T.T), truth)
            if acc >= best:
                best, expected = acc, classifier(x) + alpha * (x @ T.T)
    assert expected is not None
    close(fitted("lp++", support, text, epochs=40).logits(x), expected, 2e-3)


def test_the_linear_probe_halves_its_interval_eight_times():
    sklearn = pytest.importorskip("sklearn.linear_model")
    support, text = make_support(validation=6, spread=2.0, seed=2), make_text()
    (v, *_), y = views_of(support)
    val, truth = (part.numpy() for part in support.validation)

    def model(C):
        regression = sklearn.LogisticRegression(C=C, max_iter=5000, tol=1e-8)
        return regression.fit(v.double().numpy(), y.numpy())

    search = [1e6, 1e4, 1e2, 1, 1e-2, 1e-4, 1e-6]
    peak = search[int(np.argmax([model(C).score(val, truth) for C in search]))]
    low, high = 0.1 * peak, 10 * peak
    for _ in range(8):
        left, right = model(low), model(high)
        if left.score(val, truth) < right.score(val, truth):
            last, low = right, 10 ** (0.5 * (np.log10(high) + np.log10(low)))
        else:
            last, high = left, 10 ** (0.5 * (np.log10(high) + np.log10(low)))
    x = unit(20, 12, seed=9)
    expected = torch.from_numpy(last.predict_proba(x.double().numpy())).float()
    close(fitted("linear-probe", support, text).logits(x).softmax(1), expected, 5e-3)


@pytest.mark.parametrize("name", RIVALS)
def test_all_seeds_have_one_few_shot_set_and_augmented_views(name, bert_backbone, tmp_path):
    root = write_dataset(tmp_path, ("a", "b"), {"train": 5, "val": 2})
    cases = [
        case_of(path, label, split)
        for label, kind in enumerate("ab")
        for split in ("train", "val")
        for path in sorted((root / split / kind).iterdir())
    ]
    dataset = Dataset(tuple(cases), OneOf(("a", "b")))
    method = make_method(name, settings={"fidelity": "released"})
    of_paper = make_method(name)

    def images(which, seed):
        return sorted(case.name for case in draw(dataset, which, shots=2, seed=seed).support)

    assert images(method, 1) == images(method, 2) == images(method, 3) == images(of_paper, 1)
    assert len({tuple(images(of_paper, seed)) for seed in range(1, 8)}) > 1
    store = FeatureStore(bert_backbone)
    few = draw(dataset, method, shots=1, seed=1)
    first, second = (support_of(method, store, dataset.task, few, seed) for seed in (1, 2))
    views = rows_of(first, ("a", "b")).views
    expected = {"clip-adapter": 20, "tip-adapter-f": 21}
    assert views == expected.get(name, 1)
    assert not torch.equal(first.rows()[0], second.rows()[0])  # their augmentation differs


def test_the_views_are_half_of_the_image_at_least_and_half_of_them_are_mirrored():
    image = np.zeros((64, 64, 3), np.uint8)
    image[..., 0] = np.arange(64)[:, None] * 4
    image[..., 1] = np.arange(64)[None, :] * 4
    prep = Preprocessing(size=32, interpolation="nearest")
    mirrored, areas = [], []
    for number in range(300):
        rng = np.random.default_rng(number)
        crop = random_resized_crop(image, prep, rng, areas=ADAPTER_AREAS, flip=True).astype(int)
        across, down = crop[0, :, 1], crop[:, 0, 0]
        mirrored.append(across[0] > across[-1])
        areas.append((abs(across[-1] - across[0]) / 4 + 2) * ((down[-1] - down[0]) / 4 + 2) / 64**2)
    assert 0.4 < np.mean(mirrored) < 0.6
    assert min(areas) > 0.45
    assert max(areas) > 0.95
    assert View(3, 1, adapter=True).key != View(3, 1).key
