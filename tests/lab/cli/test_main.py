"""The command line: help without torch, mistakes in one sentence, one JSON object on standard output."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from normless import __version__
from normless.cli import main, print_json
from normless.cli.commands import COMMANDS


def _modules_after(*words: str) -> tuple[set[str], str]:
    """What is imported when a fresh process runs these words, and what it prints before."""
    script = "import sys; from normless.cli import main; main(sys.argv[1:]); print('\\nMODULES', *sys.modules)"
    done = subprocess.run([sys.executable, "-c", script, *words], capture_output=True, text=True, check=True)
    printed, _, modules = done.stdout.rpartition("\nMODULES ")
    return set(modules.split()), printed


@pytest.mark.parametrize(
    "words", [("--help",), ("--version",), ("demo", "--help"), ("train", "--help"), ("sweep", "run", "--help")]
)
def test_help_imports_neither_torch_nor_pandas_nor_matplotlib(words: tuple[str, ...]) -> None:
    modules, printed = _modules_after(*words)
    assert printed
    assert not modules & {"torch", "pandas", "matplotlib", "sklearn", "scipy"}


def test_main_help_names_every_command_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    listed = printed.split("commands:\n")[1].split("\n\n")[0].splitlines()
    assert [line.strip().split("  ")[0] for line in listed] == [name.replace(".", " ") for name in COMMANDS]
    for command in COMMANDS.values():
        assert command.help in printed


def test_version_is_the_package_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"normless {__version__}\n"


def test_no_command_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "commands:" in capsys.readouterr().out


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_offers_json_and_ends_its_help_with_an_example(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*name.split("."), "--help"]) == 0
    printed = capsys.readouterr().out
    assert "--json" in printed
    assert printed.rstrip().endswith(f"example:\n  {COMMANDS[name].example}")
    assert COMMANDS[name].example.startswith(f"normless {name.replace('.', ' ')} ")
    implementation = COMMANDS[name].implementation()
    assert callable(implementation.add_arguments)
    assert callable(implementation.run)


def test_a_group_of_commands_has_a_help_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sweep", "--help"]) == 0
    printed = capsys.readouterr().out
    names = [name for name in COMMANDS if name.startswith("sweep.")]
    listed = printed.split("commands:\n")[1].splitlines()[: len(names)]
    assert [line.strip().split("  ")[0].replace(" ", ".") for line in listed] == names
    assert printed.rstrip().endswith(f"example:\n  {COMMANDS[names[0]].example}")
    assert main(["sweep"]) == 2
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["sweep", "statu"], "'sweep statu' is not a command. Did you mean sweep status?"),
        (["sweep", "run"], "see normless sweep run --help."),
        (["sweep", "run", "nowhere.yaml"], "nowhere.yaml"),
        (["sweep", "run", "nowhere.yaml", "--shard", "3/2"], "nowhere.yaml"),
        (["sweep", "export", "nowhere.yaml", "runs.txt"], "Expected a file of name .parquet or .csv to write to"),
        (["inspec"], "'inspec' is not a command. Did you mean inspect?"),
        (["zzz"], "'zzz' is not a command. The commands are inspect, convert, probe, diagnose, list, "),
        (["demo", "--wrokers", "2"], "unrecognized arguments: --wrokers 2 (Did you mean --workers?); see"),
        (
            ["convert", "normless:dense", "--scheme", "none"],
            "are required: out; see normless convert --help.",
        ),
        (["convert", "--out", "x"], "arguments are required: model, scheme; see"),
        (["train", "--config", "absent.yaml"], "absent.yaml'; see normless train --help."),
        (["bench", "stpe"], "invalid choice: 'stpe' (choose from 'step', "),
        (["completion", "fish"], "invalid choice: 'fish'"),
        (["demo", "--nope"], "unrecognized arguments: --nope; see normless demo --help."),
        (["demo", "--workers", "many"], "many; see normless demo --help."),
        (["train", "--clip", "x"], "clip"),
        (["train", "--flip", "x"], "flip"),
        (["train", "--device", "gpu"], "Got value: gpu; see normless train --help."),
        (["demo", "--device", "gpu"], "gpu"),
        (["inspect", "resnet"], "FILE.py:FUNCTION or the folder of a saved network, got 'resnet'"),
        (["inspect", "nowhere.py:model"], "There is no file nowhere.py"),
        (["inspect", "normless:dense", "--image", "1", "0", "8"], "got 1 0 8"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.startswith("normless: ")
    assert printed.err.count("\n") == 1
    # Versions of jsonargparse begin a message by a capital letter or not.
    assert said.lower() in printed.err.lower()


def test_a_wrong_device_leaves_nothing_behind(tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert main(["demo", "--device", "gpu", "--out", str(tmp_path / "out")]) == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("demo", "interrupted; the same command continues from there."),
        ("train --out there", "interrupted; the same command continues from there."),
        ("train-text --restart", "interrupted; the same command without --restart continues from there."),
        ("sweep run depth.yaml", "interrupted; the same command continues from there."),
        ("reproduce fixup/equation-1", "interrupted; the same command continues from there."),
        ("sweep retry depth.yaml", "interrupted; the same command continues from there."),
        ("bench step --rounds 3", "interrupted."),
        ("list schemes", "interrupted."),
    ],
)
def test_an_interruption_is_exit_code_130_and_says_whether_it_goes_on(
    words: str, said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(namespace: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("normless.cli.program.parse", lambda words: (interrupted, None))
    assert main(words.split()) == 130
    assert capsys.readouterr().err == f"normless: {said}\n"


def test_json_refuses_numbers_that_json_has_not(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match="JSON"):
        print_json({"loss": float("nan")})
    assert capsys.readouterr().out == ""
    print_json({"scheme": "α"})
    assert json.loads(capsys.readouterr().out) == {"scheme": "α"}
