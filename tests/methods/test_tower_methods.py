"""Methods that change the towers, against towers and formulas written out block by block."""

from __future__ import annotations

import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize, softplus
from toys import NAMES, fit, pixel_support, quick, text_of

import ogkd
from ogkd.backbones.changes import without_change
from ogkd.core.batches import Batch
from ogkd.errors import ConfigError
from ogkd.features.store import FeatureStore
from ogkd.methods import METHODS, make_method, tower_method
from ogkd.model.load import load

TOWER = sorted(name for name, method in METHODS.items() if method.needs_pixels)


def pixels_of(backbone, count=3, seed=9):
    size = backbone.preprocessing.size
    return torch.randn(count, 3, size, size, generator=torch.Generator().manual_seed(seed))


def image_pass(backbone, pixels, before):
    """The image tower block by block; `before(number, tokens)` gives what enters a block."""
    tower = backbone.model.image
    tokens = tower.first_tokens(pixels)
    for number, block in enumerate(tower.blocks):
        tokens = block(before(number, tokens))
    return normalize(tower.head(tower.late_norm(tower.norm(tokens)[:, 0])), dim=-1)


def text_pass(backbone, embeddings, before):
    """BERT layer by layer on texts of one length, so without a mask."""
    tower = backbone.model.text
    bert, config = tower.bert, tower.bert.config
    table, length = bert.embeddings, embeddings.shape[1]
    hidden = embeddings + table.token_type_embeddings.weight[0]
    hidden = table.LayerNorm(hidden + table.position_embeddings.weight[:length])
    for number, layer in enumerate(bert.encoder.layer):
        hidden = before(number, hidden)
        attention, heads = layer.attention.self, config.num_attention_heads
        q, k, v = (
            part(hidden).unflatten(-1, (heads, -1)).transpose(1, 2)
            for part in (attention.query, attention.key, attention.value)
        )
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        mixed = (weights @ v).transpose(1, 2).flatten(2)
        output = layer.attention.output
        hidden = output.LayerNorm(output.dense(mixed) + hidden)
        wide = layer.intermediate.intermediate_act_fn(layer.intermediate.dense(hidden))
        hidden = layer.output.LayerNorm(layer.output.dense(wide) + hidden)
    return normalize(tower.proj(tower._pool(hidden, torch.ones(hidden.shape[:2]).bool())), dim=-1)


SAME_LENGTH = ("normal", "image", "tumor")  # one token each in the tiny vocabulary


def trained(name, backbone, names=SAME_LENGTH):
    """A method that was trained for a moment, its head, and what it learned."""
    method, text = quick(name), text_of(backbone, names)
    head = method.fit(pixel_support((2, 2, 2), backbone), text, seed=1)
    return method, text, head, {n: t for n, t in head.tensors().items() if n != "T"}


def prompts_of(method, text):
    """The embeddings of the prompts with the words that they start as."""
    learner = method.learner(text)
    context = learner.split(learner.initial_context(torch.Generator())[None]).get("context")
    start = learner._words_start[None] if context is None else context
    return learner.filled(start)[0]


def test_learned_tokens_replace_those_of_the_block_before(bert_backbone):
    method, text, head, parts = trained("promptsrc", bert_backbone)
    V, P, n = parts["V"], parts["P"], 4
    assert len(V) > 1

    def image(number, tokens):
        if number >= len(V):
            return tokens
        own = tokens if number == 0 else tokens[:, :-n]
        return torch.cat([own, V[number].repeat(len(tokens), 1, 1)], 1)

    pixels = pixels_of(bert_backbone)
    adapted = method.tower(bert_backbone, head.tensors())
    got = adapted.encode_images(pixels)
    torch.testing.assert_close(got.globals, image_pass(bert_backbone, pixels, image))
    assert got.patches.shape == bert_backbone.encode_images(pixels).patches.shape
    start = bert_backbone.leading_tokens

    def words(number, hidden):
        hidden = hidden.clone()
        if 0 < number <= len(P):
            hidden[:, start : start + n] = P[number - 1]
        return hidden

    embeddings = prompts_of(method, text).clone()
    embeddings[:, start : start + n] = parts["context"]
    torch.testing.assert_close(
        head.class_texts, text_pass(bert_backbone, embeddings, words).detach()
    )


