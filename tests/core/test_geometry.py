"""Prototypes and the class graph, against plain loops in numpy."""

import numpy as np
import pytest
import torch

from ogkd.core.geometry import class_graph, mean_texts, prototypes, stack_bank
from ogkd.errors import DataError


def oracle_prototypes(bank):
    rows = []
    for prompts in bank:
        total = 0.0
        for feature in prompts:
            total = total + feature / np.sqrt((feature**2).sum())
        mean = total / len(prompts)
        rows.append(mean / np.sqrt((mean**2).sum()))
    return np.array(rows)


def oracle_class_graph(T, alpha):
    C = len(T)
    W = np.zeros((C, C))
    for i in range(C):
        for j in range(C):
            norms = np.sqrt((T[i] ** 2).sum()) * np.sqrt((T[j] ** 2).sum())
            W[i, j] = np.exp(alpha * (T[i] * T[j]).sum() / norms)
        W[i] = W[i] / W[i].sum()
    return W


def random(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def test_prototypes_equal_the_loop_over_prompts():
    bank = random(5, 7, 16) * 3 + 1
    np.testing.assert_allclose(prototypes(bank), oracle_prototypes(bank.numpy()), rtol=1e-12)


def test_classes_may_have_different_numbers_of_prompts():
    bank = [random(n, 8, seed=n) for n in (3, 1, 6)]
    expected = oracle_prototypes([rows.numpy() for rows in bank])
    np.testing.assert_allclose(prototypes(bank), expected, rtol=1e-12)


@pytest.mark.parametrize("bank", [[torch.ones(2, 3), torch.ones(0, 3)], torch.ones(2, 0, 3)])
def test_a_class_without_prompts_is_refused_and_named(bank):
    with pytest.raises(DataError, match=r"Class \d has no prompts"):
        stack_bank(bank)


@pytest.mark.parametrize("alpha", [1.0, 4.0, 20.0])
def test_class_graph_equals_the_loop(alpha):
    T = random(6, 16)  # of any length: the cosine is used
    expected = oracle_class_graph(T.numpy(), alpha)
    np.testing.assert_allclose(class_graph(T, alpha), expected, rtol=1e-12)


def test_mean_texts_are_as_long_as_the_root_of_their_means_length():
    def drawn(*shape, seed):
        return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))

    bank = [drawn(n, 6, seed=n) * (1 + n) for n in (1, 3, 5)]  # padded to five rows
    texts = mean_texts(bank)
    for c, rows in enumerate(bank):
        mean = np.mean([row / np.linalg.norm(row) for row in rows.double().numpy()], axis=0)
        expected = mean / np.linalg.norm(mean) * np.linalg.norm(mean) ** 0.5
        np.testing.assert_allclose(texts[c].numpy(), expected, atol=1e-6)
    lengths = texts.norm(dim=-1)
    assert lengths[0] == pytest.approx(1.0)
    assert lengths[1:].max() < 0.99
    stacked = torch.stack([drawn(4, 6, seed=1), drawn(4, 6, seed=2)])  # without padding
    torch.testing.assert_close(mean_texts(stacked), mean_texts(list(stacked)))
