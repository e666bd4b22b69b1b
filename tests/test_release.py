"""The files that a release touches agree: its version, its date and the repository's address."""

from __future__ import annotations

import re

from st_contrastive import __version__
from tests.processes import ROOT

#: Every file that has the repository's address, and how many times at least.
ADDRESSES = {
    "pyproject.toml": 5,
    "CITATION.cff": 1,
    "mkdocs.yml": 1,
    "README.md": 1,
    "st_contrastive/training/card.py": 1,
}


def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


def test_the_version_is_the_same_everywhere():
    cited = re.search(r"^version: (\S+)$", text("CITATION.cff"), re.MULTILINE)[1]
    assert cited == __version__
    if "dev" not in __version__:  # a release has a heading and a date
        version, date = re.search(r"^## \[(\d[^\]]*)\] - (\S+)$", text("CHANGELOG.md"), re.MULTILINE).groups()
        assert version == __version__
        assert f"\ndate-released: {date}\n" in text("CITATION.cff")


def test_the_repository_has_one_address():
    found = {name: re.findall(r"github(?:\.com)?/([\w.-]+)/st_contrastive\b", text(name)) for name in ADDRESSES}
    assert {name: len(owners) >= ADDRESSES[name] for name, owners in found.items()} == dict.fromkeys(ADDRESSES, True)
    assert len({owner for owners in found.values() for owner in owners}) == 1


def test_every_url_of_the_package_is_the_repositorys():
    urls = re.search(r"^\[project\.urls\]\n(.*?)^\[", text("pyproject.toml"), re.MULTILINE | re.DOTALL)[1]
    names = [line.partition(" = ")[0] for line in urls.splitlines() if line]
    assert names == ["Homepage", "Documentation", "Repository", "Changelog", "Issues"]
    paths = re.findall(r"/blob/main/(\S+)\"", urls)
    assert len(paths) == 2
    assert all((ROOT / path).is_file() for path in paths)
