"""The provider: the simulator as a process of its own, once plain and once, with the certificate in the arguments, over TLS.

Says its two base URLs, serves until standard input ends.
"""

import ssl
import sys

import uvloop

from app.simulator import Simulator
from benchmarks.lines import say, standard_input

_KEPT_REQUESTS = 16


async def _main() -> None:
    orders = await standard_input()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(sys.argv[1])
    plain, secured = Simulator(log_size=_KEPT_REQUESTS), Simulator(log_size=_KEPT_REQUESTS)
    await plain.start()
    await secured.start(ssl_context=context)
    say(plain.base_url.encode())
    say(secured.base_url.encode())
    await orders.read()
    await plain.stop()
    await secured.stop()


if __name__ == "__main__":
    uvloop.run(_main())
