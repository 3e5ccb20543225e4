import math

import numpy as np
import pytest
import torch
from timm.loss import BinaryCrossEntropy as TimmBCE
from torch.nn import functional as F
from torchvision.ops import sigmoid_focal_loss

from launcher.algorithms.label_smoothing import smooth
from launcher.config.compose import compose
from launcher.data.batch import one_hot
from launcher.errors import UserError
from launcher.tasks import Details, build_task
from launcher.tasks.classification import Classification
from launcher.tasks.confusion import Confusion
from launcher.tasks.images import ImageTask

CROSS_ENTROPY, BCE = (build_task(compose([f"loss={name}"]).config).loss for name in ("cross_entropy", "bce"))
LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, -2.0]])
LABELS = torch.tensor([2, 0])
SOFT = torch.tensor([[0.1, 0.2, 0.7], [0.5, 0.5, 0.0]])


class WithoutStates(ImageTask):
    metrics = Classification.metrics
    targets = predictions = details = Classification.targets


class WithoutRows(Details):
    key = "by_class"
    add = texts = Confusion.add


def test_what_a_task_or_its_details_lack_is_one_line() -> None:
    with pytest.raises(UserError, match=r"^WithoutStates of \S+ has no states; write what it lacks$"):
        WithoutStates(name="without_states")
    with pytest.raises(UserError, match=r"WithoutRows of \S+ has no heading and no rows; write what it lacks$"):
        WithoutRows()


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def bce_by_hand(targets: list[list[float]]) -> float:
    terms = [
        -(y * math.log(sigmoid(x)) + (1 - y) * math.log(1 - sigmoid(x)))
        for row, expected in zip(LOGITS.tolist(), targets, strict=True)
        for x, y in zip(row, expected, strict=True)
    ]
    return sum(terms) / 2


def cross_entropy_by_hand(targets: list[list[float]]) -> float:
    total = 0.0
    for row, expected in zip(LOGITS.tolist(), targets, strict=True):
        normalizer = math.log(sum(map(math.exp, row)))
        total -= sum(y * (x - normalizer) for x, y in zip(row, expected, strict=True))
    return total / 2


@pytest.mark.parametrize(("loss", "by_hand"), [(CROSS_ENTROPY, cross_entropy_by_hand), (BCE, bce_by_hand)])
def test_losses_follow_their_formula_for_indices_and_for_soft_targets(loss, by_hand):
    assert loss(LOGITS, SOFT).item() == pytest.approx(by_hand(SOFT.tolist()), rel=1e-6)
    assert loss(LOGITS, LABELS).item() == pytest.approx(by_hand([[0, 0, 1], [1, 0, 0]]), rel=1e-6)


def test_bce_is_timms_mean_times_the_number_of_classes():
    assert BCE(LOGITS, SOFT).item() == pytest.approx(3 * TimmBCE(smoothing=0.0)(LOGITS, SOFT).item(), rel=1e-6)


@pytest.mark.parametrize(("threshold", "ones"), [(0.2, [[0, 0, 1], [1, 1, 0]]), (0.15, [[0, 1, 1], [1, 1, 0]])])
def test_the_threshold_of_bce_is_timms(threshold, ones):
    thresholded = build_task(compose(["loss=bce", f"loss.target_threshold={threshold}"]).config).loss
    expected = TimmBCE(smoothing=0.0, target_threshold=threshold)(LOGITS, SOFT).item()
    assert 3 * expected == pytest.approx(bce_by_hand(ones), rel=1e-6)
    assert thresholded(LOGITS, SOFT).item() == pytest.approx(3 * expected, rel=1e-6)
    assert thresholded(LOGITS, LABELS).item() == BCE(LOGITS, LABELS).item()


@pytest.mark.parametrize("tau", [1.0, 0.5])
@pytest.mark.parametrize("targets", [[[0, 0, 1], [1, 0, 0]], SOFT.tolist()])
def test_logit_adjustment_is_the_loss_of_menon_et_al(tau, targets):
    """Equation 10: -log(prior_y^tau e^f_y / sum_j prior_j^tau e^f_j); here summed over the weights of a target."""
    counts = np.array([60, 30, 10])
    config = compose([f"loss.logit_adjustment={tau}"]).config
    values = {name: torch.tensor(value) for name, value in config.loss.of_classes(counts, 100).items()}
    expected = 0.0
    for logits, row in zip(LOGITS.tolist(), targets, strict=True):
        odds = [(count / 100) ** tau * math.exp(logit) for count, logit in zip(counts, logits, strict=True)]
        expected -= sum(weight * math.log(one / sum(odds)) for weight, one in zip(row, odds, strict=True)) / 2
    assert build_task(config).loss(LOGITS, torch.tensor(targets).float(), **values).item() == pytest.approx(expected)
    assert "added" not in compose([]).config.loss.of_classes(counts, 100)


@pytest.mark.parametrize(
    ("value", "weights"),
    [("balanced", [40 / 60, 70 / 30, 100.0]), ("3", [3.0] * 3), ("[2,0.5,1]", [2.0, 0.5, 1.0])],
)
def test_pos_weight_multiplies_the_terms_of_present_classes(value, weights):
    config = compose(["loss=bce", f"loss.pos_weight={value}"]).config
    values = config.loss.of_classes(np.array([60, 30, 0]), 100)
    assert values["pos_weight"].tolist() == pytest.approx(weights)
    absent, present = -(1 - LOGITS.sigmoid()).log() * (1 - SOFT), -LOGITS.sigmoid().log() * SOFT
    expected = (absent + torch.tensor(weights) * present).sum().item() / 2
    given = {name: torch.tensor(one, dtype=torch.float32) for name, one in values.items()}
    assert build_task(config).loss(LOGITS, SOFT, **given).item() == pytest.approx(expected)
    assert compose(["loss=bce"]).config.loss.of_classes(np.array([60, 30, 0]), 100) == {}


