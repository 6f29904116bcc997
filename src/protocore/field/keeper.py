"""A learner in the field: one file, and verbs that open it, do their work and write it whole."""

from __future__ import annotations

import contextlib
import hashlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from protocore.config import SIZES, Settings, convert
from protocore.errors import DataError, UserError
from protocore.field.asking import Prediction, Tested, predicted, tested
from protocore.field.choice import candidates
from protocore.field.document import Document, Entry, now
from protocore.field.learning import Barren, Learned, Work
from protocore.field.report import Report
from protocore.field.shown import Shown, shown_of
from protocore.field.sources import BEFORE, labelled, unlabelled, without_doubles
from protocore.files import MOST_TENSORS, hold_file, read_bytes, remove_parts
from protocore.learn.certificate import Certificate
from protocore.learn.checkpoint import read_checkpoint, write_blank
from protocore.learn.files import learner_of
from protocore.learn.learner import Learner
from protocore.schema import Fields

BUDGET = "64KB"
_CALIBRATION = "the temperature of probabilities and scores of held-out pictures: numbers without class or picture"
_WAY_OUT = "restore the file from a copy"


@dataclass(frozen=True)
class _Opened:
    """A file as it was read: what it says, the learner in it (None: nothing was learned yet), and its sha256."""

    document: Document
    learner: Learner | None
    digest: str
    stamp: tuple[int, int, int]


