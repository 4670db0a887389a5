"""``simulate``: the scripted model provider alone."""

import argparse
import asyncio

from app.cli.errors import CommandError
from app.cli.processes import new_event_loop_factory, port_number, stop_on_sigterm
from app.simulator import run_simulator


def add_simulate(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Add the command."""
    parser = commands.add_parser(
        "simulate",
        help="run the scripted model provider alone",
        description="Run a model provider that answers from scripts (OpenAI Chat Completions). What a request is answered is scripted by "
        "the model's name or by [[sim ...]] in the message; `python -m pydoc app.simulator` explains it.",
    )
    parser.add_argument("--port", type=port_number, required=True, help="port to listen on; 0 takes a free one")
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    parser.add_argument("--strict", action="store_true", help="answer 400 to histories that real providers refuse")
    parser.add_argument("--picky", action="store_true", help="also to those that only some refuse; implies --strict")
    parser.set_defaults(run=_simulate)


def _simulate(arguments: argparse.Namespace) -> int:
    stop_on_sigterm()
    try:
        with asyncio.Runner(loop_factory=new_event_loop_factory()) as runner:
            runner.run(
                run_simulator(
                    arguments.host,
                    arguments.port,
                    strict=arguments.strict or arguments.picky,
                    picky=arguments.picky,
                    announce=lambda url: print(f"The simulator answers at {url}", flush=True),
                )
            )
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        raise CommandError(f"Cannot listen on {arguments.host} port {arguments.port}: {error.strerror or error}.") from None
    return 0
