"""Wheel and sdist: what `python -m build` makes is installed in an empty environment and works there."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import sysconfig
import tomllib
import venv
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]


def run(*command: str | Path, cwd: Path = ROOT) -> str:
    """What a command prints; the repository is not on its path."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([*command], cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_wheel_of_the_sdist_runs_in_an_environment_of_its_own(tmp_path: Path) -> None:
    build = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist"), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True)  # the sdist, and the wheel of the sdist alone
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    (sdist,) = (tmp_path / "dist").glob("*.tar.gz")
    assert wheel.stat().st_size < 2e6
    assert sdist.stat().st_size < 10e6

    # Dependencies are those of this environment, whose editable normless such a line does not bring along.
    venv.create(tmp_path / "env", with_pip=False)
    python = tmp_path / "env" / "bin" / "python"
    (packages,) = (tmp_path / "env" / "lib").glob("python*/site-packages")
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index", wheel)
    (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n", encoding="utf-8")

    where = run(python, "-c", "import normless, normless_papers; print(normless.__file__)", cwd=tmp_path)
    assert Path(where.strip()).is_relative_to(tmp_path)
    program = tmp_path / "env" / "bin" / "normless"
    assert "reproduce" in run(program, "--help", cwd=tmp_path)
    run(program, "convert", "normless:resnet_cifar(depth=8)", "--scheme", "fixup", "--out", "converted", cwd=tmp_path)
    assert (tmp_path / "converted" / "model.safetensors").is_file()
    sweep = run(program, "demo", "--print", cwd=tmp_path)
    small = sweep.replace("depth=400", "depth=10").replace("epochs: 3", "epochs: 1")
    (tmp_path / "small.yaml").write_text(small.replace("depth=100", "depth=10"), encoding="utf-8")
    command = "sweep run small.yaml --page --workers 1 --out lab"
    assert "skipinit" in run(program, *shlex.split(command), cwd=tmp_path)
    assert (tmp_path / "lab" / "index.html").is_file()


def test_the_conda_recipe_has_the_requirements_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    recipe = yaml.safe_load((ROOT / "conda" / "meta.yaml").read_text(encoding="utf-8"))
    assert recipe["package"]["version"] == project["version"]
    ours = {re.sub(r"\[.*\]", "", one).replace("torch>", "pytorch>") for one in project["dependencies"]}
    theirs = {one.replace(" ", "") for one in recipe["requirements"]["run"]}
    assert theirs == ours | {"python" + project["requires-python"], "typeshed_client"}
