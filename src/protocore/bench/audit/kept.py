"""What a learner's file holds, part by part, in words for people who decide whether it may leave the house."""

from __future__ import annotations

from dataclasses import dataclass

from protocore.bench.audit.reading import Subject
from protocore.config import plural
from protocore.field.document import PRINT, WEAK
from protocore.learn.front import nbytes
from protocore.learn.learner import Learner
from protocore.memory.ledger import HEADER
from protocore.memory.store import ExemplarStore


@dataclass(frozen=True)
class Part:
    """One thing in the file. `personal`: what kind of trace of single pictures it is."""

    name: str
    bytes: int | None
    words: str
    personal: str  # pictures, traces, mixed or none


def parts_of(about: Subject) -> list[Part]:
    """Everything in the file, the most telling first."""
    learner = about.learner
    stores = {store.name: store for store in learner.method.stores()}
    sizes: dict[str, int] = {}
    kinds: dict[str, str] = {}
    for entry in learner.ledger().entries:
        if not entry.shared and entry.name != HEADER:
            name = entry.name.rpartition("/")[0] or entry.name
            sizes[name] = sizes.get(name, 0) + entry.bytes
            kinds[name] = entry.kind
    made = [_exemplars(learner, stores[name], size) for name, size in sizes.items()
            if name in stores and len(stores[name])]
    for name, size in sizes.items():
        if name not in stores:
            made.append(_statistics(about, name, kinds[name], size))
    made.append(_network(learner))
    made.append(Part("names and settings", None, f"the names of {plural(len(learner.classes_), 'class')}, how the "
                     "learner was set, and how long it took", "none"))
    if about.document is not None:
        made += _notes(about)
    return made


def _exemplars(learner: Learner, store: ExemplarStore, size: int) -> Part:
    count, each = len(store), f"{size / len(store):.0f} bytes each"
    if learner.net.image_shape != learner.image_shape:
        return Part(store.name, size, f"{plural(count, 'row')} of numbers, {each}: how the frozen network describes "
                    "one real picture. Nobody sees a picture in them, but each belongs to one, and whoever has that "
                    "picture can tell that it is here", "traces")
    if store.origin == "synthetic":
        blend = getattr(learner.config.options, "blend", None)
        of = f"a blend of {blend} or more real pictures" if blend else "made of several real pictures"
        return Part(store.name, size, f"{plural(count, 'synthetic picture')}, {each}: every one began as {of} and was "
                    "then changed by training. None is a copy of a single picture; below it is measured how near they "
                    "come to one", "mixed")
    kind = f"compressed ({learner.tools.codec.spec})" if store.origin == "coded" else "exactly as they were learned"
    left = ": who or what is on them can be recognised as far as the compression leaves it" \
        if store.origin == "coded" else ""
    return Part(store.name, size, f"{plural(count, 'real picture')}, {kind}, {each}{left}. They are personal data if "
                "the pictures were", "pictures")


def _statistics(about: Subject, name: str, kind: str, size: int) -> Part:
    if kind == "parameters":
        return Part(name, size, "numbers about the network's weights, made of all pictures together", "mixed")
    if kind != "prototypes" and name != "prototypes":
        return Part(name, size, "numbers over classes or all of them: counters, means, how features vary", "mixed")
    classes = about.document.classes.values() if about.document is not None else ()
    few = sum(known.pictures < WEAK for known in classes)
    alone = f". Of {plural(few, 'class')} with fewer than {WEAK} pictures it says much of each of them" if few else ""
    return Part(name, size, "for each class the mean of what the network says of its pictures, and how they vary where "
                f"that is kept: no single picture can be read from it{alone}", "mixed")


def _network(learner: Learner) -> Part:
    size = sum(nbytes(net) for net in (learner.net, learner.front) if net is not None)
    if not learner.images_learned:
        return Part("network", size, "weights that were not trained on these pictures", "none")
    return Part("network", size, "weights that were trained on the pictures. No picture is stored in them, but a "
                "network may treat what it has learned otherwise than what it has not: that is measured below", "mixed")


def _notes(about: Subject) -> list[Part]:
    assert about.document is not None
    prints = sum(len(known.has()) for known in about.document.classes.values())
    files = sum(len(entry.named) for entry in about.document.history)
    history = "when something was done, by which version, and how many pictures of which class were learned"
    if files:
        history += f"; the names of {plural(files, 'file')} that could not be used"
    return [
        Part("fingerprints", prints * PRINT, f"{plural(prints, 'fingerprint')} of picture files ({PRINT} bytes of the "
             "SHA-256 each), so that no file is learned twice. No picture can be made from them, but whoever has the "
             "same file can tell with certainty that it was learned", "traces"),
        Part("history", None, history, "traces" if files else "none"),
    ]
