"""A model in a FastAPI service of one's own (pip install fastapi uvicorn).

python examples/fastapi_service.py BUNDLE PORT
  and, elsewhere: curl -N localhost:PORT/continue -H "content-type: application/json" -d '{"text": "The capital of"}'
"""

import sys
from collections.abc import Iterator
from typing import Annotated

import ggufc
import uvicorn
from fastapi import FastAPI, HTTPException
from fastapi.responses import StreamingResponse
from pydantic import BaseModel, Field


class Request(BaseModel):
    """What is to be continued, and how."""

    text: Annotated[str, Field(min_length=1)]
    max_tokens: Annotated[int, Field(ge=1, le=512)] = 48
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0


def service(bundle: str) -> FastAPI:
    """The application over one loaded model; each request has a session, and threads of the pool take turns at it."""
    app = FastAPI(title="continue")
    model = ggufc.load(bundle)

    @app.get("/model")
    def about() -> dict[str, int]:
        return {"context_length": model.context_length, "vocabulary": model.vocabulary}

    @app.post("/continue")
    def continue_text(request: Request) -> StreamingResponse:
        settings = {"max_tokens": request.max_tokens, "temperature": request.temperature}
        try:
            pieces: Iterator[str] = model.new().generate(request.text, **settings)
        except ggufc.InputError as error:  # such as a text that the context doesn't hold
            raise HTTPException(422, str(error)) from None
        return StreamingResponse(pieces, media_type="text/plain; charset=utf-8")

    return app


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    try:
        application = service(sys.argv[1])
    except ggufc.GgufcError as error:
        sys.exit(f"fastapi_service.py: {error}")
    uvicorn.run(application, port=int(sys.argv[2]), log_level="warning")
