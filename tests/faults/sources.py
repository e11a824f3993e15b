"""Published sets of faulty programs that the cases follow, and how far each set could be consulted."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """Name the program, thread or rule that a case follows.

    Attributes:
        collection: the published set, a key of `COLLECTIONS`.
        item: the program, thread or rule in it.
        address: where it is published, if known.
        consulted: whether its description or patch was read; False if the fault is written from memory.
    """

    collection: str
    item: str
    address: str = ""
    consulted: bool = True


COLLECTIONS = {
    "DeepFD": "Cao et al. 2022, arXiv 2205.01938; the table of patches of the repository ArabelaTso/DeepFD was read",
    "DeepLocalize": "Wardat et al. 2021; the table of patches of the repository Wardat-ISU/DeepLocalize was read",
    "DEFault": "Jahan et al. 2025, arXiv 2501.12560; the list of seeded faults was read, its 52 programs were not",
    "DEFault++": "repository SigmaJahan/DEFaultplusplus-Transformer-Debugging; its table of operators was read",
    "AutoTrainer": "Zhang et al. 2021; names of the demos of shiningrain/AUTOTRAINER were read",
    "NeuraLint": "Nikanjam et al. 2021, arXiv 2105.08095; the names of rules and synthetic programs were read",
    "Theia": "Manke et al. 2024, arXiv 2412.05775; only its abstract was read, its programs were not available",
    "UMLAUT": "Schoop et al. 2021; the list of error messages of the repository BerkeleyHCI/umlaut was read",
    "TrainCheck": "Jiang et al. 2025, arXiv 2506.14813; its silent errors and the names of its workloads were read",
    "PulseML": "no description could be found; no case follows it",
    "threads": "public threads of GitHub, Stack Overflow and the PyTorch forum; `consulted` tells which were read",
    "own": "written for this catalogue, without a published program",
    "kinds": "written for this catalogue, one or two trainings for each kind of finding",
}

_QUESTION = "https://stackoverflow.com/questions/"


def deepfd(question: str) -> Source:
    """Return a program of DeepFD's benchmark, named by its question on Stack Overflow."""
    return Source("DeepFD", f"Stack Overflow {question}", _QUESTION + question)


def deeplocalize(question: str) -> Source:
    """Return a program of DeepLocalize's benchmark, named by its question on Stack Overflow."""
    return Source("DeepLocalize", f"Stack Overflow {question}", _QUESTION + question)


def neuralint(program: str) -> Source:
    """Return a rule or synthetic program of NeuraLint."""
    return Source("NeuraLint", program, "https://github.com/neuralint/neuralint")


def defaultpp(operator: str) -> Source:
    """Return a mutation operator of DEFault++."""
    return Source("DEFault++", operator, "https://github.com/SigmaJahan/DEFaultplusplus-Transformer-Debugging")


def umlaut(message: str) -> Source:
    """Return an error message of UMLAUT."""
    return Source("UMLAUT", message, "https://github.com/BerkeleyHCI/umlaut")


def traincheck(item: str, address: str = "https://github.com/OrderLab/TrainCheck-Evaluation-Workloads") -> Source:
    """Return a silent error or a clean workload of TrainCheck."""
    return Source("TrainCheck", item, address)


def autotrainer(problem: str) -> Source:
    """Return a training problem of AutoTrainer."""
    return Source("AutoTrainer", problem, "https://github.com/shiningrain/AUTOTRAINER")


def thread(item: str, address: str) -> Source:
    """Return a public thread that was read."""
    return Source("threads", item, address)


def remembered(item: str) -> Source:
    """Return a kind of public thread that is written from memory."""
    return Source("threads", item, consulted=False)


def own(item: str) -> Source:
    """Return a case without a published program."""
    return Source("own", item, consulted=False)


OLDER = Source("kinds", "a kind of finding", consulted=False)
