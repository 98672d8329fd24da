"""Both presets, end to end, against the literal formulas of the released code and of the paper."""

import numpy as np
import pytest
import torch
from torch.nn.functional import kl_div, normalize

from ogkd.core.batches import Batch
from ogkd.core.fidelity import PAPER, RELEASED, Fidelity, fidelity
from ogkd.errors import ConfigError
from ogkd.methods.ogkd import OGKDConfig, OGKDObjective

B, C, N, P, d = 4, 3, 20, 25, 8
SCALE, ALPHA, GAMMA, TAU, RATIO = 10.0, 4.0, 0.5, 1.25, 0.3  # 0.3 * 25 = 7.5: K is 8 or 7
WEIGHTS = {"lambda_sccm": 0.5, "lambda_gad": 1.75, "lambda_lgd": 0.05}


def inputs(seed):
    generator = torch.Generator().manual_seed(seed)

    def unit(*shape):
        values = torch.randn(*shape, dtype=torch.float64, generator=generator)
        return normalize(values, dim=-1)

    labels = torch.randint(C, (B,), generator=generator)
    return unit(B, d), unit(B, P, d), unit(C, N, d), unit(C, d), labels


def by_the_method(v, Z, bank, T_hat, y, *, fidelity="released", **options):
    """Every term, and the weighted total of eq. 16."""
    given = {"alpha": ALPHA, "gamma": GAMMA, "tau": TAU, "top_ratio": RATIO}
    config = OGKDConfig(fidelity=fidelity, options=options, **given, **WEIGHTS)
    batch = Batch(v.unsqueeze(0), y.unsqueeze(0), Z.unsqueeze(0))
    terms = OGKDObjective(config, list(bank), SCALE, "cpu")(T_hat.unsqueeze(0), batch)
    total = terms["ce"] + sum(weight * terms[name[7:]] for name, weight in WEIGHTS.items())
    torch.testing.assert_close(terms["total"], total)
    return {name: value[0] for name, value in terms.items() if name != "total"}


def by_the_released_formulas(v, Z, bank, T_hat, y):
    T = normalize(bank.mean(dim=1), dim=-1)
    W = (ALPHA * T @ T.T).softmax(dim=-1)

    # The numbers are those of docs/concepts/fidelity.md.
    s = (SCALE * torch.einsum("bd,cnd->bcn", v, bank)).max(dim=1).values.mean(dim=0)  # 12
    z = (s - s.median()) / (s - s.median()).abs().median()
    keep = ((z - z.mean()) / z.std()).abs() <= TAU
    T_tilde = normalize(bank[:, keep].mean(dim=1), dim=-1)  # 15

    log_p = (SCALE * v @ T_hat.T).log_softmax(dim=-1)
    log_q = (SCALE * v @ T_tilde.T).log_softmax(dim=-1)
    q_star = (1 - GAMMA) * log_q + GAMMA * log_q @ W
    gad_value = kl_div(log_p, q_star, reduction="sum", log_target=True) / log_p.numel()  # 1

    K = max(1, int(round(P * RATIO)))  # noqa: RUF046  9, as it is written there
    student, teacher = SCALE * Z @ T_hat.T, SCALE * Z @ T_tilde.T  # [B, P, C]
    rows = torch.arange(B)
    chosen = teacher[rows, :, y].abs().topk(K, dim=-1).indices  # 8
    patch_log_q = teacher.log_softmax(dim=-1)
    u_star = ((1 - GAMMA) * patch_log_q + GAMMA * patch_log_q @ W)[
        rows[:, None], chosen, y[:, None]
    ]
    u = student.log_softmax(dim=-1)[rows[:, None], chosen, y[:, None]]
    lgd_value = (u_star.exp() * (u_star - u)).sum() / (B * K)  # 2 and 6

    return {
        "ce": torch.nn.CrossEntropyLoss()(SCALE * v @ T_hat.T, y),
        "sccm": torch.nn.MSELoss()(T_hat, T),  # 3
        "gad": gad_value,
        "lgd": lgd_value,
    }


