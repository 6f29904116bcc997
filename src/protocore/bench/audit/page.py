"""The audit as one page of HTML for a data-protection officer: plain words first, numbers behind them, no request."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from protocore.bench.audit.kept import Part
from protocore.bench.audit.measure import NEAR, Audit, Exemplar
from protocore.bench.audit.reading import Pictures, Subject
from protocore.bench.report.document import document
from protocore.bench.report.exemplars import Pictures as Printer
from protocore.bench.report.markup import Child, Html, details, el, join, number, numbers, table
from protocore.bench.tables import NONE
from protocore.config import format_bytes, plural
from protocore.learn.membership import FALSE_ALARMS, Membership
from protocore.version import __version__

A_CLASS = ((10, 4), (30, 2), (100, 1))  # up to so many classes, exemplars of each that are shown
MOST_ROWS = 2000  # exemplars that are listed one by one
TRACES = {"pictures": "real pictures", "traces": "traces of single pictures", "mixed": "only of many together",
          "none": "none"}


def page(found: Audit, about: Subject, training: Pictures) -> str:
    """The whole page."""
    title = f"Privacy audit of {found.file}"
    facts = [f"{plural(found.training, 'training picture')}", f"{plural(len(found.classes), 'class')}",
             f"method {found.method}", f"made {found.when}"]
    places = (("short", "in short"), ("kept", "what is in the file"), ("near", "how near its pictures come"),
              ("member", "can one tell who was learned"), ("how", "how it was measured"))
    body = [
        el("a", "To the findings", href="#main", class_="skip"),
        el("header", el("h1", title), el("p", " · ".join(facts), class_="dim"),
           el("nav", el("ul", [el("li", el("a", words, href=f"#{name}")) for name, words in places]),
              aria_label="Parts of this page")),
        el("main", _section("short", "In short", _short(found)), _section("kept", "What is in the file", _kept(found)),
           _section("near", "How near its pictures come to real ones", _near(found, about, training)),
           _section("member", "Can one tell which pictures were learned?", _member(found)),
           _section("how", "How it was measured, and what it does not say", _how(found)), id="main"),
        el("footer", el("p", f"Made by protocore {__version__} from the file and the pictures. Nothing on this page "
                        "was typed by hand, nothing is fetched from anywhere, and nothing was sent anywhere.")),
    ]
    return document(title, body)


def _section(name: str, heading: str, body: Html) -> Html:
    return el("section", el("h2", heading, id=name), body)


# -- in short --------------------------------------------------------------------------------------------------------


def _short(found: Audit) -> Html:
    real = [e for e in found.exemplars if e.origin in ("real", "coded") and e.distance is not None]
    made = [e for e in found.exemplars if e.origin == "synthetic"]
    cards = [_card("Real pictures in the file", f"{len(real):,}", _of_real(found, real)),
             _card("Synthetic pictures in the file", f"{len(made):,}", _of_made(found, made))]
    if found.by_loss is None:
        cards.append(_card("Which pictures were learned", "not tested", "held-out pictures were not given"))
    else:
        cards.append(_card("Guessing which pictures were learned", f"AUC {found.by_loss.auc:.2f}",
                           f"0.50 is guessing, 1.00 is certain: {_verdict(found.by_loss)}"))
        worst = found.worst
        if worst is not None and worst.attack is not None:
            cards.append(_card("The class that is given away most", f"AUC {worst.attack.auc:.2f}",
                               f"{worst.name}: {_verdict(worst.attack)}"))
    return join([el("div", cards, class_="cards"), el("ul", [el("li", words) for words in sentences(found)])])


def _card(over: str, big: str, words: str) -> Html:
    parts = (("over", over), ("big", big), ("dim", words))
    return el("div", [el("p", said, class_=look) for look, said in parts], class_="card")


def _of_real(found: Audit, real: Sequence[Exemplar]) -> str:
    if not real:
        return "none is kept"
    copies = sum(e.distance == 0 for e in real)
    rest = "" if copies == len(real) else f"compressed ({found.codec})" if not copies else \
        f"{len(real) - copies:,} compressed or not in the folder"
    return ", ".join(filter(None, [f"{copies:,} exact copies of training pictures" if copies else "", rest]))


def _of_made(found: Audit, made: Sequence[Exemplar]) -> str:
    if not made or found.near is None:
        return "none is kept" if not made else "nothing to compare them with"
    close = sum(e.distance is not None and e.distance < found.near for e in made)
    return f"{close:,} nearer to a training picture than nearly all training pictures are to each other" if close else \
        "none nearer to a training picture than training pictures are to each other"


def _verdict(attack: Membership) -> str:
    return "more than chance explains" if attack.told else "no more than chance explains"


def sentences(found: Audit) -> list[str]:
    """What follows from the findings, a sentence each."""
    kinds = {part.personal for part in found.parts}
    made = []
    if "pictures" in kinds:
        made.append("The file holds real pictures. If people can be recognised on the pictures that it learned from, "
                    "treat the file like these pictures.")
    elif "traces" in kinds:
        made.append("The file holds no picture to look at, but traces by which single pictures can be matched.")
    else:
        made.append("The file holds no picture, and no trace that belongs to a single one; what it holds is of many "
                    "pictures together.")
    if found.fingerprints is not None:
        made.append("It keeps fingerprints of picture files: whoever has a file that was learned can tell so for "
                    "certain, whatever the tests below say.")
    if found.by_loss is None:
        made.append("Whether the network gives away which pictures it has learned was not tested; give pictures that "
                    "it has not learned (--held-out).")
    elif found.by_loss.told:
        made.append("From its answers alone one can guess better than by chance which pictures it has learned.")
    else:
        made.append("From its answers alone one cannot tell better than by chance which pictures it has learned, with "
                    "the attacks that were tried.")
    return made


# -- what is in the file ---------------------------------------------------------------------------------------------


def _kept(found: Audit) -> Html:
    rows = [_row(part) for part in found.parts]
    heads = ("part", number("bytes"), "what it is", "of single pictures")
    return join([table("Everything that the file holds", heads, rows, class_="rooms"),
                 el("p", "A class can be taken out again: protocore forget.", class_="note")])


def _row(part: Part) -> Html:
    look = "tag yes" if part.personal in ("none", "mixed") else "tag"
    size = NONE if part.bytes is None else format_bytes(part.bytes)
    # On a phone a row becomes a card, and data-k stands before each cell.
    return el("tr", el("th", part.name, scope="row"), el("td", size, class_="n", data_k="bytes"),
              el("td", part.words, data_k="what it is"),
              el("td", el("span", TRACES[part.personal], class_=look), data_k="of single pictures"))


# -- nearest pictures ------------------------------------------------------------------------------------------------


def _near(found: Audit, about: Subject, training: Pictures) -> Html:
    if not found.exemplars:
        return el("p", "The file keeps no exemplars, so there is nothing to compare.")
    parts: list[Child] = [el("p", "For each exemplar all training pictures were looked through, for the one that is "
                             "nearest in pixels and for the one that the network finds most alike.")]
    if found.between is not None:
        parts.append(el("p", "Distances are root mean squares over pixels from 0 (black) to 1 (white): 0 is the same "
                        f"picture. Half of the training pictures have another one within {found.between:.3f}, and "
                        f"{NEAR:.0%} have one within {found.near:.3f}; below that an exemplar is marked as near."))
    rows = [el("tr", el("th", one.name, scope="row"), numbers([
        one.exemplars, one.copies if one.closest is not None else NONE, _far(one.closest), _far(one.mean)]))
        for one in found.classes if one.exemplars]
    parts.append(table("Exemplars of each class", ("class", number("exemplars"), number("exact copies"),
                       number("nearest distance"), number("mean distance")), rows, fit=True))
    parts.append(_shown(found, about, training))
    listed = found.exemplars[:MOST_ROWS]
    rest = "" if len(listed) == len(found.exemplars) else f", the first {len(listed):,} of {len(found.exemplars):,}"
    parts.append(details(f"Every exemplar{rest}", table(
        "Nearest training pictures", ("class", "exemplar", "origin", number("distance"), "nearest in pixels",
                                      number("alike"), "most alike by features"), [_line(e, found) for e in listed])))
    return join(parts)


def _far(value: float | None) -> str:
    return NONE if value is None else f"{value:.3f}"


def _line(e: Exemplar, found: Audit) -> Html:
    near = e.distance is not None and found.near is not None and e.distance < found.near
    return el("tr", el("th", e.name, scope="row"), el("td", f"{e.store} {e.slot + 1}"), el("td", e.origin),
              el("td", _far(e.distance), [" ", el("span", "copy" if e.distance == 0 else "near", class_="tag")] if near
                 else None, class_="n"),
              el("td", e.picture or NONE), el("td", f"{e.alike:.3f}", class_="n"), el("td", e.picture_by_features))


def _shown(found: Audit, about: Subject, training: Pictures) -> Html | None:
    """Some exemplars beside their nearest training pictures."""
    printer, row_of = Printer(), {name: row for row, name in enumerate(training.files)}
    stores = {store.name: store for store in about.learner.method.stores()}
    most = next((n for classes, n in A_CLASS if len(found.classes) <= classes), 1)
    rows = []
    for one in found.classes:
        mine = [e for e in found.exemplars if e.name == one.name]
        if not mine or printer.left <= 0:
            continue
        # The nearest first: whoever looks here wants the worst.
        mine = sorted(mine, key=lambda e: (e.distance if e.distance is not None else 0.0, -e.alike))[:most]
        theirs = training.images.take([row_of[e.picture or e.picture_by_features] for e in mine])  # type: ignore[arg-type]
        cells = [el("td", [printer.image(picture, f"{one.name}: training picture nearest to exemplar {k + 1}")
                           for k, picture in enumerate(theirs)], class_="pics")]
        if mine[0].distance is not None:
            kept = torch.stack([stores[e.store].images[e.slot] for e in mine]).numpy()
            cells.insert(0, el("td", [printer.image(picture, f"{one.name}: exemplar {k + 1}")
                                      for k, picture in enumerate(kept)], class_="pics"))
        rows.append(el("tr", el("th", one.name, scope="row"), cells))
    if not rows:
        return None
    heads = ["class", *(["in the file"] if rows and 'class="pics"' in rows[0] and found.between is not None else []),
             "nearest training picture"]
    return table(f"The {most} nearest of each class" if most > 1 else "The nearest of each class", heads, rows,
                 class_="exemplars", fit=True)


# -- membership ------------------------------------------------------------------------------------------------------


def _member(found: Audit) -> Html:
    what = el("p", "A network may be surer of pictures that it has learned than of others. Whoever can ask it then "
              "guesses which pictures it has learned, though none is stored: that is called membership inference. It "
              f"was tried on {plural(found.training, 'picture')} that were learned and "
              f"{plural(found.held_out, 'picture')} that were not.")
    if found.by_loss is None or found.by_confidence is None:
        return el("p", "It was not tested whether the network gives away which pictures it has learned: that needs "
                  "pictures of the same classes that it has not learned, --held-out FOLDER.")
    rows = [el("tr", el("th", words, scope="row"), _cells(attack)) for words, attack in (
        ("knows which class is shown (loss)", found.by_loss), ("does not know it (confidence)", found.by_confidence))]
    heads = (number("AUC"), number("by chance"), number(f"caught at {FALSE_ALARMS:.0%}"), "verdict")
    classes = [el("tr", el("th", one.name, scope="row"), numbers([one.training, one.held_out]), _cells(one.attack))
               for one in sorted(found.classes, key=lambda one: -abs((one.attack.auc if one.attack else 0.5) - 0.5))]
    return join([
        what, table("The attacker", ("the attacker", *heads), rows),
        el("p", "AUC: the chance that of a learned and another picture the learned one is picked; 0.5 is guessing. By "
           "chance: how far from 0.5 it would come 19 times out of 20 if nothing were given away; an AUC as far below "
           f"0.5 gives away as much as one above. Caught at {FALSE_ALARMS:.0%}: the share of learned pictures that are "
           "pointed out when one in a hundred others is pointed out wrongly; it needs a hundred held-out pictures.",
           class_="note"),
        table("Class by class, the worst first", ("class", number("learned"), number("held out"), *heads), classes),
        el("p", "By chance, in this table: for the farthest of all classes, as the worst of many looks bad by chance.",
           class_="note")])


def _cells(attack: Membership | None) -> Html:
    if attack is None:
        return join([*(el("td", NONE, class_="n") for _ in range(3)), el("td", "no pictures to test")])
    caught = NONE if attack.caught is None else f"{100 * attack.caught:.1f} %"
    return join([numbers([f"{attack.auc:.3f}", f"0.5 ± {attack.chance:.3f}", caught]),
                 el("td", el("span", _verdict(attack), class_="tag" if attack.told else "tag yes"))])


# -- how -------------------------------------------------------------------------------------------------------------


def _how(found: Audit) -> Html:
    facts = [("file", found.file), ("sha256 of the file", found.sha256), ("audited", found.when),
             ("protocore", found.version), ("method", found.method), ("codec", found.codec),
             ("training pictures", f"{found.training:,}" + (
                 "" if found.fingerprints is None else f", {found.fingerprints:,} of them by their fingerprints")),
             ("held-out pictures", f"{found.held_out:,}")]
    limits = [
        "The training pictures are those in the folder that was given; what was learned besides is not looked at.",
        "A distance in pixels misses a picture that was moved, mirrored or recoloured; likeness by features is the "
        "network's own view and misses what the network does not look at.",
        "The membership attacks use the answers of this one file. An attacker who trains networks of their own can do "
        "better: the numbers are a lower bound of what is given away.",
        "Copies of the file, packs and exported models hold the same, and are not part of this audit.",
    ]
    return join([
        el("dl", [join([el("dt", k), el("dd", v)]) for k, v in facts], class_="facts"),
        el("h3", "Limits"), el("ul", [el("li", words) for words in limits]),
        [el("h3", "Notes"), el("ul", [el("li", words) for words in found.notes])] if found.notes else None])
