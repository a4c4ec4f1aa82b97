"""Servers of the integration tests: S3 and a browser, both local to the run."""

import http.client
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from loopback import free_ports
from playwright.sync_api import Browser, sync_playwright
from s3_server import S3Server

BUILD_TOOLS = Path(__file__).parents[2] / "tools" / "build_tools.py"
START_TIMEOUT_SECONDS = 30.0  # it is ready in half a second, unless the machine is very busy
STOP_TIMEOUT_SECONDS = 10.0
# No sandbox: containers run as root. The rest keeps the browser from talking to anyone.
BROWSER_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


def tool_path(name: str) -> str:
    """Return the program that `make test-tools` got, or fail with what to do."""
    command = [sys.executable, str(BUILD_TOOLS), "--print-path", name]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode != 0:
        pytest.fail(found.stderr.strip(), pytrace=False)
    return found.stdout.strip()


def answers(port: int) -> bool:
    """Tell whether an HTTP server answers on the port; a refusal is an answer too."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
    try:
        connection.request("GET", "/")
        connection.getresponse().read()
    except OSError:
        return False
    finally:
        connection.close()
    return True


def wait_until_ready(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    """Return once the server answers; fail with its log if it ends or never does."""
    deadline = time.monotonic() + START_TIMEOUT_SECONDS
    while not answers(port):
        if server.poll() is not None or time.monotonic() > deadline:
            pytest.fail(f"versitygw on port {port} did not start:\n{log.read_text()}")
        time.sleep(0.05)


def stop(server: subprocess.Popen[bytes]) -> None:
    server.terminate()
    try:
        server.wait(timeout=STOP_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


@pytest.fixture(scope="session")
def s3_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    """Serve an empty folder by the S3 protocol on a loopback port, with keys of its own."""
    folder = tmp_path_factory.mktemp("s3")
    (folder / "buckets").mkdir()
    log, [port] = folder / "versitygw.log", free_ports(1)
    access_key, secret_key = f"test-{secrets.token_hex(6)}", secrets.token_hex(20)
    command = [tool_path("versitygw"), "--port", f"127.0.0.1:{port}", "posix"]
    env = {**os.environ, "ROOT_ACCESS_KEY": access_key, "ROOT_SECRET_KEY": secret_key}
    with log.open("wb") as output:
        server = subprocess.Popen(
            [*command, str(folder / "buckets")], env=env, stdout=output, stderr=output
        )
    try:
        wait_until_ready(server, port, log)
        endpoint = f"http://127.0.0.1:{port}"
        yield S3Server(endpoint=endpoint, access_key=access_key, secret_key=secret_key)
    finally:
        stop(server)


@pytest.fixture(scope="session")
def helm() -> str:
    """Find helm."""
    return tool_path("helm")


# A module each, not the session: while playwright's loop is open, asyncio.run() fails beside it.
@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Start a real headless Chromium, for looking at pages as a reader sees them."""
    if os.environ.get("LASTMILE_SKIP_BROWSER") == "1":
        pytest.skip("LASTMILE_SKIP_BROWSER=1")
    executable = tool_path("chromium")
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=executable, args=[*BROWSER_FLAGS])
        yield chromium
        chromium.close()