def test_maples_image_tokens_are_projected_words(bert_backbone):
    method, _, _, parts = trained("maple", bert_backbone)
    change = method.change(bert_backbone, parts)
    words = [parts["context"], *parts["P"]]
    for j, V in enumerate(change.V):
        layer = torch.nn.Linear(words[j].shape[1], V.shape[1])
        layer.weight.data, layer.bias.data = parts["L"][j], parts["l"][j]
        torch.testing.assert_close(V, layer(words[j]).detach())
    assert torch.equal(change.P, parts["P"])


def test_evi_steer_equals_its_equations(bert_backbone):
    method, text, _, parts = trained("evi-steer", bert_backbone)
    # Steps start at zero and a moment of training moves them little.
    parts = {name: 3 * part + (0.3 if name.endswith("up") else 0) for name, part in parts.items()}
    sigmoid, r = torch.sigmoid, 4
    doubts = {}

    def evidence(tower, b, tokens):
        z = tokens @ parts[f"{tower}_down"][b].T
        return z[..., :r], softplus(z[..., r:] ** 2) + 1e-6 + 1

    def step(row, tower, b, mu, confidence):
        gate = sigmoid((confidence * parts["w"][row, b]).sum(-1, keepdim=True))
        return sigmoid(parts["gate"][row, b]) * gate * (mu @ parts[f"{tower}_up"][b].T)

    def words(number, hidden):
        if number == 0:
            return hidden
        mu, alpha = evidence("text", number - 1, hidden)
        doubts[number] = (1 / alpha[:, 0]).mean(0)
        return hidden + step(0, "text", number - 1, mu, 1 - 1 / alpha)

    def image(number, tokens):
        if number == 0:
            return tokens
        mu, alpha = evidence("image", number - 1, tokens)
        u_v, u_t = 1 / alpha, doubts[number]
        both = (1 - u_v) * (1 - u_t)
        conflict = (1 - u_t) * u_v + u_t * (1 - u_v)
        return tokens + step(1, "image", number - 1, mu, both / (1 - conflict + 1e-6))

    learner = method.learner(text)
    row = learner.join(parts)[None].requires_grad_()
    T = learner.text_features(row)[0]
    expected = text_pass(bert_backbone, prompts_of(method, text), words)
    torch.testing.assert_close(T, expected)
    pixels = pixels_of(bert_backbone)
    seen = learner.see(row, Batch(pixels[None], torch.zeros(1, 3).long(), None))
    torch.testing.assert_close(seen.globals[0], image_pass(bert_backbone, pixels, image))
    alphas = [[], []]
    for number in sorted(doubts):
        hidden_alphas = learner.change.alphas
        for row_, tower in enumerate(("text", "image")):
            alphas[row_].append(torch.cat(hidden_alphas[tower, number]).detach().double())
    kl = sum(
        np.mean([((a - 1) * torch.digamma(a) - torch.lgamma(a)).mean().item() for a in tower])
        for tower in alphas
    )
    assert seen.extra["kl"].item() == pytest.approx(kl, rel=1e-5)
    # The saved doubts give the same images without a text pass.
    kept = method.kept(learner.change)
    adapted = method.tower(bert_backbone, {**parts, **kept})
    got = adapted.encode_images(pixels).globals
    torch.testing.assert_close(got, seen.globals[0].detach())


