"""Cases by hypothesis: valid command lines, texts, files and calls, changed in a few places, and free text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from fuzz_calls import WITH_TENSORS, WITH_VALUES
from fuzz_hostile import hostile
from fuzz_threads import again, together
from fuzz_world import DENSE, DIGITS
from hypothesis import strategies as st


@dataclass(frozen=True)
class Case:
    """What is tried: a command line (or a call), after damage to files: (path, how, where, content)."""

    kind: str
    words: tuple[str, ...] = ()
    damages: tuple[tuple[str, str, float, str], ...] = ()
    call: tuple[Any, ...] = ()


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
ODD = [
    *("-1", "0", "1", "7", "1000000000", "99999999999999999999", "-9223372036854775809", "1e308", "1e-320", "0.5"),
    *("nan", "inf", "-inf", "", " ", "'", '"', "\\", "é", "😀", "\u202e", "\udcff", "null", "true", "False", "None"),
    *(
        "[]",
        "{}",
        "[1, 2]",
        "{a: 1}",
        "{a: 1}: 2",
        "()",
        "(1,)",
        "nowhere/at/all",
        ".",
        "..",
        "/",
        "/dev/null",
        "run",
    ),
    *(
        "net",
        "mine.py",
        "images",
        "a" * 5000,
        "(",
        ")",
        "x=1",
        "a(b=c(d=1))",
        "${HOME}",
        "%s",
        "--",
        "-h",
        "\n",
        "\t",
    ),
    *(
        "sqlite://",
        ":memory:",
        "1/2",
        "2/1",
        "*a",
        "&a",
        "!!python/object:os.system",
        "!!int x",
        "2020-01-01",
        "0x10",
    ),
    *("1_000", ".nan", "-.inf", "~", "1,2", "a+b", "+", "+ +", "skipinit + ", "__class__", "lambda: 1", "1/0", "**"),
    *("{[1]}", "-" * 3000 + "1", "(" * 300, "[" * 3000, "x" * 300 + ".py:y", "1e400", "9" * 5000, "&a [*a]"),
]
MODELS = [
    *(
        DENSE,
        DENSE,
        "normless:dense",
        "normless:wide_resnet(depth=10, width=1)",
        "normless:resnet_v2(depth=18, channels=2)",
    ),
    *(
        "normless:transformer(layers=1, width=8, heads=2, feed_forward=8)",
        "mine.py:net",
        "mine.py:net(width=5)",
        "net",
    ),
    *("transformers:bert.json", "transformers:bert(num_hidden_layers=1, hidden_size=8, num_attention_heads=2)"),
    *("torchvision:resnet18(depth=3)", "timm:test_resnet", "math:sqrt", "mine.py:Net"),
]
SCHEMES = [
    *(
        "skipinit",
        "skipinit(alpha=1)",
        "skipinit(alpha=1/sqrt(L))",
        "fixup(gain=0.5, biases=False)",
        "none",
        "batch_norm",
    ),
    *("mine.py:own(gain=2.0)", "zeroinit(dropout=0.2)", "none + ZeroClassifier()", "group_norm(groups=2)", "lsuv"),
    *("deepnorm", "nf_resnet(alpha=0.1)", "dyt(alpha=0.5)", "t_fixup", "layer_norm", "completep(base_depth=2.0)"),
    *("tailored_activations(eta=0.9)", "weight_standardization(groups=None)", "none(keep_scale='all')", "rezero"),
]
DATA = [
    *(
        DIGITS,
        DIGITS,
        "gaussian(train=32, test=16)",
        "correlated(train=32, test=16)",
        "image_folder(size=8, resize=8)",
    ),
    *("mine.py:few", "cifar10", "cifar10(train=5)", "svhn", "pets", "digits(train=48, test=16, seed=1)"),
]
TEXT_DATA = [
    "sentiment(train=24, test=8)",
    "labelled_text",
    "labelled_text(sentence='sentence', label='label')",
    "sst2",
]
PAIR_DATA = ["grammar(train=24, validation=8, test=8)", "parallel_text", "parallel_text(source='de')", "multi30k"]
PROBES = [
    "signal",
    "gradients",
    "activations(kind='norm')",
    "logits",
    "backward",
    "parameter_gradients",
    "covariance",
]
FILES = [
    *("mine.py", "sweep.yaml", "config.yaml", "bert.json", "texts/train.tsv", "texts/test.tsv", "tables/train.csv"),
    *("pairs/train.de", "pairs/test.en", "hub/train.parquet", "images/train/cat/0.png", "images/val/dog/1.png"),
    *("net/model.safetensors", "net/recipe.json", "run/checkpoint.pt", "run/config.yaml", "run/digests.json"),
    *("run/result.json", "run/epochs.parquet", "run/steps.parquet", "lab/runs.sqlite"),
]
_FORWARD = (
    "import torch\nclass N(torch.nn.Module):\n    def forward(self, x):\n        {}\n"
    "def net():\n    return N(), torch.ones(2, 3)\n"
)
# Bodies of a file of the user: each is wrong in its own way.
BODIES = [
    *("def net(:\n", "import nowhere\n", "x = 1 / 0\n", "def net():\n    return None\n", "net = 3\n", "\x00", "é = "),
    *("def net(a, b):\n    return a\n", "def net():\n    raise RuntimeError('no\\nnet')\n", "raise SystemExit(3)\n"),
    *(
        "def net():\n    return {}['a']\n",
        "def net():\n    return net()\n",
        "def net():\n    import sys; sys.exit(5)\n",
    ),
    *("def net():\n    raise ValueError\n", "import torch\ndef net():\n    return torch.nn.Linear(2, 2), 'inputs'\n"),
    "import torch\ndef net():\n    return torch.nn.Linear(2, 2), torch.randn(4, 3)\n",
    "import torch\ndef net():\n    return torch.nn.Linear(2, 2), (torch.randn(4, 2), torch.randn(4, 2))\n",
    "import torch\ndef net():\n    return torch.nn.Module(), torch.randn(4, 3)\n",
    _FORWARD.format("return 'text'"),
    _FORWARD.format("raise KeyError('a')"),
    _FORWARD.format("return x.nowhere"),
    "import torch\ndef net():\n    n = torch.nn.Sequential(torch.nn.Linear(12, 3))\n"
    "    n[0].weight.data.fill_(float('nan'))\n    return n, torch.randn(4, 12)\n",
    *(
        "def own():\n    return 3\n",
        "def own(x):\n    return ()\n",
        "def own():\n    return (1, 2)\n",
        "own = None\n",
    ),
    *(
        "def own():\n    raise OSError(2, 'no scheme')\n",
        "def few():\n    return 1\n",
        "def few():\n    raise KeyError(1)\n",
    ),
]


def _texts() -> st.SearchStrategy[str]:
    return st.one_of(st.sampled_from(ODD), st.text(max_size=12).filter(lambda text: "\x00" not in text))


@st.composite
def changed(draw: Any, texts: Sequence[str]) -> str:
    """One of some texts: as it is, or with a part replaced, cut out or put in; or free text."""
    text = str(draw(st.sampled_from(texts)))
    how = draw(st.sampled_from(["same"] * 15 + ["number", "number", "part", "cut", "insert", "join", "free"]))
    if how == "same" or not text:
        return text
    if how == "free":
        return str(draw(_texts()))
    if how == "join":
        return f"{text}{draw(st.sampled_from(['', ' ', ' + ', '+', '(', ':', ', ']))}{draw(st.sampled_from(texts))}"
    start = draw(st.integers(0, len(text) - 1))
    if how == "number":
        digits = [at for at, character in enumerate(text) if character.isdigit()]
        start = digits[start % len(digits)] if digits else start
        return text[:start] + draw(st.sampled_from(ODD)) + text[start + 1 :]
    end = min(len(text), start + draw(st.integers(1, 8)))
    piece = "" if how == "cut" else draw(_texts())
    return text[:start] + piece + text[start if how == "insert" else end :]


def _flag(name: str, texts: Sequence[str]) -> st.SearchStrategy[list[str]]:
    return st.one_of(st.just([]), changed(texts).map(lambda text: [name, text]))


def _line(*parts: st.SearchStrategy[list[str]] | list[str]) -> st.SearchStrategy[list[str]]:
    made = [part if isinstance(part, st.SearchStrategy) else st.just(part) for part in parts]
    return st.tuples(*made).map(lambda lists: [word for words in lists for word in words])


def _one(texts: Sequence[str]) -> st.SearchStrategy[list[str]]:
    return changed(texts).map(lambda text: [text])


IMAGES = st.one_of(
    st.just([]),
    st.lists(changed(["1", "3", "8", "12", "32"]), min_size=3, max_size=3).map(lambda three: ["--image", *three]),
    st.just(["--image", "1", "3", "4"]),
)
JSON = st.sampled_from([[], [], ["--json"]])
SEED = _flag("--seed", ["0", "1"])
BATCH = st.one_of(st.just(["--batch-size", "4"]), _flag("--batch-size", ["4"]))
NETWORK = _line(_one(MODELS), IMAGES, _flag("--classes", ["3"]))
SOURCE = st.one_of(st.just([]), _line(_flag("--data", DATA), _flag("--data-root", ["images", "texts", "nowhere"])))
SETTINGS = [
    *(("--rate", ["0.1"]), ("--momentum", ["0.9"]), ("--weight-decay", ["5e-4"]), ("--epochs", ["1"])),
    *(("--decay-policy", ["guidelines", "all", "weights+last"]), ("--label-smoothing", ["0.1"]), ("--seed", ["1"])),
    *(("--precision", ["32-true", "64-true", "bf16-true"]), ("--device", ["cpu", "auto"]), ("--devices", ["1"])),
    *(("--recompute", ["never", "always"]), ("--micro-batch-size", ["8"]), ("--mixup", ["0.2"]), ("--cutout", ["2"])),
    *(("--crop", ["1"]), ("--flip", ["true", "null"]), ("--dropout", ["0.1"]), ("--ghost-batch-size", ["8"])),
    *(("--schedule", ["cosine", "step"]), ("--clip", ["1.0"]), ("--warmup-epochs", ["0"]), ("--model", MODELS)),
    *(("--scheme", SCHEMES), ("--data", DATA), ("--probes", PROBES), ("--probe-every", ["1"]), ("--restart", [""])),
]
_SETTINGS = st.lists(
    st.sampled_from(SETTINGS).flatmap(lambda one: changed(one[1]).map(lambda text: [one[0], text])), max_size=3
).map(lambda lists: [word for words in lists for word in words])
OUT = st.sampled_from([["--out", "out"]] * 4 + [["--out", "run"], ["--out", "config.yaml"], ["--out", "images"]])
ROOT = st.sampled_from([[], ["--data-root", "texts"], ["--data-root", "tables"], ["--data-root", "pairs"]])
SMALL_BERT = "transformers:bert(num_hidden_layers=1, hidden_size=8, num_attention_heads=2, intermediate_size=8)"
LINES: dict[str, st.SearchStrategy[list[str]]] = {
    "inspect": _line(
        *(["inspect"], NETWORK, st.one_of(st.just(["--schemes", "skipinit"]), _flag("--schemes", SCHEMES)), JSON),
        *(_flag("--figure", ["out.svg", "new/out.svg"]), st.sampled_from([[], ["--train"], ["--eval"]])),
    ),
    "convert": _line(["convert"], NETWORK, ["--scheme"], _one(SCHEMES), OUT, SEED, JSON),
    "probe": _line(
        *(["probe"], NETWORK, _flag("--scheme", SCHEMES), SOURCE, BATCH, SEED, ["--probes"], _one(PROBES)),
        *(st.sampled_from([[], ["--eval"]]), JSON, st.sampled_from([[], [], ["--out", "out"], ["--out", "mine.py"]])),
    ),
    "diagnose": _line(
        *(["diagnose"], NETWORK, _flag("--scheme", SCHEMES), SOURCE, BATCH, SEED, JSON, _flag("--rate", ["0.1"])),
        *(_flag("--momentum", ["0.9"]), _flag("--decay-policy", ["all"]), st.sampled_from([[], ["--why"]])),
    ),
    "train": _line(["train", "--config"], _one(["config.yaml", "run/config.yaml"]), _SETTINGS, OUT, ROOT, JSON),
    "train again": st.just(["train", "--config", "run/config.yaml", "--out", "run"]),
    "train-text": _line(
        *(["train-text", "--epochs", "1", "--batch-size", "8", "--model"], _one([SMALL_BERT, "mine.py:net", "net"])),
        *(["--data"], _one(TEXT_DATA), _flag("--vocabulary", ["40"]), _flag("--longest", ["8"]), ROOT, OUT),
        *(_flag("--warmup", ["0.1"]), _flag("--beta1", ["0.9"]), _flag("--scheme", SCHEMES)),
    ),
    "train-translation": _line(
        *(["train-translation", "--epochs", "1", "--warmup-steps", "1", "--model"],),
        *(_one([MODELS[5], "mine.py:net"]), ["--data"], _one(PAIR_DATA), _flag("--vocabulary", ["60"]), ROOT, OUT),
        *(_flag("--source", ["de", "en"]), _flag("--beam-width", ["2"]), _flag("--batch-tokens", ["64"])),
    ),
    "sweep": _line(
        st.sampled_from(["status --once", "export", "prune", "run", "retry"]).map(
            lambda text: ["sweep", *text.split()]
        ),
        *(_one(["sweep.yaml", "config.yaml"]), st.one_of(st.just([]), _one(["out.csv", "out.parquet"]))),
        st.sampled_from([["--out", "lab"], ["--out", "out"], ["--out", "mine.py"]]),
        *(_flag("--metrics", ["test_accuracy", "bleu"]), JSON),
        _flag("--db", ["sqlite:///lab/runs.sqlite", "sqlite:///nowhere/a.db", "postgresql://"]),
    ),
    "sweep file": st.sampled_from(
        [["sweep", "status", "--once", "sweep.yaml", "--out", "lab"], ["sweep", "export", "sweep.yaml", "out.csv"]]
    ),
    "list": _line(["list"], _one(["schemes", "models", "data", "probes"]), JSON),
    "reproduce": _line(
        *(["reproduce"], _one(["fixup/table-1", "skipinit/figure-1", "mine.py:own", "--list", "--all"])),
        *(_flag("--budget", ["smoke", "small"]), _flag("--paper", ["fixup"]), _flag("--data", DATA), OUT, JSON),
    ),
    "report": _line(["report"], _one(["run", "lab", "out"]), _flag("--page", ["page.html", "new/page.html"])),
    "demo": _line(
        *(["demo", "--print"], OUT, _flag("--workers", ["1", "0"]), _flag("--device", ["cpu", "gpu"])),
    ),
    "bench": _line(
        ["bench"],
        _one(["step", "map", "memory"]),
        _flag("--rounds", ["1"]),
        _flag("--runs", ["1"]),
        _flag("--workers", ["1"]),
    ),
    "words": st.lists(
        st.one_of(_texts(), st.sampled_from(["train", "sweep", "--json", "--out", "inspect"])), max_size=5
    ),
}
DAMAGE = st.tuples(
    st.sampled_from(FILES),
    st.sampled_from(["flip", "flip", "truncate", "repeat", "insert", "value", "value", "replace", "gone", "folder"]),
    st.floats(0, 1, exclude_max=True),
    st.one_of(st.sampled_from(ODD), st.sampled_from(BODIES), st.just(BOMB), st.text(max_size=30)),
)
# The file that a command certainly reads.
READS = {
    "run/": ["train", "--config", "config.yaml", "--scheme", "skipinit", "--out", "run"],
    "net/": ["inspect", "net", "--schemes", "skipinit"],
    "lab/": ["sweep", "status", "sweep.yaml", "--once", "--out", "lab"],
    "bert.json": ["inspect", "transformers:bert.json", "--schemes", "skipinit"],
    "mine.py": ["inspect", "mine.py:net", "--schemes", "skipinit"],
    "sweep.yaml": ["sweep", "status", "sweep.yaml", "--once", "--out", "out"],
    "config.yaml": ["train", "--config", "config.yaml", "--out", "out"],
    **{
        f"{root}/": [
            "train-text",
            "--epochs",
            "1",
            "--model",
            SMALL_BERT,
            "--data",
            "labelled_text",
            "--data-root",
            root,
        ]
        for root in ("texts", "tables", "hub")
    },
    "pairs/": [
        *(
            "train-translation",
            "--epochs",
            "1",
            "--warmup-steps",
            "1",
            "--data",
            "parallel_text",
            "--data-root",
            "pairs",
        ),
        *("--vocabulary", "60", "--model", MODELS[5]),
    ],
    "images/": [
        *("train", "--model", "normless:wide_resnet(depth=10, width=1)", "--epochs", "1", "--batch-size", "4"),
        *("--data", "image_folder(size=8, resize=8, workers=0)", "--data-root", "images", "--out", "out"),
    ],
}
USERS = [
    *(["inspect", "mine.py:net", "--schemes", "skipinit"], ["probe", "mine.py:net", "--probes", "signal"]),
    *(["convert", "mine.py:net", "--scheme", "none", "--out", "out"], ["diagnose", "mine.py:net"]),
    *(["train", "--config", "config.yaml", "--scheme", "mine.py:own", "--out", "out"], ["inspect", "net"]),
    *(["train", "--config", "config.yaml", "--data", "mine.py:few", "--out", "out"],),
    *(["train", "--config", "config.yaml", "--model", "mine.py:net", "--out", "out"],),
]


@st.composite
def _damaged(draw: Any) -> Case:
    damages = tuple(draw(st.lists(DAMAGE, min_size=1, max_size=2, unique_by=lambda one: one[0])))
    words = next(words for start, words in READS.items() if damages[0][0].startswith(start))
    return Case("files", tuple(words), damages)


def _case(name: str, words: list[str]) -> Case:
    return Case(name, tuple(words))


USER = st.tuples(st.sampled_from(USERS), st.sampled_from(BODIES)).map(
    lambda two: Case("user's file", tuple(two[0]), (("mine.py", "replace", 0.0, two[1]),))
)
KINDS: dict[str, st.SearchStrategy[Case]] = {
    **{name: line.map(partial(_case, name)) for name, line in LINES.items()},
    "files": _damaged(),
    "user's file": USER,
    "hostile": hostile().map(lambda two: Case("hostile", tuple(two[0]), (two[1],))),
    "call": WITH_TENSORS.map(lambda call: Case("call", call=call)),
    "values": WITH_VALUES.map(lambda call: Case("values", call=call)),
    "threads": together(WITH_TENSORS).map(lambda calls: Case("threads", call=calls)),
    "leaks": again(WITH_TENSORS).map(lambda call: Case("leaks", call=call)),
}
"""Cases by kind."""
# How often a kind is drawn, relative to the others.
WEIGHTS = {
    "call": 8,
    "values": 3,
    "files": 8,
    "user's file": 2,
    "hostile": 2,
    "train": 4,
    "inspect": 3,
    "convert": 2,
    "train again": 0.1,
    "threads": 0.7,
    "leaks": 0.7,
}
