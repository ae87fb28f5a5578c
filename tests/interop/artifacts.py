"""Programs that others wrote, fetched once and kept in a folder that git does not see; later runs work offline.

Each function gives what is needed to start a program, or skips the test with the reason: no Maven, no JDK, no Go,
no Node, nothing fetched.
"""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import pytest

HERE: Final = Path(__file__).parent
ROOT: Final = HERE.parents[1]
CACHE: Final = Path(os.environ.get("RMQ_INTEROP_CACHE", ROOT / ".interop"))
VERSIONS: Final[Mapping[str, Any]] = tomllib.loads((HERE / "versions.toml").read_text())
ROCKETMQ: Final[list[str]] = VERSIONS["rocketmq"]
FETCH_TIMEOUT_S: Final = 900

T = TypeVar("T")
_GO_MODULE: Final = "github.com/apache/rocketmq-client-go/v2"
_POM: Final = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>interop</groupId><artifactId>interop</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_DEPENDENCY: Final = (
    "<dependency><groupId>org.apache.rocketmq</groupId>"
    "<artifactId>rocketmq-{module}</artifactId><version>{version}</version></dependency>"
)


def java_class_path(version: str) -> str:
    """Apache's programs of that version with our driver, for java -cp."""
    _need_tools("mvn", "java", "javac")
    return _or_skip(f"Maven cannot fetch RocketMQ {version}", lambda: _fetched_java(version))


def go_program() -> str:
    """Our driver, compiled with the Go client."""
    _need_tools("go")
    return _or_skip(f"the Go client {VERSIONS['go']} cannot be had", _compiled_go)


def node_folder() -> Path:
    """A folder with our driver and ali-ons."""
    _need_tools("node", "npm")
    return _or_skip(f"npm cannot fetch ali-ons {VERSIONS['ali_ons']}", _fetched_node)


def _need_tools(*tools: str) -> None:
    for tool in tools:
        if shutil.which(tool) is None:
            pytest.skip(f"{tool} is not installed")


def _or_skip(reason: str, make: Callable[[], T]) -> T:
    try:
        return make()
    except subprocess.CalledProcessError as error:
        pytest.skip(f"{reason}: {error.stdout[-300:]}")


@functools.cache
def _fetched_java(version: str) -> str:
    folder = CACHE / f"rocketmq-{version}"
    done = folder / ".fetched"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        modules = VERSIONS["rocketmq_modules"]
        dependencies = "".join(_DEPENDENCY.format(module=module, version=version) for module in modules)
        (folder / "pom.xml").write_text(_POM.format(dependencies=dependencies))
        _run(["mvn", "-q", "-B", "dependency:copy-dependencies", "-DoutputDirectory=lib"], folder)
        done.touch()
    classes = folder / "classes"
    for source in sorted((HERE / "java").glob("*.java")):
        compiled = classes / f"{source.stem}.class"
        if not compiled.exists() or compiled.stat().st_mtime < source.stat().st_mtime:
            classes.mkdir(exist_ok=True)
            _run(["javac", "-nowarn", "-cp", f"{folder}/lib/*", "-d", str(classes), str(source)], folder)
    return f"{classes}:{folder}/lib/*"


@functools.cache
def _compiled_go() -> str:
    folder = CACHE / f"go-{VERSIONS['go']}"
    program, source = folder / "driver", HERE / "go" / "main.go"
    if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "go.sum").exists():
            (folder / "go.mod").write_text("module driver\n\ngo 1.21\n")
            _run(["go", "get", f"{_GO_MODULE}@v{VERSIONS['go']}"], folder)
        shutil.copy(source, folder / "main.go")
        _run(["go", "build", "-o", "driver", "."], folder)
    return str(program)


@functools.cache
def _fetched_node() -> Path:
    folder = CACHE / f"node-{VERSIONS['ali_ons']}"
    done = folder / ".fetched"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text('{"name": "driver", "private": true}\n')
        packages = [f"ali-ons@{VERSIONS['ali_ons']}", f"urllib@{VERSIONS['urllib']}"]
        _run(["npm", "install", "--no-audit", "--no-fund", *packages], folder)
        done.touch()
    shutil.copy(HERE / "node" / "driver.js", folder / "driver.js")
    return folder


def _run(command: list[str], folder: Path) -> None:
    subprocess.run(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=True,
    )
