"""The web app's files over HTTP: whole, fenced in, and nothing else."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

import dflash2_app.web

STATIC = Path(dflash2_app.web.__file__).parent / "static"


def test_the_first_page_is_served_with_a_policy_that_lets_nothing_foreign_in(server):
    answer = server.http.get("/")
    assert answer.status_code == 200 and answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_every_file_is_served_as_it_is(server):
    files = [path for path in STATIC.rglob("*") if path.is_file()]
    assert len(files) > 8
    for path in files:
        answer = server.http.get(f"/static/{path.relative_to(STATIC).as_posix()}")
        assert answer.status_code == 200 and answer.content == path.read_bytes(), path


def test_an_unchanged_file_is_not_sent_again(server):
    first = server.http.get("/static/js/app.js")
    again = server.http.get("/static/js/app.js", headers={"if-none-match": first.headers["etag"]})
    assert again.status_code == 304 and not again.content


@pytest.mark.parametrize(
    "path",
    [
        "../pages.py",
        "..%2fpages.py",
        "%2e%2e/%2e%2e/engine.py",
        "js/../../app.py",
        "/etc/passwd",
        "js",
        "",
        "nothing.js",
    ],
)
def test_no_path_leads_anywhere_else(server, path):
    answer = server.http.get(f"/static/{path}")
    assert answer.status_code == 404 and b"import" not in answer.content


def test_libraries_of_others_are_as_published():
    told = (STATIC / "vendor" / "README.txt").read_text(encoding="utf-8")
    scripts = list((STATIC / "vendor").glob("*.js"))
    assert len(scripts) == 2
    for script in scripts:
        assert script.name in told and hashlib.sha256(script.read_bytes()).hexdigest() in told
        licence = script.name.removesuffix(".js").removesuffix(".min") + ".LICENSE.txt"
        assert (STATIC / "vendor" / licence).read_text(encoding="utf-8").strip()


def test_pages_ask_no_other_host_for_anything():
    for path in STATIC.rglob("*"):
        if path.suffix in (".html", ".css", ".js") and "vendor" not in path.parts:
            text = path.read_text(encoding="utf-8").replace("http://www.w3.org/", "")
            assert not re.search(r"(https?:)?//[a-z0-9-]+\.[a-z]", text), path
