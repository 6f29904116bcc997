"""Sheets as Markdown, LaTeX and CSV."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from protocore.bench.reproduce.filling import BEST, SECOND
from protocore.bench.reproduce.sheets import Cell, Heading, Number, Sheet
from protocore.bench.tables import NONE, markdown_table

_TEX = {"\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
        "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--", "−": "$-$", "±": r"$\pm$", "Δ": r"$\Delta$",
        "Ā": r"$\overline{A}$", "α": r"$\alpha$", "<": r"\textless{}", ">": r"\textgreater{}"}


@dataclass(frozen=True)
class Document:
    """`lines` are said below the sheets: the scale, how to read it, what is missing."""

    name: str
    title: str
    sheets: Sequence[Sheet]
    lines: Sequence[str]
    picture: str | None = None  # its file beside the document


def markdown(document: Document) -> str:
    text = [f"# {document.title}", ""]
    for sheet in document.sheets:
        rows = [{heading.name: _markdown_cell(cell) for heading, cell in zip(sheet.headings, row, strict=True)}
                for row in sheet.rows]
        text += [f"## {sheet.title}", "", markdown_table(rows), ""]
    if document.picture:
        text += [f"![{document.title}]({document.picture})", ""]
    text += [f"- {line}" for line in document.lines]
    return "\n".join(text) + "\n"


def _markdown_cell(cell: Cell) -> str:
    if not isinstance(cell, Number):
        return NONE if cell is None else cell
    text = cell.text() + (f" ± {cell.spread()}" if cell.deviation is not None else "")
    text = {BEST: f"**{text}**", SECOND: f"<u>{text}</u>"}.get(cell.mark, text)
    return text + (f" ({cell.seeds})" if cell.seeds > 1 else "")


def latex(document: Document) -> str:
    """A document of its own; each table in it can be taken out as it stands, and needs booktabs and color alone."""
    text = [r"\documentclass{article}", r"\usepackage[T1]{fontenc}", r"\usepackage{booktabs}", r"\usepackage{color}",
            r"\usepackage[margin=1.5cm,landscape]{geometry}", r"\begin{document}",
            rf"\section*{{{tex(document.title)}}}", ""]
    for sheet in document.sheets:
        text += [*_latex_table(document.name, sheet), ""]
    if document.lines:
        text += [r"\begin{itemize}", *(rf"\item {tex(line)}" for line in document.lines), r"\end{itemize}"]
    return "\n".join([*text, r"\end{document}"]) + "\n"


def _latex_table(name: str, sheet: Sheet) -> list[str]:
    words = [all(isinstance(row[i], str) for row in sheet.rows) for i in range(len(sheet.headings))]
    shape = "".join("l" if word else "r" for word in words)
    lines = [r"\begin{table}[htbp]", r"\centering\small", rf"\caption{{{tex(sheet.title)}}}",
             rf"\label{{tab:{name}-{sheet.key}}}", rf"\begin{{tabular}}{{{shape}}}", r"\toprule",
             *_latex_headings(sheet.headings), r"\midrule"]
    for i, row in enumerate(sheet.rows):
        lines += [r"\midrule"] if i in sheet.rules else []
        lines.append(" & ".join(map(_latex_cell, row)) + r" \\")
    return [*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]


def _latex_headings(headings: Sequence[Heading]) -> list[str]:
    """One line, or two where headings have a group above them."""
    last = " & ".join(heading.tex if heading.tex.startswith("$") else tex(heading.tex) for heading in headings) + r" \\"
    if not any(heading.group for heading in headings):
        return [last]
    spans: list[tuple[str, int]] = []
    for heading in headings:
        if spans and heading.group and spans[-1][0] == heading.group:
            spans[-1] = (heading.group, spans[-1][1] + 1)
        else:
            spans.append((heading.group, 1))
    above, rules, at = [], [], 1
    for group, width in spans:
        words = group if group.startswith("$") else tex(group)
        above.append(rf"\multicolumn{{{width}}}{{c}}{{{words}}}" if group else "")
        rules += [rf"\cmidrule(lr){{{at}-{at + width - 1}}}"] if group else []
        at += width
    return [" & ".join(above) + r" \\", "".join(rules), last]


def _latex_cell(cell: Cell) -> str:
    """The best red and bold, the second best blue and bold as in the paper; underlined too, for print in black."""
    if not isinstance(cell, Number):
        return "--" if cell is None else tex(cell)
    value = f"${cell.text('-')}$"
    if cell.mark == BEST:
        value = rf"\textcolor{{red}}{{\textbf{{{cell.text('-')}}}}}"
    elif cell.mark == SECOND:
        value = rf"\textcolor{{blue}}{{\underline{{\textbf{{{cell.text('-')}}}}}}}"
    if cell.deviation is not None:
        value += rf"{{\scriptsize $\pm${cell.spread()}}}"
    return value


def tex(text: str) -> str:
    """Words for LaTeX; Markdown's `code` becomes typewriter."""
    escaped = "".join(_TEX.get(letter, letter) for letter in text)
    return re.sub(r"`([^`]*)`", lambda found: rf"\texttt{{{found[1].replace('--', '-{}-')}}}", escaped)


def csv_text(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(headings)
    writer.writerows(rows)
    return out.getvalue()
