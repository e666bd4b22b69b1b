"""Agreement of the files that a release changes: version, date, oldest libraries and the repository's address."""

from __future__ import annotations

import re
import subprocess

import yaml

from st_contrastive import __version__
from tests.processes import ROOT

#: Files that may contain the repository's address.
ADDRESSED = ("pyproject.toml", "CITATION.cff", "mkdocs.yml", "README.md", "st_contrastive/training/card.py")


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere():
    cited = re.search(r"^version: (\S+)$", text("CITATION.cff"), re.MULTILINE)[1]
    assert cited == __version__
    if "dev" not in __version__:  # only a release has a heading and a date
        version, date = re.search(r"^## \[(\d[^\]]*)\] - (\S+)$", text("CHANGELOG.md"), re.MULTILINE).groups()
        assert version == __version__
        assert f"\ndate-released: {date}\n" in text("CITATION.cff")


def test_the_repository_has_at_most_one_address_and_no_placeholder():
    found = {owner for name in ADDRESSED for owner in re.findall(r"github\.com/([\w.-]+)/st_contrastive\b", text(name))}
    assert len(found) <= 1
    assert "OWNER" not in found


def test_the_oldest_libraries_match_the_requirements():
    pins = dict(pin.split("==") for pin in re.search(r"^OLDEST := (.*)$", text("Makefile"), re.MULTILINE)[1].split())
    allowed = dict(re.findall(r'^    "([\w-]+)(?:\[\w+\])?>=([\d.]+)', text("pyproject.toml"), re.MULTILINE))
    assert len(pins) >= 4
    for name, version in pins.items():
        assert version.startswith(allowed[name]), name


def test_the_workflows_run_each_part_on_each_python():
    jobs = yaml.safe_load(text(".github/workflows/ci.yml"))["jobs"]
    matrix = jobs["part"]["strategy"]["matrix"]
    targets = re.findall(r"^([\w-]+):", text("Makefile"), re.MULTILINE)
    assert {*matrix["part"], "oldest"} <= {*targets}
    versions = {*matrix["python"], *(entry["python"] for entry in matrix["include"])}
    listed = re.findall(r"Programming Language :: Python :: (3\.\d+)", text("pyproject.toml"))
    assert versions == {*listed}
    for path in sorted((ROOT / ".github").rglob("*.yml")):
        assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict), path


def test_the_source_archive_contains_all_folders():
    """Links of the pages work in a source archive."""
    included = re.findall(r'^    "/([\w./]+)",$', text("pyproject.toml"), re.MULTILINE)
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, cwd=ROOT)
    folders = {path.partition("/")[0] for path in listed.stdout.split() if "/" in path} - {".github", ".ci"}
    assert folders <= {*included}
