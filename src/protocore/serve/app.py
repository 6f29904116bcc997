"""The routes: the page and the JSON API."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import quote

from fastapi import FastAPI, HTTPException, Query, Request
from fastapi import Path as InPath
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse, Response, StreamingResponse

from protocore.errors import UserError, shown
from protocore.field.sources import class_name
from protocore.learn.calibration import below
from protocore.serve.jobs import Job, Jobs, unknown_job
from protocore.serve.models import Added, Answer, Chance, Dropped, Kind, Problem, State, Work
from protocore.serve.spool import MOST_PICTURE, Full, Spool
from protocore.serve.view import View, flaw
from protocore.version import __version__

PAGE = Path(__file__).with_name("page")
CHUNK = 1 << 20
RATE = 0.05  # of known pictures that the page may call unknown
DESCRIPTION = """A learner's file, for programs. Pictures are sent as they are, one a request, as the body; they wait on
disk until `POST /api/learn`. One job works at a time, others queue. Nothing here asks another host."""
Name = Annotated[str, InPath(description="A class; percent-encoded, also its slashes.", min_length=1, max_length=200)]
_WHY = {400: "The name cannot be one of a class.", 401: "A token is needed.", 403: "Asked by a page of another origin.",
        404: "There is no such thing.", 409: "Not possible now; `detail` says why and what to do.",
        411: "The length of the body was not said.", 413: "The picture has too many bytes.",
        415: "The body is no picture that can be read.", 421: "Asked by a name that is not one of this server's.",
        507: "Too many pictures wait."}
_BODY = {"requestBody": {"required": True, "description": "The picture's file: JPEG, PNG, WebP, BMP, GIF, TIFF.",
                         "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}}


def _refusals(*codes: int) -> dict[int | str, dict[str, Any]]:
    return {code: {"model": Problem, "description": _WHY[code]} for code in (*codes, 401, 403, 421)}


def make_app(path: Path) -> FastAPI:
    """The application of a learner's file. Its jobs begin and end with it."""
    spool = Spool(path)
    jobs, view = Jobs(path, spool), View(path)

    @asynccontextmanager
    async def life(app: FastAPI) -> AsyncIterator[None]:
        jobs.start()
        yield
        await run_in_threadpool(jobs.close)

    app = FastAPI(title="ProtoCore", version=__version__, description=DESCRIPTION, lifespan=life, docs_url=None,
                  redoc_url=None, openapi_url="/api/openapi.json", separate_input_output_schemas=False)

    @app.exception_handler(UserError)
    def not_now(request: Request, error: UserError) -> JSONResponse:
        return JSONResponse({"detail": str(error).replace(f"{path.parent}{os.sep}", "")}, 409)

    @app.get("/", include_in_schema=False)
    def page() -> FileResponse:
        return FileResponse(PAGE / "index.html")

    @app.get("/{file}", include_in_schema=False)
    def part_of_page(file: str) -> FileResponse:
        if file not in ("page.css", "page.js", "icon.svg"):
            raise HTTPException(404, "there is no such page")
        return FileResponse(PAGE / file)

    @app.get("/api/learner", summary="The learner, what waits, and the jobs", responses=_refusals(409))
    def learner() -> State:
        return _state(view, spool, jobs)

    @app.post("/api/classes/{name:path}/pictures", status_code=201, summary="A picture that is to be learned",
              responses=_refusals(400, 409, 413, 415, 507), openapi_extra=_BODY)
    async def add(name: Name, request: Request) -> Added:
        label = _label(name)
        if jobs.forgetting(label):
            raise HTTPException(409, f"{shown(label)} is being forgotten; wait until that is done")
        part = None
        try:
            spool.check_room(0)
            part, digest = await _received(request, spool)
            if why := await run_in_threadpool(flaw, part):
                raise HTTPException(415, f"no picture that can be read ({why})")
            added = await run_in_threadpool(spool.add, label, part, digest)
        except Full as full:
            raise HTTPException(507, str(full)) from None
        finally:
            if part is not None:
                part.unlink(missing_ok=True)
        return Added(added=added, waiting=spool.counts().get(label, 0))

    @app.delete("/api/classes/{name:path}/pictures", summary="Pictures that wait are not to be learned",
                responses=_refusals(400))
    def drop(name: Name) -> Dropped:
        return Dropped(dropped=spool.drop(_label(name)))

    @app.get("/api/classes/{name:path}/pictures/{number}.png", summary="A picture of the memory",
             response_class=Response, responses=_refusals(404, 409) | {
                 200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}}})
    def picture(name: Name, number: Annotated[int, InPath(ge=0, le=10**6)]) -> Response:
        found = view.picture(name, number)
        if found is None:
            raise HTTPException(404, f"the memory has no picture {number} of {shown(name)}")
        return Response(found, media_type="image/png")

    @app.delete("/api/classes/{name:path}", status_code=202, summary="A class is to be forgotten",
                responses=_refusals(400, 404, 409))
    def forget(name: Name) -> Work:
        label = _label(name)
        if label not in {*view.state()[1].classes, *spool.counts(), *spool.taken()}:
            raise HTTPException(404, f"there is no class {shown(label)}")
        return _work(jobs.forget(label))

    @app.post("/api/learn", status_code=202, summary="All pictures that wait are to be learned",
              responses=_refusals(409))
    def learn() -> Work:
        return _work(jobs.learn())

    @app.get("/api/jobs/{id}", summary="How a job stands", responses=_refusals(404))
    def job(id: Annotated[str, InPath(max_length=100)]) -> Work:
        found = jobs.get(id)
        if found is None:
            raise HTTPException(404, unknown_job(id))
        return _work(found)

    @app.post("/api/predict", summary="What a picture shows", responses=_refusals(409, 413, 415),
              openapi_extra=_BODY)
    async def predict(
            request: Request,
            top: Annotated[int, Query(ge=1, le=1000, description="So many classes.")] = 5,
            unknown: Annotated[float | None, Query(ge=0, le=1, description="Say when it is none of the classes; the "
                               "share of known classes' pictures that may be called so by mistake.")] = None) -> Answer:
        part, _ = await _received(request, spool)
        try:
            found = await run_in_threadpool(view.predict, part, top, unknown)
        finally:
            part.unlink(missing_ok=True)
        if found.problem:
            raise HTTPException(415, f"no picture that can be read ({found.problem})")
        pairs = zip(found.names, found.probabilities, strict=True)
        return Answer(classes=[Chance(name=name, probability=p) for name, p in pairs], unknown=found.unknown)

    @app.get("/api/file", summary="The learner's file, to take home", response_class=Response,
             responses=_refusals(409) | {
                 200: {"content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}}})
    def whole_file() -> StreamingResponse:
        view.state()  # a damaged one is not handed out
        file = path.open("rb")  # it may be replaced meanwhile: what is open stays whole
        size = os.fstat(file.fileno()).st_size

        def parts() -> Iterator[bytes]:
            with file:
                while part := file.read(CHUNK):
                    yield part

        return StreamingResponse(parts(), media_type="application/octet-stream", headers={
            "content-length": str(size),
            "content-disposition": f"attachment; filename*=UTF-8''{quote(path.name, safe='')}"})

    return app


def _label(name: str) -> str:
    """A class's name in one spelling. Browsers would make a path of one that is all dots."""
    try:
        label = class_name(name, "the name")
    except UserError as error:
        raise HTTPException(400, str(error)) from None
    if not label.strip("."):
        raise HTTPException(400, f"the name {shown(label)} is all dots; give another one")
    return label


async def _received(request: Request, spool: Spool) -> tuple[Path, str]:
    """The body in a file of its own, which the caller removes, and its sha256."""
    said = request.headers.get("content-length", "")
    if said.isdecimal() and int(said) > MOST_PICTURE:
        raise HTTPException(413, _TOO_LARGE)
    part, size, digest = spool.part(), 0, hashlib.sha256()
    try:
        with part.open("xb") as file:
            async for data in request.stream():
                size += len(data)
                if size > MOST_PICTURE:
                    raise HTTPException(413, _TOO_LARGE)
                digest.update(data)
                file.write(data)
            file.flush()
            await run_in_threadpool(os.fsync, file.fileno())
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    return part, digest.hexdigest()


_TOO_LARGE = f"a picture may have {MOST_PICTURE >> 20} MB at most; save it smaller"


def _state(view: View, spool: Spool, jobs: Jobs) -> State:
    version, shown, remembered = view.state()
    waiting = spool.counts()
    kinds = [_kind(name, waiting, jobs, since=of.since, pictures=of.pictures, weak=of.weak, exemplars=of.exemplars,
                   remembered=remembered.get(name, 0)) for name, of in shown.classes.items()]
    kinds += [_kind(name, waiting, jobs) for name in sorted({*waiting, *spool.taken()} - shown.classes.keys())]
    return State(file=shown.path.name, version=version, method=shown.method, backbone=shown.backbone,
                 image_size=shown.image_size, choice=shown.choice, budget=shown.budget, kept=shown.kept,
                 network=shown.network, file_bytes=shown.file_bytes, rejects=below(RATE, shown.held_out) > 0,
                 classes=kinds, jobs=[_work(job) for job in jobs.all()], most_bytes=MOST_PICTURE)


def _kind(name: str, waiting: Mapping[str, int], jobs: Jobs, **known: Any) -> Kind:
    return Kind(name=name, waiting=waiting.get(name, 0), forgetting=jobs.forgetting(name) is not None, **known)


def _work(job: Job) -> Work:
    order = job.order
    return Work(id=order.id, job=order.what, name=order.name, when=order.when, state=job.state,  # type: ignore
                part=job.what, done=job.done, of=job.of, notes=list(job.notes), result=job.result, error=job.error)
