"""`python -m benchmarks [--quick] [--only NAME ...] [--json FILE]`: measure, print tables, write JSON.

Exit status 1 when any turn or direct call did not end well; a missed target alone is only shown.
"""

import argparse
import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.measure import Result, measure
from benchmarks.processes import Cores, share_cores
from benchmarks.report import document, machine, tables
from benchmarks.scenarios import SCENARIOS, Scenario, quick
from benchmarks.stand import open_stand

_JSON = Path(__file__).parent / "results" / "latest.json"


def main() -> int:
    """Run the scenarios that the command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="What the gateway costs beside a direct call.")
    parser.add_argument("--quick", action="store_true", help="one short round each: to look at, not to quote")
    parser.add_argument("--only", action="append", choices=[scenario.name for scenario in SCENARIOS], help="may be repeated")
    parser.add_argument("--json", type=Path, default=_JSON, metavar="FILE", help="where the figures go (default: %(default)s)")
    options = parser.parse_args()
    chosen = [scenario for scenario in SCENARIOS if not options.only or scenario.name in options.only]
    cores = share_cores()
    facts = machine(str(cores))
    for name, value in facts.items():
        print(f"{name}: {value}")
    results = asyncio.run(_run([quick(scenario) if options.quick else scenario for scenario in chosen], cores))
    print("\n" + tables(results))
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_bytes(document(results, facts))
    print(f"\nWritten to {options.json}")
    for result in results:
        for message in result.messages:
            print(f"{result.scenario.name}: {message}", file=sys.stderr)
    errors = sum(result.errors for result in results)
    if errors:
        print(f"FAILED: {errors} turns or calls did not end well", file=sys.stderr)
    return 1 if errors else 0


async def _run(scenarios: Sequence[Scenario], cores: Cores) -> list[Result]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # as Ctrl-C does: children are ended first
    results = []
    async with open_stand(cores) as stand:
        for scenario in scenarios:
            print(f"\n{scenario.name}: {scenario.rounds} x {scenario.streams} streams of {scenario.turns} turns")
            results.append(await measure(stand, scenario, print))
    return results


if __name__ == "__main__":
    sys.exit(main())
