"""The command line: ``python -m app COMMAND``. One module a group of commands; errors are one line on standard error."""

import argparse
import os
import sys
from collections.abc import Callable, Sequence

from app.cli.chains import add_chains
from app.cli.demo import add_demo
from app.cli.dev import add_dev
from app.cli.errors import EXPECTED, FAILED, MISUSED, described
from app.cli.mcp import add_mcp
from app.cli.migrations import add_migrate
from app.cli.providers import add_providers
from app.cli.serving import add_serve
from app.cli.settings_list import add_settings
from app.cli.simulating import add_simulate
from app.cli.tenants import add_apply, add_keys, add_tenants
from app.cli.tools import add_tools

__all__ = ["main"]

_DESCRIPTION = """An HTTP service that runs LLM agents for many tenants. Configured by environment variables: see `settings`.

Exit codes: 0 done, 1 it failed, 2 arguments, settings or a file are wrong."""


def main(argv: Sequence[str]) -> int:
    """Run one command; returns its exit code. Wrong arguments and ``--help`` raise SystemExit, as argparse does."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    run: Callable[[argparse.Namespace], int] | None = getattr(arguments, "run", None)
    if run is None:
        parser.print_help(sys.stderr)
        return MISUSED
    try:
        code = run(arguments)
        sys.stdout.flush()
    except KeyboardInterrupt:
        return FAILED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader has had enough; the flush at exit must not complain
        return FAILED
    except EXPECTED as error:
        text, code = described(error)
        print(f"error: {text}", file=sys.stderr)
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m app", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for add in (
        add_serve,
        add_dev,
        add_demo,
        add_simulate,
        add_migrate,
        add_settings,
        add_tenants,
        add_keys,
        add_providers,
        add_chains,
        add_tools,
        add_mcp,
        add_apply,
    ):
        add(commands)
    return parser
