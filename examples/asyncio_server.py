"""Streaming generation in an asyncio application: a line that a client sends is continued as it is computed.

python examples/asyncio_server.py BUNDLE PORT
  and, elsewhere: echo "The capital of France is" | nc localhost PORT
"""

import asyncio
import sys
from collections.abc import AsyncIterator

import ggufc


async def stream(session: ggufc.Session, prompt: str, max_tokens: int = 48) -> AsyncIterator[str]:
    """The continuation piece by piece; the loop goes on while the model works, a token at a time."""
    pieces = session.generate(prompt, max_tokens=max_tokens)
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


async def main(bundle: str, port: str) -> None:
    model = ggufc.load(bundle)

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = model.new()  # each client has its own caches; weights and code are there once
        try:
            while line := await reader.readline():
                session.reset()
                async for piece in stream(session, line.decode("utf-8", "replace").strip() or "?"):
                    writer.write(piece.encode())
                    await writer.drain()
                writer.write(b"\n")
        except ConnectionError:
            pass  # the client left, and the generation ends with it
        finally:
            writer.close()

    server = await asyncio.start_server(talk, "127.0.0.1", int(port))
    print("listening at port", server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        asyncio.run(main(*sys.argv[1:]))
    except ggufc.GgufcError as error:
        sys.exit(f"asyncio_server.py: {error}")
    except KeyboardInterrupt:
        pass  # which is how to stop it
