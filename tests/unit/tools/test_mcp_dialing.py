import subprocess
import sys


def test_a_process_without_mcp_servers_does_not_load_the_sdk() -> None:
    loaded = subprocess.run(
        [sys.executable, "-c", "import app.main, sys; print('app.tools.mcp_source' in sys.modules, 'mcp' in sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert loaded.stdout.split() == ["True", "False"]
