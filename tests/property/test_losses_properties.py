"""What must hold of the graph and the losses whatever the numbers are."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy as torch_cross_entropy
from torch.nn.functional import kl_div, normalize

from ogkd.core.geometry import class_graph, prototypes
from ogkd.core.losses import (
    cross_entropy,
    diffuse,
    gad,
    gather_patches,
    lgd,
    logits,
    patches_kept,
    sccm,
    select_patches,
)
from ogkd.core.teacher import select_prompts, teacher_prototypes

VARIANTS = ["label_guided", "full", "full_no_geometry"]
gammas = st.floats(0, 1)


class Case:
    """A random problem of random size; every tensor is float64 and drawn from one seed."""

    def __init__(self, seed, B, C, P, N, d, spread, alpha):
        self.generator = torch.Generator().manual_seed(seed)
        self.B, self.C, self.P = B, C, P
        self.v, self.Z = self.unit(B, d), self.unit(B, P, d)
        self.bank, self.T_hat = self.unit(C, N, d), self.unit(C, d)
        self.labels = torch.randint(C, (B,), generator=self.generator)
        self.student, self.teacher = spread * self.normal(B, C), spread * self.normal(B, C)
        self.patch_student, self.patch_teacher = (spread * self.normal(B, P, C) for _ in range(2))
        self.T = prototypes(self.bank)
        self.W = class_graph(self.T, alpha)
        self.gamma = torch.rand(C, dtype=torch.float64, generator=self.generator)

    def normal(self, *shape):
        return torch.randn(*shape, dtype=torch.float64, generator=self.generator)

    def unit(self, *shape):
        return normalize(self.normal(*shape), dim=-1)

    def order(self, n):
        return torch.randperm(n, generator=self.generator)


cases = st.builds(
    Case,
    seed=st.integers(0, 2**31),
    B=st.integers(1, 6),
    C=st.integers(2, 8),
    P=st.integers(1, 12),
    N=st.integers(1, 12),
    d=st.integers(2, 16),
    spread=st.sampled_from([0.01, 1.0, 5.0, 20.0]),
    alpha=st.sampled_from([0.1, 1.0, 4.0, 50.0]),
)


def holds_for(*strategies):
    return lambda test: settings(max_examples=60, deadline=None)(given(*strategies)(test))


def close(a, b, *, rtol=1e-9, atol=1e-12):
    torch.testing.assert_close(a, b, rtol=rtol, atol=atol)


@holds_for(cases)
def test_rows_of_the_graph_are_distributions_and_a_class_is_nearest_to_itself(case):
    close(case.W.sum(dim=-1), torch.ones(case.C, dtype=torch.float64))
    assert (case.W >= 0).all()
    assert (case.W.diagonal() >= case.W.amax(dim=-1) * (1 - 1e-9)).all()


@holds_for(cases)
def test_the_graph_follows_the_order_of_the_classes(case):
    order = case.order(case.C)
    close(class_graph(prototypes(case.bank[order]), 4.0), class_graph(case.T, 4.0)[order][:, order])


@holds_for(cases)
def test_prototypes_do_not_depend_on_the_order_of_prompts(case):
    close(prototypes(case.bank[:, case.order(case.bank.shape[1])]), case.T)


@holds_for(cases)
def test_gamma_zero_is_plain_distillation(case):
    log_p, log_q = case.student.log_softmax(-1), case.teacher.log_softmax(-1)
    plain = kl_div(log_p, log_q, reduction="batchmean", log_target=True)
    close(gad(case.student, case.teacher, case.W, 0.0, normalisation="batch"), plain, atol=1e-9)
    assert plain >= -1e-12


@holds_for(cases, gammas)
def test_diffusion_with_no_neighbours_changes_nothing(case, gamma):
    log_q = case.teacher.log_softmax(-1)
    close(diffuse(log_q, torch.eye(case.C, dtype=torch.float64), gamma), log_q)


@holds_for(cases, st.sampled_from([1.0, 2.0]))
def test_gradient_of_gad_is_m_p_minus_the_target_and_vanishes_at_its_softmax(case, temperature):
    target = diffuse((case.teacher / temperature).log_softmax(-1), case.W, case.gamma).exp()
    m = target.sum(-1, keepdim=True)

    def gradient(student):
        student = student.clone().requires_grad_()
        loss = gad(student, case.teacher, case.W, case.gamma, temperature=temperature)
        return torch.autograd.grad(loss, student)[0]

    expected = m * (case.student / temperature).softmax(-1) - target
    close(gradient(case.student), expected / (case.B * case.C * temperature))
    best = temperature * target.log()  # its softmax at this temperature is exp(q*)/m
    close(gradient(best), torch.zeros_like(best), atol=1e-14)


@holds_for(cases)
def test_gad_of_an_image_is_never_below_m_log_m(case):
    m = diffuse(case.teacher.log_softmax(-1), case.W, case.gamma).exp().sum(-1)
    value = gad(case.student, case.teacher, case.W, case.gamma, normalisation="batch")
    assert value >= (m * m.log()).mean() - 1e-9


@holds_for(cases)
def test_gradient_of_lgd_is_a_patch_cross_entropy_weighted_by_the_diffused_teacher(case):
    student = case.patch_student.requires_grad_()
    loss = lgd(student, case.patch_teacher, case.labels, case.W, case.gamma)
    (found,) = torch.autograd.grad(loss, student)
    u_star = diffuse(case.patch_teacher.log_softmax(-1), case.W, case.gamma)
    labels = case.labels.repeat_interleave(case.P)
    weight = u_star.flatten(0, 1).exp()[torch.arange(len(labels)), labels]
    ce = torch_cross_entropy(student.flatten(0, 1), labels, reduction="none")
    (expected,) = torch.autograd.grad((weight * ce).mean(), student)
    close(found, expected)


@holds_for(cases, st.sampled_from(VARIANTS))
def test_lgd_does_not_depend_on_the_order_of_patches(case, variant):
    order = case.order(case.P)
    values = [
        lgd(student, teacher, case.labels, case.W, case.gamma, variant=variant)
        for student, teacher in (
            (case.patch_student, case.patch_teacher),
            (case.patch_student[:, order], case.patch_teacher[:, order]),
        )
    ]
    close(*values, atol=1e-9)


@holds_for(cases, st.data(), st.booleans())
def test_selected_patches_do_not_depend_on_their_order(case, data, absolute):
    k = data.draw(st.integers(1, case.P))
    order, options = case.order(case.P), {"k": k, "absolute": absolute}
    chosen = select_patches(case.Z, case.T, case.labels, **options)
    shuffled = select_patches(case.Z[:, order], case.T, case.labels, **options)
    assert torch.equal(order[shuffled].sort(-1).values, chosen.sort(-1).values)


@holds_for(cases, st.booleans(), st.sampled_from(VARIANTS))
def test_keeping_every_patch_equals_scoring_all_of_them(case, absolute, variant):
    indices = select_patches(case.Z, case.T, case.labels, case.P, absolute=absolute)
    values = []
    for patches in (gather_patches(case.Z, indices), case.Z):
        student, teacher = logits(patches, case.T_hat, 10.0), logits(patches, case.T, 10.0)
        values.append(lgd(student, teacher, case.labels, case.W, case.gamma, variant=variant))
    close(*values)


@holds_for(cases, st.sampled_from(VARIANTS))
def test_losses_do_not_depend_on_the_order_of_classes(case, variant):
    order = case.order(case.C)
    renamed = order.argsort()[case.labels]
    W, gamma = case.W[order][:, order], case.gamma[order]
    close(cross_entropy(case.student[:, order], renamed), cross_entropy(case.student, case.labels))
    close(sccm(case.T_hat[order], case.T[order]), sccm(case.T_hat, case.T))
    close(
        gad(case.student[:, order], case.teacher[:, order], W, gamma),
        gad(case.student, case.teacher, case.W, case.gamma),
        atol=1e-9,
    )
    student, teacher = case.patch_student, case.patch_teacher
    close(
        lgd(student[..., order], teacher[..., order], renamed, W, gamma, variant=variant),
        lgd(student, teacher, case.labels, case.W, case.gamma, variant=variant),
        atol=1e-9,
    )


@holds_for(cases)
def test_the_selector_follows_the_order_of_classes_and_prompts(case):
    classes, prompts = case.order(case.C), case.order(case.bank.shape[1])
    for selector in ("batch", "class", "none"):
        mask = select_prompts(case.v, case.bank, tau=1.3, selector=selector)
        bank = case.bank[classes][:, prompts]
        moved = select_prompts(case.v, bank, tau=1.3, selector=selector)
        assert torch.equal(moved, mask[classes][:, prompts])
        close(teacher_prototypes(bank, moved), teacher_prototypes(case.bank, mask)[classes])


@holds_for(cases, st.floats(0, 3), st.sampled_from(["batch", "class", "none"]))
def test_every_class_keeps_a_prompt_and_gets_a_finite_prototype(case, tau, selector):
    mask = select_prompts(case.v, case.bank, tau=tau, selector=selector)
    assert mask.any(dim=-1).all()
    T_tilde = teacher_prototypes(case.bank, mask)
    close(T_tilde.norm(dim=-1), torch.ones(case.C, dtype=torch.float64))


@holds_for(st.integers(1, 2000), st.floats(1e-6, 1), st.sampled_from(["half_even", "floor"]))
def test_patches_kept_is_between_one_and_all_and_near_the_ratio(P, ratio, rounding):
    K = patches_kept(P, ratio, rounding=rounding)
    assert 1 <= K <= P
    assert K == 1 or abs(K - P * ratio) <= (0.5 if rounding == "half_even" else 1)


@holds_for(cases, st.integers(1, 4))
def test_each_seed_may_have_its_own_graph_and_gamma(case, S):
    W = torch.stack([class_graph(case.T, 1.0 + s) for s in range(S)])
    gamma = torch.rand(S, case.C, dtype=torch.float64, generator=case.generator)
    student, teacher = case.normal(S, case.B, case.C), case.normal(S, case.B, case.C)
    patches = [case.normal(S, case.B, case.P, case.C) for _ in range(2)]
    labels = torch.randint(case.C, (S, case.B), generator=case.generator)
    together = [
        gad(student, teacher, W, gamma[:, None]),
        lgd(*patches, labels, W[:, None], gamma[:, None, None]),
    ]
    for s in range(S):
        close(together[0][s], gad(student[s], teacher[s], W[s], gamma[s]))
        pair = patches[0][s], patches[1][s]
        close(together[1][s], lgd(*pair, labels[s], W[s], gamma[s]))