@pytest.mark.parametrize(("gamma", "alpha"), [(2.0, 0.25), (0.5, 0.9), (3.0, None), (0.0, None)])
@pytest.mark.parametrize("targets", [LABELS, SOFT])
def test_the_focal_loss_is_torchvisions_and_bce_without_its_power(gamma, alpha, targets):
    words = ["loss=focal", f"loss.gamma={gamma}", f"loss.alpha={'null' if alpha is None else alpha}"]
    loss, soft = build_task(compose(words).config).loss, one_hot(targets, 3).float()
    options = {"alpha": -1 if alpha is None else alpha, "gamma": gamma}
    expected = sigmoid_focal_loss(LOGITS, soft, reduction="sum", **options).item() / len(LOGITS)
    assert loss(LOGITS, targets).item() == pytest.approx(expected, rel=1e-6)
    assert gamma > 0 or loss(LOGITS, targets).item() == pytest.approx(BCE(LOGITS, targets).item(), rel=1e-6)
    weighted = loss(LOGITS, LABELS, weights=torch.tensor([1.0, 1.0, 3.0])).item()
    each = sigmoid_focal_loss(LOGITS, one_hot(LABELS, 3).float(), reduction="none", **options).sum(1)
    assert weighted == pytest.approx((3 * each[0] + each[1]).item() / 2, rel=1e-6)


def test_the_gradient_of_the_focal_loss_is_finite_where_the_network_is_sure():
    loss = build_task(compose(["loss=focal", "loss.gamma=0.5"]).config).loss
    logits = torch.tensor([[200.0, -200.0, 0.0]], requires_grad=True)
    loss(logits, torch.tensor([0])).backward()
    assert logits.grad.isfinite().all()
    assert logits.grad[0, 2] > 0


@pytest.mark.parametrize("loss", [CROSS_ENTROPY, BCE])
@pytest.mark.parametrize("targets", [LABELS, SOFT.bfloat16(), SOFT.double()])
def test_losses_are_float32_for_half_precision_logits_in_and_out_of_autocast(loss, targets):
    logits = LOGITS.bfloat16()
    outside = loss(logits, targets)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = loss(logits, targets)
    exact = loss(logits.float(), targets.float() if targets.is_floating_point() else targets)
    assert outside.dtype == inside.dtype == torch.float32
    assert outside == inside == exact


WEIGHTS = torch.tensor([0.2, 3.0, 1.5])


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weighted_cross_entropy_is_torchs_sum_over_the_number_of_samples(smoothing):
    """torch's mean of soft targets is the same; that of indices is divided by the sum of their weights instead."""
    theirs = F.cross_entropy(LOGITS, LABELS, WEIGHTS, reduction="sum", label_smoothing=smoothing) / 2
    targets = smooth(LABELS, smoothing, 3) if smoothing else LABELS
    torch.testing.assert_close(CROSS_ENTROPY(LOGITS, targets, weights=WEIGHTS), theirs)
    soft = torch.nn.CrossEntropyLoss(weight=WEIGHTS)(LOGITS, SOFT)
    torch.testing.assert_close(CROSS_ENTROPY(LOGITS, SOFT, weights=WEIGHTS), soft)
    mean_of_indices = CROSS_ENTROPY(LOGITS, LABELS, weights=WEIGHTS) * 2 / WEIGHTS[LABELS].sum()
    torch.testing.assert_close(mean_of_indices, torch.nn.CrossEntropyLoss(weight=WEIGHTS)(LOGITS, LABELS))


@pytest.mark.parametrize("targets", [LABELS, SOFT])
def test_weighted_bce_weighs_each_sample_by_its_classes(targets):
    """As in the class-balanced sigmoid loss of Cui et al. 2019."""
    each = torch.stack([BCE(LOGITS[n : n + 1], targets[n : n + 1]) for n in range(2)])
    of_samples = WEIGHTS[targets] if targets is LABELS else targets @ WEIGHTS
    torch.testing.assert_close(BCE(LOGITS, targets, weights=WEIGHTS), (of_samples * each).mean())


@pytest.mark.parametrize("loss", [CROSS_ENTROPY, BCE])
@pytest.mark.parametrize("targets", [LABELS, SOFT])
def test_the_mean_over_halves_of_a_batch_is_that_of_the_batch_with_weights_too(loss, targets):
    halves = [loss(LOGITS[n : n + 1], targets[n : n + 1], weights=WEIGHTS) for n in range(2)]
    torch.testing.assert_close(loss(LOGITS, targets, weights=WEIGHTS), torch.stack(halves).mean())
    torch.testing.assert_close(loss(LOGITS, targets, weights=torch.ones(3)), loss(LOGITS, targets))


def test_of_equal_logits_the_first_class_is_predicted_by_metrics_table_and_predictions_alike():
    task, names = build_task(compose(["loss=cross_entropy"]).config), [str(number) for number in range(12)]
    logits = torch.randint(0, 3, (500, 12), generator=torch.Generator().manual_seed(0)).float()
    order = torch.from_numpy(np.argsort(-logits.numpy(), axis=1, kind="stable"))
    labels = order[:, 2]
    states = task.states(logits, labels)
    assert (states["top1"], states["top5"]) == (0, 500)
    assert states["predicted"].tolist() == torch.bincount(logits.argmax(1), minlength=12).tolist()
    predicted = [[int(name) for name, _ in row] for row in task.predictions(logits, names, 5)]
    assert predicted == order[:, :5].tolist()
