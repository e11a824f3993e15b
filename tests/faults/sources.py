"""Published sets of faulty programs that the cases follow, and how far each set could be consulted."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Source:
    """The program, thread or rule of a published set that a case follows; not consulted if written from memory."""

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
ADDRESSES = {
    "NeuraLint": "https://github.com/neuralint/neuralint",
    "DEFault++": "https://github.com/SigmaJahan/DEFaultplusplus-Transformer-Debugging",
    "UMLAUT": "https://github.com/BerkeleyHCI/umlaut",
    "TrainCheck": "https://github.com/OrderLab/TrainCheck-Evaluation-Workloads",
    "AutoTrainer": "https://github.com/shiningrain/AUTOTRAINER",
}


def source(collection: str, item: str, address: str = "") -> Source:
    """Return a source; a number is a question of Stack Overflow, `remembered` is a thread written from memory."""
    if collection in ("remembered", "own"):
        return Source(collection.replace("remembered", "threads"), item, consulted=False)
    if item[:8].isdigit() and collection in ("DeepFD", "DeepLocalize"):
        return Source(collection, f"Stack Overflow {item}", f"https://stackoverflow.com/questions/{item}")
    return Source(collection, item, address or ADDRESSES[collection])


OLDER = Source("kinds", "a kind of finding", consulted=False)
