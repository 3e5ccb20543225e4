"""Suspected labels by confident learning: against a loop over the paper's formula, and labels that were changed."""

import numpy as np

from launcher_lab.look.label_errors import suspected_labels

IMAGES, CLASSES = 400, 5


def predicted(noise: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return labels, some of them wrong, whether they are, and probabilities that mostly know the true class."""
    random = np.random.default_rng(0)
    truth = random.integers(0, CLASSES, IMAGES)
    is_wrong = random.random(IMAGES) < noise
    labels = np.where(is_wrong, (truth + random.integers(1, CLASSES, IMAGES)) % CLASSES, truth)
    logits = random.normal(0, 1, (IMAGES, CLASSES))
    logits[np.arange(IMAGES), truth] += 3
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return labels, is_wrong, probabilities


def test_suspected_labels_are_off_the_diagonal_of_the_confident_joint() -> None:
    labels, _, probabilities = predicted(0.1)
    thresholds = [probabilities[labels == one, one].mean() for one in range(CLASSES)]
    expected = {}
    for number, (label, row) in enumerate(zip(labels, probabilities, strict=True)):
        reached = {one: row[one] for one in range(CLASSES) if row[one] >= thresholds[one]}
        if reached and (best := max(reached, key=lambda one: reached[one])) != label:
            expected[number] = best
    images, classes = suspected_labels(labels, probabilities)
    assert dict(zip(images.tolist(), classes.tolist(), strict=True)) == expected
    margins = [probabilities[n, labels[n]] - np.delete(probabilities[n], labels[n]).max() for n in images]
    assert margins == sorted(margins)


def test_changed_labels_are_suspected_and_a_class_without_images_is_not() -> None:
    labels, is_wrong, probabilities = predicted(0.1)
    images, _ = suspected_labels(labels, probabilities)
    assert is_wrong[images].mean() > 0.7
    assert is_wrong[images].sum() / is_wrong.sum() > 0.7
    assert is_wrong[images[:20]].all()
    labels = np.where(labels == 4, 3, labels)
    assert 4 not in suspected_labels(labels, probabilities)[1]
    assert len(suspected_labels(np.arange(CLASSES), np.eye(CLASSES))[0]) == 0
