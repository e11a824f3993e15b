"""The commands of the laboratory; each imports what it needs when it is chosen."""

from normless.cli import Command

DEMO = Command(
    "train networks of 16 to 400 layers with and without normalization: table, figures, page",
    "normless_lab.cli._demo",
    "normless demo --out normless-demo",
    resumes=True,
)
TRAIN = Command(
    "train one network, from YAML and flags; resumes after an interruption",
    "normless_lab.train._command:TRAIN",
    'normless train --model "normless:wide_resnet(depth=100, width=1)" --scheme skipinit',
    resumes=True,
)
WATCH = Command(
    "show a run or a sweep while it trains, on a local page: curves, signal by block, findings",
    "normless_lab.cli._watch",
    "normless watch runs/digits-skipinit-0123456789",
)
SWEEP_RUN = Command(
    "run a set of runs from YAML, on this machine or on several; resumes after an interruption",
    "normless_lab.cli._sweep:RUN",
    "normless sweep run depth.yaml --workers 2",
    resumes=True,
)
SWEEP_STATUS = Command(
    "show where a sweep stands: runs by outcome, runs in flight, errors",
    "normless_lab.cli._sweep:STATUS",
    "normless sweep status depth.yaml",
)
SWEEP_EXPORT = Command(
    "write the table of a sweep's finished runs, or of their epochs, as Parquet or CSV",
    "normless_lab.cli._sweep:EXPORT",
    "normless sweep export depth.yaml runs.parquet",
)
SWEEP_RETRY = Command(
    "run the failed runs of a sweep again",
    "normless_lab.cli._sweep:RETRY",
    "normless sweep retry depth.yaml",
    resumes=True,
)
SWEEP_PRUNE = Command(
    "delete runs that no sweep references",
    "normless_lab.cli._sweep:PRUNE",
    "normless sweep prune depth.yaml width.yaml --yes",
)
BENCH = Command(
    "measure speed and memory, each as a ratio to a baseline in the same run",
    "normless_lab.bench._command",
    "normless bench step",
)
COMPLETION = Command(
    "print a script by which bash or zsh completes commands, flags, names and files",
    "normless_lab.cli._completion",
    "normless --completion bash > ~/.local/share/bash-completion/completions/normless",
)