def by_the_papers_equations(v, Z, bank, T_hat, y, temperature=1.0):
    v, Z, bank, T_hat = (x.numpy() for x in (v, Z, bank, T_hat))

    def unit(x):
        return x / np.sqrt((x**2).sum())

    def log_softmax(x):
        x = x / temperature
        return x - np.log(np.exp(x).sum())

    T = np.array([unit(np.mean(bank[c], axis=0)) for c in range(C)])
    W = np.exp(ALPHA * T @ T.T)  # eq. 1-2
    W = W / W.sum(axis=1, keepdims=True)

    T_tilde = np.zeros((C, d))
    for c in range(C):  # "per class", §3.2
        s = np.array([np.mean([v[b] @ bank[c, i] for b in range(B)]) for i in range(N)])
        kept = np.abs(s - s.mean()) / s.std(ddof=1) <= TAU
        T_tilde[c] = unit(bank[c][kept].mean(axis=0))

    K = int(np.floor(P * RATIO))
    gad_value = lgd_value = ce = 0.0
    for b in range(B):
        l_stu = log_softmax(SCALE * T_hat @ v[b])  # eq. 3-4
        l_tea = log_softmax(SCALE * T_tilde @ v[b])
        l_star = (1 - GAMMA) * l_tea + GAMMA * l_tea @ W  # eq. 5
        gad_value += (np.exp(l_star) * (l_star - l_stu)).sum() / B  # eq. 6
        z = SCALE * T_hat @ v[b]
        ce += (np.log(np.exp(z).sum()) - z[y[b]]) / B  # eq. 14

        scores = Z[b] @ T_tilde[y[b]]  # eq. 8
        for n in np.argsort(-scores)[:K]:  # eq. 9
            L_stu = log_softmax(SCALE * T_hat @ Z[b, n])  # eq. 7 and 10
            L_tea = log_softmax(SCALE * T_tilde @ Z[b, n])
            u_star = ((1 - GAMMA) * L_tea + GAMMA * L_tea @ W)[y[b]]  # eq. 11-12
            lgd_value += np.exp(u_star) * (u_star - L_stu[y[b]]) / B  # eq. 13
    distance = ((T_hat - T) ** 2).sum() / C  # eq. 15
    return {"ce": ce, "sccm": distance, "gad": gad_value, "lgd": lgd_value}


@pytest.mark.parametrize("seed", range(5))
def test_released_equals_the_released_formulas(seed):
    data = inputs(seed)
    expected = by_the_released_formulas(*data)
    for name, value in by_the_method(*data).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-10, atol=0, msg=name)


@pytest.mark.parametrize("temperature", [1.0, 3.0])
@pytest.mark.parametrize("seed", range(5))
def test_paper_equals_the_papers_equations(seed, temperature):
    data = inputs(seed)
    expected = by_the_papers_equations(*data, temperature=temperature)
    terms = by_the_method(*data, fidelity="paper", temperature=temperature)
    for name, value in terms.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-10, err_msg=name)


CHANGES_A_LOSS = {
    "gad_normalisation": "gad",
    "lgd_normalisation": "lgd",
    "sccm_normalisation": "sccm",
    "patch_score": "lgd",
    "patch_rounding": "lgd",
    "selector": "gad",
}


@pytest.mark.parametrize(("option", "term"), CHANGES_A_LOSS.items())
def test_each_option_changes_the_loss_it_is_about(option, term):
    data = inputs(0)
    changed = by_the_method(*data, **{option: getattr(PAPER, option)})
    assert abs(by_the_method(*data)[term] - changed[term]) > 1e-6


def test_the_presets_differ_in_every_option_but_one():
    same = {
        name for name in Fidelity.model_fields if getattr(RELEASED, name) == getattr(PAPER, name)
    }
    assert same == {"temperature"}
    assert RELEASED.temperature == 1.0
    assert RELEASED.text_dropout
    assert not PAPER.text_dropout


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("exact", {}),
        ("paper", {"gad_norm": "batch"}),
        ("released", {"selector": "median"}),
        ("released", {"temperature": 0.0}),
        ("released", {"temperature": float("inf")}),
    ],
)
def test_unknown_names_options_and_values_are_refused(name, options):
    with pytest.raises(ConfigError):
        fidelity(name, **options)
