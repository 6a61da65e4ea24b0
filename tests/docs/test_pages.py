"""The pages as a whole: every link leads somewhere, every page is in the site, and the site is built without a warning."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.helpers.documents import ROOT, anchors, links

PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *(ROOT / folder / "README.md" for folder in ("architectures", "baselines", "leaderboard")),
    *(ROOT / name for name in ("leaderboard/RULES.md", ".github/pull_request_template.md")),
]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for link in links(text):
        if link.startswith(("https://", "http://")) or (page.parent, link) == (ROOT / "docs", "leaderboard.html"):
            continue  # `make docs` writes the leaderboard from the entries
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        assert target.exists(), f"{page.name} links to {link}: there is no such file"
        if page.is_relative_to(ROOT / "docs"):
            assert target.resolve().is_relative_to(ROOT / "docs"), (
                f"{page.name} links to {link}, which the site has not"
            )
        if anchor:
            known = anchors(target.read_text(encoding="utf-8"))
            assert anchor in known, f"{page.name} links to {link}: the headings there are {sorted(known)}"


def test_every_page_is_in_the_site() -> None:
    nav = tomllib.loads((ROOT / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
    named = []
    for page in (page for part in nav for page in part.values()):
        named += [page] if isinstance(page, str) else [own for part in page for own in part.values()]
    docs = ROOT / "docs"
    start = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    assert {"index.md", *links(start)} >= set(named), "the start page links to every other"
    named.remove("leaderboard.html")  # it is made from the entries
    assert sorted(named) == sorted(path.relative_to(docs).as_posix() for path in docs.rglob("*.md"))


@pytest.mark.ci
def test_the_site_is_built_without_a_warning(tmp_path: Path) -> None:
    """And its pages fetch nothing from elsewhere."""
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    shutil.copy(ROOT / "zensical.toml", tmp_path)
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for page in (tmp_path / "docs").rglob("*.md"):
        place = page.relative_to(tmp_path / "docs").with_suffix(".html")
        html = (tmp_path / "site" / place).read_text(encoding="utf-8")
        assert 'src="http' not in html
        assert 'rel="stylesheet" href="http' not in html
