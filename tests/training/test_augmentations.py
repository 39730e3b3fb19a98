"""Augmentation: what it makes of samples, that it is repeatable, and that only training sees it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flamma.errors import ConfigError, FlammaError
from flamma.models import FlatModel, build_model
from flamma.registry import Choice
from flamma.seeding import StreamKey
from flamma.training import TrainingJob, augmentation_stream, training_stream
from flamma.training.augmentations import (
    AUGMENTATIONS,
    AugmentationReader,
    augmentation_of,
    augmented,
)
from flamma.training.config import TRAINERS, TrainerSettings, pick_trainer
from flamma.training.lanes import LanesTrainer, available, instruction_sets
from flamma.training.torch_trainer import TorchTrainer
from flat_work import work

SHAPE = (2, 5, 4)


def pictures(count=6):
    return np.random.default_rng(0).standard_normal((count, *SHAPE)).astype(np.float32)


def test_flip_mirrors_some_and_leaves_the_others():
    x = pictures(64)
    changed = AUGMENTATIONS["flip"]()(x, np.random.default_rng(1))
    mirrored = [not np.array_equal(own, was) for own, was in zip(changed, x, strict=True)]
    for own, was, is_mirrored in zip(changed, x, mirrored, strict=True):
        np.testing.assert_array_equal(own, was[..., ::-1] if is_mirrored else was)
    assert 16 < sum(mirrored) < 48
    np.testing.assert_array_equal(AUGMENTATIONS["flip"](0.0)(x, np.random.default_rng(1)), x)
    np.testing.assert_array_equal(
        AUGMENTATIONS["flip"](1.0)(x, np.random.default_rng(1)), x[..., ::-1]
    )


@given(st.integers(0, 6), st.integers(0, 2**32 - 1))
@settings(max_examples=50, deadline=None)
def test_crop_shifts_each_picture_and_fills_up_with_zeros(padding, seed):
    x = pictures(5)
    changed = AUGMENTATIONS["crop"](padding)(x, np.random.default_rng(seed))
    assert changed.shape == x.shape
    down, across = np.random.default_rng(seed).integers(0, 2 * padding + 1, (2, 5)) - padding
    for own, was, dy, dx in zip(changed, x, down, across, strict=True):
        for row in range(5):
            for column in range(4):
                inside = 0 <= row + dy < 5 and 0 <= column + dx < 4
                expected = was[:, row + dy, column + dx] if inside else 0
                np.testing.assert_array_equal(own[:, row, column], expected)


def test_several_are_applied_in_turn():
    x = pictures()
    both = augmentation_of((Choice("flip", {"chance": 1.0}), Choice("crop", {"padding": 0})))
    np.testing.assert_array_equal(both(x, np.random.default_rng(0)), x[..., ::-1])
    assert augmentation_of(()) is None


def make_job(round=1):
    task = work(3, round, epochs=2, learning_rate=0.1, report_loss="received")
    y = np.arange(20) % 3
    return TrainingJob(task, pictures(20), y, training_stream(7, task))


def make_model():
    return build_model("logistic", SHAPE, 3, seed=0)


def outcome(augment, job):
    trainer = TorchTrainer(make_model, 8, augment=augment)
    received = trainer.model.read()
    [(_, trained)] = trainer.train_each(received, [job])
    assert trained.error is None
    return trained.params.tobytes(), trained.loss


def test_training_is_repeatable_and_its_noise_is_of_the_client_and_the_round():
    first, again = (
        outcome(AUGMENTATIONS["flip"](), make_job()),
        outcome(AUGMENTATIONS["flip"](), make_job()),
    )
    assert first == again
    key = make_job().rng
    assert isinstance(key, StreamKey)
    drawn = [
        augmentation_stream(job).integers(2**62)
        for job in (make_job(), make_job(), make_job(round=2))
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    assert drawn[0] != key.generator().integers(2**62)  # not that of the mini-batches


def test_only_training_sees_augmented_samples():
    plain, flipped = outcome(None, make_job()), outcome(AUGMENTATIONS["flip"](1.0), make_job())
    assert plain[0] != flipped[0]
    assert plain[1] == flipped[1]  # the loss of the received model
    mirrored = make_job()._replace(x=np.ascontiguousarray(pictures(20)[..., ::-1]))
    assert flipped[0] == outcome(None, mirrored)[0]


def test_mini_batches_and_dropout_are_those_without_augmentation():
    def unchanged(samples, rng):
        rng.random(100)
        return samples

    assert outcome(unchanged, make_job()) == outcome(None, make_job())


def test_a_function_that_changes_the_shape_is_refused():
    with pytest.raises(FlammaError, match="must keep the shape"):
        augmented(lambda samples, rng: samples[:, :1], pictures(), np.random.default_rng(0))


def test_doubles_become_floats_again():
    made = augmented(lambda samples, rng: samples * np.float64(2), pictures(), None)
    assert made.dtype == np.float32


@pytest.mark.parametrize("augment", [AUGMENTATIONS["flip"](), AUGMENTATIONS["crop"]()])
def test_pictures_are_needed(augment):
    with pytest.raises(ConfigError, match="is for pictures"):
        augment(np.zeros((3, 4), np.float32), np.random.default_rng(0))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("flap", "did you mean flip"),
        ({"name": "crop", "pading": 1}, "did you mean padding"),
        (["flip", 3], "must be a name or a table"),
        ({"name": "crop", "padding": "x"}, "must be a whole number"),
    ],
)
def test_what_cannot_be_read_is_refused(given, words):
    with pytest.raises(ConfigError, match=words):
        AugmentationReader().choose(given, "training.augmentation")


def test_ranges_are_checked():
    for make in (
        lambda: AUGMENTATIONS["flip"](1.5),
        lambda: AUGMENTATIONS["flip"](float("nan")),
        lambda: AUGMENTATIONS["crop"](-1),
    ):
        with pytest.raises(ConfigError, match="must lie"):
            make()


def test_one_of_your_own_must_be_given():
    with pytest.raises(ConfigError, match="augment="):
        augmentation_of((Choice("own"),))
    own = AUGMENTATIONS["flip"]()
    assert augmentation_of((Choice("own"),), own) is own


def test_one_by_name():
    @dataclass(frozen=True)
    class Noise:
        size: float = 0.1

        def __call__(self, samples, rng):
            return samples + self.size * rng.standard_normal(samples.shape)

    AUGMENTATIONS.add("noise", Noise)
    try:
        chosen = AugmentationReader().choose({"name": "noise", "size": 0.5}, "x")
        x, noise = pictures(), augmentation_of(chosen)
        expected = Noise(0.5)(x, np.random.default_rng(0))
        np.testing.assert_array_equal(noise(x, np.random.default_rng(0)), expected)
    finally:
        AUGMENTATIONS.discard("noise")


def test_stacks_do_not_augment():
    model = FlatModel(make_model())
    wanted = TrainerSettings(SHAPE, 8, augment=AUGMENTATIONS["flip"]())
    with pytest.raises(ConfigError, match="does not augment"):
        TRAINERS["stacked"](model, wanted)


# In lanes


BOTH = augmentation_of((Choice("flip"), Choice("crop", {"padding": 1})))


def jobs_of_several(**task):
    jobs = []
    for client, samples in enumerate((20, 7, 16, 33, 8)):
        own = work(client, 4, learning_rate=0.1, **({"epochs": 3} | task))
        x, y = pictures(samples), np.arange(samples) % 3
        jobs.append(TrainingJob(own, x, y, training_stream(7, own)))
    return jobs


def in_lanes(jobs, augment=BOTH, **options):
    trainer = LanesTrainer(make_model(), SHAPE, 8, augment=augment, **options)
    received = FlatModel(make_model()).read()
    return trainer.train_many(received, jobs)


needs_lanes = pytest.mark.skipif(not available(), reason="the kernels are not compiled")


@needs_lanes
@pytest.mark.parametrize(
    "task", [{}, {"report_loss": "received"}, {"report_loss": "trained"}, {"batches": 7}]
)
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_lanes_train_on_the_samples_that_torch_trains_on(task, momentum):
    jobs = jobs_of_several(**task)
    torch = TorchTrainer(make_model, 8, momentum, augment=BOTH)
    received = torch.model.read()
    found = in_lanes(jobs, momentum=momentum)
    plain = in_lanes(jobs, augment=None, momentum=momentum)
    for number, expected in torch.train_each(received, jobs):
        own = found[number]
        np.testing.assert_allclose(own.params, expected.params, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(own.loss, expected.loss, rtol=1e-4)
        assert not np.array_equal(own.params, plain[number].params)


@needs_lanes
def test_in_lanes_a_client_has_the_same_bits_alone_and_with_any_instructions():
    jobs = jobs_of_several()
    expected = [done.params.tobytes() for done in in_lanes(jobs)]
    assert [in_lanes([job])[0].params.tobytes() for job in jobs] == expected
    assert [done.params.tobytes() for done in in_lanes(jobs[::-1])][::-1] == expected
    for name in instruction_sets():
        assert [done.params.tobytes() for done in in_lanes(jobs, instructions=name)] == expected


@needs_lanes
def test_in_lanes_nothing_random_is_drawn_from_the_stream_of_the_mini_batches():
    jobs = jobs_of_several()
    plain = [done.params.tobytes() for done in in_lanes(jobs, augment=None)]
    still = in_lanes(jobs, augment=lambda samples, rng: samples + 0 * rng.random())
    assert [done.params.tobytes() for done in still] == plain


@needs_lanes
def test_in_lanes_an_augmentation_that_fails_ends_the_training_of_one_client():
    calls = []

    def fails(samples, rng):
        calls.append(len(samples))
        if len(samples) == 7:
            raise ValueError("no seven")
        return samples[:, :1] if len(samples) == 1 else samples

    found = in_lanes(jobs_of_several(), augment=fails)
    assert [done.error is None for done in found] == [True, False, True, False, True]
    assert "no seven" in str(found[1].error)
    assert "must keep the shape" in str(found[3].error)  # of its last mini-batch
    assert found[1].params is None
    assert all(done.params is not None for done in (found[0], found[2], found[4]))
    assert calls


@needs_lanes
def test_in_lanes_clients_are_augmented_when_they_have_their_turn():
    # All of them at once would need as much memory again as their data.
    begun = []

    def remember(samples, rng):
        begun.append(len(samples))
        return samples

    jobs = jobs_of_several(epochs=1) * 4
    trainer = LanesTrainer(make_model(), SHAPE, 64, augment=remember)
    results = trainer.train_each(FlatModel(make_model()).read(), jobs)
    next(results)
    assert len(begun) <= 2 * trainer.width
    assert len(list(results)) == len(jobs) - 1
    assert len(begun) == len(jobs)


@needs_lanes
def test_lanes_are_chosen_where_samples_are_augmented():
    model = FlatModel(make_model())
    assert (
        pick_trainer("auto", model, TrainerSettings(SHAPE, 8, augment=AUGMENTATIONS["flip"]())).name
        == "lanes"
    )
