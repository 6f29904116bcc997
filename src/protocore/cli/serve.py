"""`protocore serve`: a page to try a learner."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from protocore.cli.parser import whole
from protocore.cli.working import add_file

PORT = 8765


def add_serve(commands: Any) -> None:
    serve = commands.add_parser(
        "serve", help="a page to try a learner: teach it, ask it, let it forget, in a browser",
        description="Serve a page and a JSON API for a learner's file (extra: pip install 'protocore[serve]'). Drop "
        "pictures on a class or take them with the camera, learn, predict, forget. The page asks no other host. Ctrl-C "
        "ends it; what waits or is being learned then is gone on with when it is served again.",
        epilog="The API is described by its own /api/openapi.json.")
    add_file(serve)
    serve.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="address to listen at (default: "
                       "127.0.0.1, this machine alone); with another, as 0.0.0.0, whoever asks must know the token")
    serve.add_argument("--port", type=whole(0, 65535), default=PORT, metavar="INT", help="port to listen at; 0: any "
                       f"that is free (default: {PORT})")
    serve.add_argument("--token", metavar="WORD", help="what whoever asks must know, 16 characters or more (default: "
                       "none on this machine; with another --host one is made and printed)")
    serve.add_argument("--open", action="store_true", help="open the page in the browser")
    serve.set_defaults(do=_serve)


def _serve(arguments: argparse.Namespace) -> int:
    import webbrowser

    from protocore.serve.server import serve

    def tell(address: str) -> None:
        print(f"{arguments.learner}: {address} (Ctrl-C ends it)", flush=True)
        if arguments.open and not webbrowser.open(address):
            print("no browser was found; open the address above", file=sys.stderr)

    serve(arguments.learner, arguments.host, arguments.port, arguments.token, tell)
    return 0
