"""The S3 server, helm and the browser that the other integration tests build on do work."""

import subprocess
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from playwright.sync_api import Browser
from s3_server import S3Server

from tools.build_tools import HELM


def test_a_parquet_file_written_to_s3_reads_back_the_same(s3_server: S3Server) -> None:
    table = pa.table({"user_id": [1, 2, 3], "country": ["US", None, "CA"]})

    with s3_server.bucket("smoke") as s3:
        pq.write_table(table, "smoke/rows/part-0.parquet", filesystem=s3)
        assert pq.read_table("smoke/rows/", filesystem=s3).equals(table)


def test_helm_runs_and_is_of_the_pinned_version(helm: str) -> None:
    command = [helm, "version", "--template", "{{.Version}}"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout

    assert said == HELM.module.version


def test_the_browser_opens_a_local_page_and_runs_its_script(
    browser: Browser, tmp_path: Path
) -> None:
    page_file = tmp_path / "page.html"
    page_file.write_text(
        "<!doctype html><meta charset=utf-8><title>before</title>"
        "<script>document.title = 'Lastmile ' + (1 + 1)</script>"
    )
    page = browser.new_page()
    page.goto(page_file.as_uri())
    title = page.title()
    page.close()

    assert title == "Lastmile 2"
