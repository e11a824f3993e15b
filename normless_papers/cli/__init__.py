"""The commands of the papers, named by the entry points of the group ``normless.commands``."""

from normless.cli import Command

REPRODUCE = Command(
    "carry out artefacts of the papers: published beside measured, and a verdict on each claim",
    "normless_papers.cli.reproduce",
    "normless reproduce fixup/equation-1 --budget smoke",
    resumes=True,
)
REPORT = Command(
    "write pages of results: of normless reproduce, of a run or of a sweep",
    "normless_papers.cli.report",
    "normless report normless-results",
)
TRAIN_TRANSLATION = Command(
    "train one encoder-decoder to translate, from YAML and flags; BLEU; resumes after an interruption",
    "normless_papers.text.kinds:TRAIN_TRANSLATION",
    "normless train --task translation --data grammar --scheme fixup",
    resumes=True,
)
TRAIN_TEXT = Command(
    "train one transformer to classify sentences, from YAML and flags; resumes after an interruption",
    "normless_papers.text.kinds:TRAIN_TEXT",
    "normless train --task text --data sentiment --decay-policy weights+last",
    resumes=True,
)
