"""Cases by hypothesis: valid command lines, texts and files, changed in a few places, and free text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fuzz_world import DENSE, DIGITS
from hypothesis import strategies as st
from jsonargparse import ArgumentParser

from normless.cli._commands import COMMANDS

BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)
)
ODD = [
    *("-1", "0", "1", "7", "1000000000", "99999999999999999999", "-9223372036854775809", "1e308", "1e-320", "0.5"),
    *("nan", "inf", "-inf", "", " ", "'", '"', "\\", "é", "😀", "\u202e", "\udcff", "null", "true", "False", "None"),
    *("[]", "{}", "[1, 2]", "{a: 1}", "{a: 1}: 2", "()", "(1,)", "nowhere/at/all", ".", "..", "/", "/dev/null"),
    *("net", "mine.py", "images", "a" * 5000, "(", ")", "x=1", "a(b=c(d=1))", "${HOME}", "%s", "--", "-h", "\n"),
    *("sqlite://", ":memory:", "1/2", "2/1", "*a", "&a", "!!python/object:os.system", "!!int x", "2020-01-01"),
    *("1_000", ".nan", "~", "1,2", "+", "skipinit + ", "__class__", "lambda: 1", "1/0", "{[1]}", "-" * 3000 + "1"),
    *("(" * 300, "[" * 3000, "x" * 300 + ".py:y", "1e400", "9" * 5000, "&a [*a]", "run", "\t", "0x10"),
]
TRANSFORMER = "normless:transformer(layers=1,width=8,heads=2,feed_forward=8)"
SMALL_BERT = "transformers:bert(num_hidden_layers=1,hidden_size=8,num_attention_heads=2,intermediate_size=8)"
# Valid texts, by the name of an argument.
TEXTS: dict[str, list[str]] = {
    "model": [
        *(DENSE, DENSE, "normless:dense", "normless:wide_resnet(depth=10, width=1)", "timm:test_resnet", "math:sqrt"),
        *("normless:resnet_v2(depth=18, channels=2)", "mine.py:net", "mine.py:net(width=5)", "mine.py:Net", "net"),
        *(TRANSFORMER, SMALL_BERT, "transformers:bert.json", "torchvision:resnet18(depth=3)"),
    ],
    "scheme": [
        *("skipinit", "skipinit(alpha=1/sqrt(L))", "fixup(gain=0.5, biases=False)", "mine.py:own(gain=2.0)"),
        *("zeroinit(dropout=0.2)", "none + ZeroClassifier()", "group_norm(groups=2)", "lsuv", "nf_resnet(alpha=0.1)"),
        *("dyt(alpha=0.5)", "completep(base_depth=2.0)", "weight_standardization(groups=None)"),
    ],
    "data": [
        *(DIGITS, DIGITS, "gaussian(train=32, test=16)", "image_folder(size=8, resize=8)", "mine.py:few", "svhn"),
        *("cifar10(train=5)", "digits(train=48, test=16, seed=1)", "pets"),
    ],
    "texts": ["labelled_text", "labelled_text(sentence='sentence')", "sst2", "sentiment(train=24, test=8)"],
    "pairs": ["grammar(train=24, validation=8, test=8)", "parallel_text", "parallel_text(source='de')", "multi30k"],
    "probes": ["signal", "gradients", "activations(kind='norm')", "logits", "parameter_gradients", "covariance"],
    "reader": [SMALL_BERT, "mine.py:net", "net"],
    "translator": [TRANSFORMER, "mine.py:net"],
    "out": ["out", "out", "run", "config.yaml", "images"],
    "data_root": ["texts", "pairs", "images", "nowhere"],
    "config": ["config.yaml", "run/config.yaml"],
    "sweep": ["sweep.yaml", "config.yaml"],
    "table": ["out.csv", "out.parquet"],
    "page": ["page.html", "new/page.html"],
    "artefact": ["fixup/table-1", "skipinit/figure-1", "mine.py:own", "--list", "--all"],
    "what": ["step", "map", "memory", "schemes", "models", "data", "probes", "run", "lab"],
    "db": ["sqlite:///lab/runs.sqlite", "sqlite:///nowhere/a.db", "postgresql://"],
}
TRANSLATION = "train --task translation --epochs 1 --warmup-steps 1 --batch-tokens 64 --vocabulary 60"
# A line of each command; a word in capitals is one of these texts, and flags of the command's parser follow.
LINES = {
    "inspect": "inspect MODEL",
    "convert": "convert MODEL --scheme SCHEME --out OUT",
    "probe": "probe MODEL --probes PROBES",
    "diagnose": "diagnose MODEL",
    "train": "train --config CONFIG --out OUT",
    "train.text": "train --task text --model READER --data TEXTS --data-root DATA_ROOT --epochs 1 --out OUT",
    "train.translation": f"{TRANSLATION} --model TRANSLATOR --data PAIRS --data-root DATA_ROOT --out OUT",
    "sweep.status": "sweep status SWEEP --once --out OUT",
    "sweep.export": "sweep export SWEEP TABLE --out OUT",
    "sweep.prune": "sweep prune SWEEP --out OUT",
    "sweep.run": "sweep run SWEEP --out OUT",
    "sweep.retry": "sweep retry SWEEP --out OUT",
    "list": "list WHAT",
    "reproduce": "reproduce ARTEFACT --out OUT",
    "report": "report WHAT",
    "demo": "demo --print --out OUT",
    "bench": "bench WHAT",
}
FILES = [
    *("mine.py", "sweep.yaml", "config.yaml", "bert.json", "texts/train.tsv", "texts/test.tsv"),
    *("pairs/train.de", "pairs/test.en", "images/train/cat/0.png", "images/val/dog/1.png"),
    *("net/model.safetensors", "net/recipe.json", "run/checkpoint.pt", "run/config.yaml", "run/digests.json"),
    *("run/result.json", "run/epochs.parquet", "run/steps.parquet", "lab/runs.sqlite"),
]
_NET = "import torch\ndef net():\n    return torch.nn.{}\n"
_FORWARD = _NET.replace("def", "class N(torch.nn.Module):\n    def forward(self, x):\n        {}\ndef").replace(
    "torch.nn.{}", "N(), torch.ones(2, 3)"
)
# Bodies of a file of the user: each is wrong in its own way.
BODIES = [
    *("def net(:\n", "import nowhere\n", "x = 1 / 0\n", "def net():\n    return None\n", "net = 3\n", "\x00", "é = "),
    *("def net(a, b):\n    return a\n", "def net():\n    raise RuntimeError('no\\nnet')\n", "raise SystemExit(3)\n"),
    *("def net():\n    return {}['a']\n", "def net():\n    return net()\n", "def net():\n    raise ValueError\n"),
    *("def own():\n    return 3\n", "own = None\n", "def own():\n    raise OSError(2, 'no scheme')\n"),
    *("def few():\n    return 1\n", _NET.format("Linear(2, 2), 'inputs'")),
    *(_FORWARD.format("return 'text'"), _FORWARD.format("raise KeyError('a')")),
]
TEXT = st.one_of(st.sampled_from(ODD), st.text(max_size=12).filter(lambda text: "\x00" not in text))


@st.composite
def changed(draw: Any, texts: Sequence[str]) -> str:
    """One of some texts: as it is, or with a part replaced, cut out or put in; or free text."""
    text = str(draw(st.sampled_from(texts)))
    how = draw(st.sampled_from(["same"] * 15 + ["number", "number", "part", "cut", "insert", "join", "free"]))
    if how == "same" or not text:
        return text
    if how == "free":
        return str(draw(TEXT))
    if how == "join":
        return f"{text}{draw(st.sampled_from(['', ' ', ' + ', '+', '(', ':', ', ']))}{draw(st.sampled_from(texts))}"
    start = draw(st.integers(0, len(text) - 1))
    if how == "number":
        digits = [at for at, character in enumerate(text) if character.isdigit()]
        start = digits[start % len(digits)] if digits else start
        return text[:start] + draw(st.sampled_from(ODD)) + text[start + 1 :]
    end = min(len(text), start + draw(st.integers(1, 8)))
    piece = "" if how == "cut" else draw(TEXT)
    return text[:start] + piece + text[start if how == "insert" else end :]


def flags_of(name: str) -> list[tuple[str, list[str], int]]:
    """The flags of a command, each with texts and the number of its words."""
    parser = ArgumentParser(exit_on_error=False)
    COMMANDS[name].implementation().add_arguments(parser)
    found = []
    for action in parser._actions:
        if action.option_strings and action.dest not in ("help", "out", "ray", "slurm", "debug"):
            texts = TEXTS.get(action.dest) or [*map(str, action.choices or [action.default])]
            number = action.nargs if isinstance(action.nargs, int) else 1
            found.append((action.option_strings[-1], texts, number))
    return found


@st.composite
def lines(draw: Any, name: str) -> list[str]:
    """A line of a command with some of its flags."""
    words = [draw(changed(TEXTS[word.lower()])) if word.isupper() else word for word in LINES[name].split()]
    for flag, texts, number in draw(st.lists(st.sampled_from(flags_of(name)), max_size=3)):
        words += [flag, *(draw(changed(texts)) for _ in range(number))]
    return words


WORD = st.one_of(TEXT, st.sampled_from(["train", "sweep", "--json", "--out", "inspect"]))
BODY = st.sampled_from(BODIES)
CONTENT = st.one_of(st.sampled_from(ODD), BODY, st.just(BOMB), st.text(max_size=30))
WAYS = ["flip", "flip", "truncate", "repeat", "insert", "value", "value", "replace", "gone", "folder"]
WHERE = st.floats(0, 1, exclude_max=True)
SWEEP = "sweep status sweep.yaml --once --out"
TEXT_RUN = f"train --task text --epochs 1 --model {SMALL_BERT} --data labelled_text --data-root"
# Commands that certainly read a file, by the start of its name.
READS = {
    "run/": "train --config config.yaml --scheme skipinit --out run",
    "net/": "inspect net --schemes skipinit",
    "lab/": f"{SWEEP} lab",
    "bert.json": "inspect transformers:bert.json --schemes skipinit",
    "mine.py": "inspect mine.py:net --schemes skipinit",
    "sweep.yaml": f"{SWEEP} out",
    "config.yaml": "train --config config.yaml --out out",
    "texts/": f"{TEXT_RUN} texts",
    "pairs/": f"{TRANSLATION} --data parallel_text --data-root pairs --model {TRANSFORMER}",
    "images/": "train --model normless:wide_resnet(depth=10,width=1) --epochs 1 --batch-size 4 --out out "
    "--data image_folder(size=8,resize=8,workers=0) --data-root images",
}
USERS = [
    *("inspect mine.py:net --schemes skipinit", "probe mine.py:net --probes signal", "diagnose mine.py:net"),
    *("convert mine.py:net --scheme none --out out", "inspect net"),
    *(f"train --config config.yaml {words} --out out" for words in ("--scheme mine.py:own", "--data mine.py:few")),
    "train --config config.yaml --model mine.py:net --out out",
]


def _damages(*files: str, ways: Sequence[str] = WAYS, content: st.SearchStrategy[str] = CONTENT) -> Any:
    one = st.tuples(st.sampled_from(files), st.sampled_from(ways), WHERE, content)
    return st.lists(one, min_size=1, max_size=2, unique_by=lambda damage: damage[0])


def _words(*lines: str) -> st.SearchStrategy[list[str]]:
    return st.sampled_from([line.split() for line in lines])


CASES: dict[str, st.SearchStrategy[Any]] = {
    **{name: st.tuples(lines(name), st.just([])) for name in LINES},
    "words": st.tuples(st.lists(WORD, max_size=5), st.just([])),
    **{
        f"damaged {start}": st.tuples(_words(line), _damages(*(file for file in FILES if file.startswith(start))))
        for start, line in READS.items()
    },
    "the user's file": st.tuples(_words(*USERS), _damages("mine.py", ways=["replace"], content=BODY)),
}
"""Command lines, after damage to files: (path, how, where, content)."""