@pytest.mark.parametrize("name", ["clip-svd", "clip-lora"])
def test_weight_updates_merge_into_the_towers(name, bert_backbone):
    method, text, head, parts = trained(name, bert_backbone)
    adapted = method.tower(bert_backbone, head.tensors())
    pixels = pixels_of(bert_backbone)
    changed = 0
    for tower in ("image", "text"):
        before = dict(getattr(bert_backbone.model, tower).named_parameters())
        for key, weight in getattr(adapted.model, tower).named_parameters():
            W, full = before[key], f"{tower}.{key}"
            if name == "clip-svd" and full in parts:
                U, _, Vt = np.linalg.svd(W.numpy(), full_matrices=False)
                W = torch.from_numpy(U @ np.diag(parts[full].numpy()) @ Vt)
                changed += 1
            if f"{full}.A" in parts:
                W = W + parts[f"{full}.B"] @ parts[f"{full}.A"] / 2**0.5
                changed += 1
            torch.testing.assert_close(weight, W, atol=1e-5, rtol=1e-4)
    blocks = bert_backbone.model.image.spec.depth + len(bert_backbone.model.text.bert.encoder.layer)
    assert changed == blocks * (6 if name == "clip-svd" else 3)
    learner = method.learner(text)
    row = learner.join(parts)[None]
    with torch.no_grad():
        T = learner.text_features(row.requires_grad_())
    assert not torch.allclose(
        adapted.encode_images(pixels).globals, bert_backbone.encode_images(pixels).globals
    )
    merged = adapted.encode_text(prompts_of(method, text), learner.tokens)
    torch.testing.assert_close(merged, T[0], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", ["evi-steer", "clip-svd", "clip-lora"])
def test_steps_and_weight_updates_start_at_zero_shot(name, bert_backbone):
    method, text = quick(name), text_of(bert_backbone)
    learner = method.learner(text)
    row = learner.initial_context(torch.Generator().manual_seed(0))[None].requires_grad_()
    T = learner.text_features(row)[0]
    torch.testing.assert_close(T, text.single, atol=1e-5, rtol=1e-4)
    pixels = pixels_of(bert_backbone)
    seen = learner.see(row, Batch(pixels[None], torch.zeros(1, 3).long(), None))
    expected = bert_backbone.encode_images(pixels).globals
    torch.testing.assert_close(seen.globals[0], expected, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("name", TOWER)
def test_gradients_are_those_of_finite_differences(name, bert_backbone):
    method, text = quick(name), text_of(bert_backbone, SAME_LENGTH)
    learner, objective = method.learner(text), method.objective(text)
    row = learner.initial_context(torch.Generator().manual_seed(0))[None]
    row = row + 0.02 * torch.randn(row.shape, generator=torch.Generator().manual_seed(1))
    batch = Batch(pixels_of(bert_backbone)[None], torch.tensor([[0, 1, 2]]), None)

    def loss(values):
        T_hat = learner.text_features(values)
        return objective(T_hat, learner.see(values, batch))["total"][0]

    given = row.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(loss(given), given)
    direction = normalize(gradient, dim=-1)
    step = 2e-3
    ends = [loss((row + sign * step * direction).requires_grad_()).item() for sign in (1, -1)]
    slope = (ends[0] - ends[1]) / (2 * step)
    assert slope == pytest.approx(gradient.norm().item(), rel=0.05, abs=1e-3)
    assert slope > 1e-3


def test_biomed_dpt_blanks_four_patches_before_every_block(bert_backbone):
    method = make_method("biomed-dpt")
    pixels = pixels_of(bert_backbone)

    def blank(number, tokens):
        return torch.cat([tokens[:, :1], 0 * tokens[:, 1:5], tokens[:, 5:]], 1)

    twin = method.tower(bert_backbone, {})
    expected = image_pass(bert_backbone, pixels, blank)
    torch.testing.assert_close(twin.encode_images(pixels).globals, expected)
    assert not torch.allclose(expected, bert_backbone.encode_images(pixels).globals, atol=1e-4)
    plain = make_method("biomed-dpt", settings={"blank": 0}).tower(bert_backbone, {})
    assert plain is bert_backbone


@pytest.mark.parametrize("name", [*TOWER, "biomed-dpt"])
def test_features_of_changed_towers_have_a_place_of_their_own(name, bert_backbone):
    method = quick(name)
    tensors = {}
    if method.needs_pixels:
        (head,) = fit(method, bert_backbone, pixel_support((2, 2, 2), bert_backbone))
        tensors = head.tensors()
    twin = method.tower(bert_backbone, tensors)
    again = method.tower(bert_backbone, tensors)
    assert twin.digest == again.digest != bert_backbone.digest
    assert FeatureStore(twin).folder != FeatureStore(bert_backbone).folder
    assert without_change(twin).digest == bert_backbone.digest


@pytest.mark.parametrize("name", [*TOWER, "biomed-dpt"])
def test_a_saved_model_sees_images_as_the_fitted_one(name, bert_backbone, pictures, tmp_path):
    settings = {"train.epochs": 2, "train.lr": 0.02}
    model = ogkd.fit(
        pictures, backbone=bert_backbone, method=name, shots=2, settings=settings,
        out=tmp_path / "model",
    )  # fmt: skip
    again = load(tmp_path / "model", backbone=bert_backbone)
    images = sorted(pictures.rglob("*.png"))[:4]
    np.testing.assert_allclose(again.predict_proba(images), model.predict_proba(images), atol=1e-5)
    assert again.backbone.digest == model.backbone.digest != bert_backbone.digest
    assert model.support.features.shape[0] == 2 * len(model.class_names)


def test_a_fit_says_how_long_an_epoch_takes(bert_backbone, pictures, tmp_path, notes):
    settings = {"train.epochs": 3}
    options = {"backbone": bert_backbone, "shots": 2, "settings": settings}
    ogkd.fit(pictures, method="maple", out=tmp_path / "tuned", **options)
    ogkd.fit(pictures, method="coop", out=tmp_path / "frozen", **options)
    assert [note for note in notes if "epoch" in note] == ["About 1 s for each of 3 epochs."]


@pytest.mark.parametrize("name", TOWER)
def test_a_batch_that_cannot_fit_into_memory_is_refused_before_training(
    name, bert_backbone, monkeypatch
):
    support = pixel_support((2, 2, 2), bert_backbone)
    free = SimpleNamespace(available=10)
    monkeypatch.setattr(tower_method.psutil, "virtual_memory", lambda: free)
    method = quick(name)
    with pytest.raises(ConfigError) as error:
        fit(method, bert_backbone, support)
    assert error.value.argument == "settings"
    needed = int(re.search(r"at least ([\d,]+) bytes", str(error.value))[1].replace(",", ""))
    # What autograd keeps for a batch of three is more.
    text = text_of(bert_backbone)
    learner, kept = method.learner(text), {}

    def keep(tensor):
        kept[tensor.untyped_storage().data_ptr()] = tensor  # alive, so that no address is reused
        return tensor

    context = learner.initial_context(torch.Generator().manual_seed(1))[None].requires_grad_()
    batch = Batch(pixels_of(bert_backbone)[None], torch.tensor([[0, 1, 2]]), None)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        T_hat = learner.text_features(context)
        method.objective(text)(T_hat, learner.see(context, batch))
    assert needed <= sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
    free.available = needed
    fit(method, bert_backbone, support)


def test_cases_of_several_images_are_refused(bert_backbone, pictures):
    with pytest.raises(ConfigError) as error:
        ogkd.fit(pictures, backbone=bert_backbone, method="maple", cases="folder")
    assert error.value.argument == "method"


def test_a_towers_backbone_is_needed():
    class Other:
        name, engine = "theirs", "torch"

    with pytest.raises(ConfigError):
        make_method("maple").shapes(Other())
    assert NAMES


def test_evi_steers_objective_adds_the_weighted_divergence(bert_backbone):
    method = make_method("evi-steer", settings={"lambda_kl": 0.5})
    batch = Batch(
        normalize(torch.ones(1, 2, 16), dim=-1), torch.tensor([[0, 1]]), None,
        {"kl": torch.tensor([0.25])},
    )  # fmt: skip
    T_hat = normalize(torch.eye(16)[:3].unsqueeze(0) + 0.1, dim=-1)
    terms = method.objective(text_of(bert_backbone))(T_hat, batch)
    assert terms["total"].item() == pytest.approx(terms["ce"].item() + 0.5 * 0.25)
    start = method.start(bert_backbone, torch.Generator().manual_seed(0))
    for name, part in start.items():
        bound = part.shape[-1] ** -0.5 if name in ("text_down", "image_down", "w") else 0.0
        assert part.abs().max() <= bound
        assert part.abs().max() >= 0.8 * bound