class Keeper:
    """A learner's file. Nothing of it is lost if a verb dies; several processes may read it, one at a time changes it.

    `patience` is how many seconds a verb waits for another process that changes the file, `checkpoint_seconds` how
    often a long `learn` writes down where it stands.
    """

    patience = 10.0
    checkpoint_seconds = 30.0

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._opened: _Opened | None = None

    def __repr__(self) -> str:
        return f"Keeper({str(self.path)!r})"

    @classmethod
    def new(cls, path: str | Path, *, budget: int | str | None = None, backbone: str | None = None,
            method: str | None = None, image_size: int | None = None, seed: int = 0, **settings: Any) -> Self:
        """A file for a learner of classes that nobody knows yet; what is not said here is chosen when the first come.

        `settings` are those of `protocore run`, with underscores. Without any, its memory has 64 KB.
        """
        keeper = cls(path)
        given = {"budget": budget, "backbone": backbone, "method": method, "image_size": image_size, "seed": seed,
                 **settings}
        given = {name: value for name, value in given.items() if value is not None}
        if not given.keys() & set(SIZES):
            given["budget"] = BUDGET
        candidates(given)  # a mistake should not wait for the first pictures
        given |= {"budget": convert(Settings, "budget", given["budget"])} if "budget" in given else {}
        document = Document(given=given, history=[Entry(now(), "new")])
        with keeper.changing():
            if keeper.path.exists():
                raise UserError(f"{keeper.path}: is there already; give another name, or delete it first")
            write_blank(keeper.path, {"field": document.to_json()})
        return keeper

    # -- what is in the file -----------------------------------------------------------------------------------

    @property
    def learner(self) -> Learner:
        """The learner as it is in the file now."""
        learner = self._open().learner
        if learner is None:
            raise UserError(f"{self.path}: has learned nothing yet; teach it with `protocore learn {self.quoted} "
                            "FOLDER`")
        return learner

    @property
    def document(self) -> Document:
        """What the file says beside the learner."""
        return self._open().document

    @property
    def quoted(self) -> str:
        """The path as a shell takes it."""
        return shlex.quote(str(self.path))

    @property
    def checkpoint(self) -> Path:
        """Where a `learn` that is under way writes down where it stands."""
        return self.path.with_name(f".{self.path.name}.checkpoint")

    def _open(self) -> _Opened:
        stamp = self._stamp()
        if self._opened is None or self._opened.stamp != stamp:
            checkpoint = read_checkpoint(self.path)
            document = Document.read(Fields(checkpoint.header.extra, self.path, _WAY_OUT, "extra."))
            names = [str(name) for name in checkpoint.header.classes]
            if document.classes.keys() != set(names):
                raise DataError(f"{self.path}: damaged, its classes are not those of its learner; {_WAY_OUT}")
            document = document.in_order(names)
            learner = learner_of(Learner, checkpoint) if checkpoint.header.settings else None
            self._opened = _Opened(document, learner, self._digest(), stamp)
        return self._opened

    def _digest(self) -> str:
        return hashlib.sha256(read_bytes(self.path, MOST_TENSORS)).hexdigest()

    def _stamp(self) -> tuple[int, int, int]:
        try:
            found = self.path.stat()
        except FileNotFoundError:
            raise DataError(f"{self.path}: there is no such file; make one with `protocore new {self.quoted}`"
                            ) from None
        except (OSError, ValueError) as error:
            raise DataError(f"{self.path}: cannot be read ({getattr(error, 'strerror', None) or error}); give the path "
                            "of a learner's file") from None
        return found.st_ino, found.st_mtime_ns, found.st_size

    @contextlib.contextmanager
    def changing(self, report: Report | None = None) -> Iterator[None]:
        """The file is ours to change; what killed writers of it have left is removed."""
        if self.path.is_dir():
            raise UserError(f"{self.path}: is a folder; give the name of a file in it")
        with hold_file(self.path, self.patience,
                       lambda who: (report or Report()).note(f"waiting: {who} is changing {self.path}")):
            remove_parts(self.path.parent, [self.path.name, self.checkpoint.name])
            yield

    def write(self, learner: Learner, document: Document) -> None:
        """The file anew, which must be ours to change; what stood beside it of unfinished work is of no use then."""
        learner.save(self.path, {"field": document.in_order(learner.class_names).to_json()})
        self.checkpoint.unlink(missing_ok=True)
        self._opened = None

    # -- verbs -------------------------------------------------------------------------------------------------

    def learn(self, sources: Sequence[str | Path], *, name: str | None = None, report: Report | None = None,
              stop: Callable[[], bool] | None = None) -> Learned:
        """Learn pictures: folders of a folder a class, tables (CSV) of file,label, or with `name` those of one class.

        If the process dies the file is as it was, and the same call goes on from its checkpoint. `stop` is asked
        after every step; once it says so, the checkpoint is written and `Interrupted` raised.
        """
        report = report or Report()
        self._stamp()
        with self.changing(report):
            opened = self._open()
            known = {label: of.has() for label, of in opened.document.classes.items()}
            chosen = without_doubles(labelled([Path(source) for source in sources], name), known,
                                     lambda done, of: report.progress("looking", done, of))
            self._opened = None  # its learner is about to change
            work = Work(opened.document, opened.learner, opened.digest, self.checkpoint, self.checkpoint_seconds,
                        report, stop)
            try:
                learner, document, learned = work.learn(chosen)
            except Barren as barren:
                if not any(skip.why == BEFORE for skip in barren.skipped):
                    raise
                return barren.learned(self.learner)
            self.write(learner, document)
        return learned

    def predict(self, sources: Sequence[str | Path], *, top: int = 1, unknown: float | None = None,
                report: Report | None = None) -> list[Prediction]:
        """What pictures show: files, or all that lie in folders. `unknown`: the share of pictures of known classes
        that may be called none of them."""
        found = unlabelled([Path(source) for source in sources])
        return predicted(self.learner, self.document.calibration, found, top, unknown, report or Report())

    def test(self, sources: Sequence[str | Path], *, name: str | None = None, unknown: float | None = None,
             report: Report | None = None) -> Tested:
        """How good the learner is on pictures whose classes are known; named as in `learn`."""
        found = labelled([Path(source) for source in sources], name)
        return tested(self.learner, self.document, found, unknown, report or Report())

    def show(self) -> Shown:
        """Classes, bytes, history."""
        opened = self._open()
        return shown_of(self.path, opened.document, opened.learner)

    def forget(self, name: str, *, pictures: Sequence[str | Path] = (), held_out: Sequence[str | Path] = (),
               unlearn_steps: int = 0) -> Certificate:
        """Take a class out of everything that is kept of it; the certificate says what was done, and what stays.

        It measures on `pictures` of the class that were learned (else on its exemplars) and on `held_out` ones, files
        or folders of them; `unlearn_steps` as in `Learner.forget`.
        """
        self._stamp()
        with self.changing():
            opened, learner = self._open(), self.learner
            self._opened = None
            mine, others = ([one.path for one in unlabelled([Path(source) for source in sources]).pictures]
                            for sources in (pictures, held_out))
            certificate = learner.forget(name, mine or None, others or None, unlearn_steps=unlearn_steps)
            self.write(learner, opened.document.forgotten(name, now()))
            mixed = (*certificate.mixed, _CALIBRATION) if opened.document.calibration.pictures else certificate.mixed
            return replace(certificate, mixed=mixed, file_before=opened.digest, file_after=self._digest())
