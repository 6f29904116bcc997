"""Write the tables of README.md and docs/ and their figures from the stored results, and docs/results/.

    python benchmarks/tables.py
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from pathlib import Path
from typing import Any

from protocore.bench import figures
from protocore.bench.cells.small import REPRODUCED, Shelf
from protocore.bench.compared import gather, protocols
from protocore.bench.frontier_figure import frontier_figure
from protocore.bench.reproduce.exhibits import EXHIBITS
from protocore.bench.reproduce.make import plan, write
from protocore.bench.reproduce.scales import SCALES
from protocore.bench.tables import exemplar_words, markdown_table, mean_std, replace_block
from protocore.config import format_bytes
from protocore.runs.result import Result, read_result

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "docs/results.md", "docs/backbones.md", "docs/codecs.md", "docs/field.md", "docs/methods.md",
         "docs/privacy.md")
AIMS = {("CIFAR-100 test", 72): 25.5, ("CIFAR-100 test", 144): 28.5}  # dB that the shipped decoder was to reach
SPACES = ("mix", "half", "raw", "codec")  # --replay-space


def stored(table: str) -> dict[str, list[Result]]:
    """Results of a table by row, the seeds of each row together."""
    rows: dict[str, list[Result]] = defaultdict(list)
    for path in sorted((ROOT / "results" / table).glob("*.json")):
        rows[path.stem.rpartition("-s")[0]].append(read_result(path))
    return rows


def command(text: str) -> str:
    """The command without what differs between the seeds of a row."""
    words, kept = text.split(), []
    while words:
        word = words.pop(0)
        if word in ("--seed", "--threads"):
            words.pop(0)
        else:
            kept.append(word)
    return " ".join(kept)


def kept(results: list[Result], *, a_class: bool = False) -> str:
    """Bytes, the mean over the seeds of a row."""
    sizes = [r.bytes_kept / (r.classes if a_class else 1) for r in results]
    return format_bytes(sum(sizes) / len(sizes))


def runs_table(table: str) -> str:
    rows = []
    for results in stored(table).values():
        def over_seeds(part: str, key: str, results: list[Result] = results) -> str:
            values = [getattr(getattr(r, part), key) for r in results]
            return "–" if None in values else mean_std(values)

        seconds = [r.seconds["learn"] for r in results]
        inner = [sum(v for k, v in r.seconds.items() if k not in ("learn", "evaluate")) for r in results]
        rows.append({
            "command": f"`{command(results[0].command)}`",
            "A_T": over_seeds("class_incremental", "A_T"),
            "A_L": over_seeds("class_incremental", "A_L"),
            "Ā": over_seeds("class_incremental", "A_mean"),
            "forgetting": over_seeds("class_incremental", "forgetting"),
            "task-inc. A_T": over_seeds("task_incremental", "A_T"),
            "kept": kept(results),
            "exemplars a class": exemplar_words(*results),
            "learn s": f"{sum(seconds) / len(seconds):.0f}",
            "select s": f"{sum(inner) / len(inner):.0f}" if any(inner) else "–",
            "seeds": str(len(results)),
        })
    return markdown_table(rows)


def codec_runs_table(table: str) -> str:
    """Each room with what fits into it: a row a memory, a column a replay space; its bytes are those of `mix`."""
    spaces: dict[tuple[int, str], dict[str, list[Result]]] = {}
    for name, results in stored(table).items():
        method, codec, _, *space = name.split("-")
        room = results[0].settings["budget"]
        spaces.setdefault((room, f"{method}, {codec}"), {})[space[0] if space else "raw"] = results
    rows = []
    for (room, memory), runs in sorted(spaces.items()):
        shown = runs.get("mix") or next(iter(runs.values()))  # pixels have no gap: `raw` is all there is
        accuracy = {space: f"{mean_std([r.class_incremental.A_T for r in results])} ({len(results)})"
                    for space, results in runs.items()}
        rows.append({
            "room a class": format_bytes(room / shown[0].classes), "memory": memory,
            "codec": f"`{shown[0].settings['codec']}`", "exemplars a class": exemplar_words(*shown),
            "kept": kept(shown), "raw": accuracy.get("raw", ""), "mix": accuracy.get("mix", ""),
            "codec space": accuracy.get("codec", ""),
        })
    return markdown_table(rows)


def fast_table(table: str) -> str:
    """Full-size runs in short: what is kept, with the decoder apart, and what comes of it."""
    rows = []
    for name, results in stored(table).items():
        first = results[0]
        rows.append((first.settings["method"] not in ("joint", "finetune"), -final(results), {
            "memory": name, "kept": kept(results), "a class": kept(results, a_class=True),
            "decoder": format_bytes(size) if (size := first.decoder_bytes) else "–",
            "exemplars a class": exemplar_words(*results),
            "A_T": f"{mean_std([r.class_incremental.A_T for r in results])} ({len(results)})",
            "A_L": "–" if first.class_incremental.A_L is None else
                   mean_std([r.class_incremental.A_L for r in results if r.class_incremental.A_L is not None]),
            "task-inc. A_T": mean_std([r.task_incremental.A_T for r in results]),
            "minutes": f"{sum(sum(r.seconds.values()) for r in results) / len(results) / 60:.0f}",
            "command": f"`{command(first.command)}`"}))
    return markdown_table([row for *_, row in sorted(rows, key=lambda row: row[:2])])


def choices_table(table: str) -> str:
    """One change a row, beside the row where nothing is changed, best first."""
    found = stored(table)
    plain = final(next(results for name, results in found.items() if name.startswith("as it is")))
    rows = []
    for name, results in sorted(found.items(), key=lambda row: -final(row[1])):
        first, change = results[0], final(results) - plain
        row = {"change": name.replace("_", " "), "A_T": mean_std([r.class_incremental.A_T for r in results]),
               "beside it": "" if name.startswith("as it is") else f"{change:+.1f}"}
        if first.tasks > 1:
            row |= {"A_L": mean_std([r.class_incremental.A_L or 0 for r in results]),
                    "task-inc. A_T": mean_std([r.task_incremental.A_T for r in results]),
                    "exemplars a class": exemplar_words(*results)}
        seconds = [sum(v for k, v in r.seconds.items() if k != "evaluate") for r in results]
        rows.append(row | {"learn s": f"{sum(seconds) / len(seconds):.0f}", "seeds": str(len(results))})
    return markdown_table(rows)


def spaces_table(table: str) -> str:
    """A memory a row, what current pictures pass through a column: accuracy, in brackets that on the newest task."""
    rows: dict[str, dict[str, str]] = {}
    for name, results in stored(table).items():
        memory, space = name.rsplit(", ", 1)
        newest = [r.class_incremental.R[-1][-1] for r in results]
        rows.setdefault(memory, {})[space] = f"{final(results):.1f} ({sum(newest) / len(newest):.1f})"
    return markdown_table([{"memory": memory} | {f"`{space}`": row.get(space, "") for space in SPACES}
                           for memory, row in rows.items()])


def recipe_table() -> str:
    changes = json.loads((ROOT / "results" / "recipe.json").read_text())["changes"]

    def mean(found: dict[str, dict[str, float]], what: str) -> float:
        return statistics.fmean(one[what] for one in found.values())

    plain = changes["the recipe"]
    return markdown_table([
        {"change": name, "accuracy": f"{mean(found, 'accuracy'):.1f}",
         "beside the recipe": "" if found is plain else f"{mean(found, 'accuracy') - mean(plain, 'accuracy'):+.1f}",
         "processor time": f"{mean(found, 'seconds') / mean(plain, 'seconds'):.2f}"}
        for name, found in sorted(changes.items(), key=lambda item: -mean(item[1], "accuracy"))])


def looks_table() -> str:
    report = json.loads((ROOT / "results" / "looks.json").read_text())
    return markdown_table([{"codec": f"`{name}`", "told from raw": f"{entry['accuracy']} %"}
                           for name, entry in report.items() if isinstance(entry, dict)])


def room_table(table: str) -> str:
    """What a class takes, and what is kept once for all of them, behind a frozen network and from scratch."""
    rows = []
    for results in stored(table).values():
        r = results[0]
        budget, side = r.settings["budget"], r.settings["image_size"]
        each, shared = told_apart(results)
        row = {
            "network": f"`{r.settings['backbone']}`, {'from scratch' if r.weights is None else 'frozen'}"
                       + (f", {side} pixels" if side else ""),
            "method": f"`{r.method}`{f', {words}' if (words := settings_words(r)) else ''}",
            "room a class": format_bytes(budget / r.classes) if budget else "no limit",
            "A_T": f"{mean_std([one.class_incremental.A_T for one in results])} ({len(results)})",
            "kept a class": format_bytes(each), "beside it, for all": format_bytes(shared),
            "exemplars a class": exemplar_words(*results),
            "pictures a second": f"{pictures_a_second(results):.0f}",
        }
        rows.append(((r.weights is None, side or 0, budget is None, budget or 0), -final(results), row))
    return markdown_table([row for *_, row in sorted(rows, key=lambda row: row[:2])])


def told_apart(results: list[Result]) -> tuple[float, float]:
    """Bytes for each class, and in all of what is there once (covariance, codebook, header): means over the seeds."""
    each = [sum(e.bytes for e in r.ledger.entries if not e.shared and (e.kind in ("prototypes", "exemplars") or
                                                                       e.rows == r.classes)) for r in results]
    once = [r.bytes_kept - size for r, size in zip(results, each, strict=True)]
    return sum(each) / len(each) / results[0].classes, sum(once) / len(once)


def settings_words(r: Result) -> str:
    """Of a method behind a frozen network: how its numbers are stored."""
    said = {"prototype_dtype": "means in {}", "project": "{} numbers", "covariance": "covariance: {}"}
    words = [text.format(r.options[name]) for name, text in said.items()
             if name in r.options and (r.sources.get(name) == "flag")]
    return ", ".join([*words, *([f"codec `{r.settings['codec']}`"] if r.exemplars else [])])


def pictures_a_second(results: list[Result]) -> float:
    """Training pictures over all the time that learning took, the network's passes over them too."""
    learned = sum(r.training_pictures or 0 for r in results)
    return learned / sum(sum(v for part, v in r.seconds.items() if part != "evaluate") for r in results)


def final(results: list[Result]) -> float:
    return sum(r.class_incremental.A_T for r in results) / len(results)


def starts_table(table: str) -> str:
    rows = []
    for name, results in stored(table).items():
        start, steps, *more = name.split("-", 2)
        rows.append({
            "start": start, "steps": steps, "also": more[0] if more else "",
            "A_T": mean_std([r.class_incremental.A_T for r in results]),
            "Ā": mean_std([a for r in results if (a := r.class_incremental.A_mean) is not None]),
            "condense s": f"{sum(r.seconds.get('condense', 0.0) for r in results) / len(results):.0f}",
        })
    order = {"nearest": 0, "mean": 1, "random": 2}
    return markdown_table(sorted(rows, key=lambda r: (order[r["start"]], bool(r["also"]), int(r["steps"]), r["also"])))


def codecs_table() -> str:
    report = json.loads((ROOT / "results" / "codecs.json").read_text())
    rows = []
    for data, cases in report.items():
        for codec, r in cases.items() if isinstance(cases, dict) else ():
            if isinstance(r, dict):
                rows.append({"test pictures of": data, "codec": f"`{codec}`", "bytes": f"{r['bytes']:g}",
                             "PSNR, dB": f"{r['psnr']:.2f}", "encode ms": f"{r['encode_ms']:.2f}",
                             "decode ms": f"{r['decode_ms']:.2f}",
                             "ideal, bytes": f"{r['entropy_bytes']:g}" if "entropy_bytes" in r else "",
                             "pictures": f"{r['pictures']:,}"})
    return markdown_table(rows)


def sweeps_table() -> str:
    """What sweeps gain on the same pictures, as the report beside the shipped weights says; times as in `codecs`."""
    report = json.loads((ROOT / "src" / "protocore" / "codecs" / "weights" / "vqgan-colour.json").read_text())
    codecs = json.loads((ROOT / "results" / "codecs.json").read_text())
    same = {(m["pictures_of"], m["stages"], m["sweeps"], m["pictures"]): m["psnr"] for m in report["measured"]}
    rows = []
    for m in report["measured"]:
        data, stages, size, sweeps, psnr = (m[k] for k in ("pictures_of", "stages", "exemplar_bytes", "sweeps", "psnr"))
        if not sweeps:
            continue
        plain, aim = same[data, stages, 0, m["pictures"]], AIMS.get((data, size))
        timed = codecs[{"CIFAR-100 test": "cifar100-10", "CIFAR-10 test": "cifar10"}[data]]
        slower = timed[f"vqgan:{stages},sweeps={sweeps}"]["encode_ms"] / timed[f"vqgan:{stages}"]["encode_ms"]
        rows.append({
            "test pictures of": data.removesuffix(" test"), "bytes": str(size), "pictures": f"{m['pictures']:,}",
            "plain, dB": f"{plain:.2f}", f"sweeps={sweeps}, dB": f"{psnr:.2f}", "gain, dB": f"{psnr - plain:.2f}",
            "encoding takes": f"{slower:.1f} times as long",
            "aim, dB": f"{aim:g}" if aim else "",
            "met by": "" if not aim else "both" if plain >= aim else "sweeps" if psnr >= aim else "neither",
        })
    return markdown_table(rows)


def condensation_table() -> str:
    report = json.loads((ROOT / "results" / "condensation.json").read_text())
    return markdown_table([
        {"codec": f"`{r['codec']}`", "exemplars a class": str(r["exemplars_a_class"]),
         "seconds a class, 50 steps": f"{r['seconds_a_class_of_50_steps']:.2f}",
         "against the passes alone": f"{r['against_passes']:.2f}",
         "a loop over classes takes": f"{r['loop_over_classes_against_ours']:.2f} times as long"}
        for r in report["cases"]
    ])


def health_table() -> str:
    """Means over the classes; distances of pictures as root mean squares of pixels in [0, 1]."""
    report = json.loads((ROOT / "results" / "health.json").read_text())
    return markdown_table([
        {"command": f"`{command(run['command'])}`", "origin": origin, "to prototype": f"{r['to_prototype']:.3f}",
         "present network": f"{100 * r['present_right']:.0f} %", "fresh network": f"{100 * r['fresh_right']:.0f} %",
         "to the nearest picture": f"{r['nearest_training']:.3f}",
         "between pictures": f"{r['between_training']:.3f}"}
        for run in report["runs"] for origin, r in run["mean"].items()
    ])


def costs_table() -> str:
    """Processor time of each method against `er`, measured in one run (benchmarks/costs.py)."""
    report = json.loads((ROOT / "results" / "costs.json").read_text())
    return markdown_table([
        {"method": f"`{name}`", "learning": f"{r['learning']:.2f}", "selecting": f"{r['selecting']:.2f}",
         "sum": f"{r['learning'] + r['selecting']:.2f}"}
        for name, r in sorted(report["methods"].items(), key=lambda item: sum(item[1].values()))
    ])


def forgetting_table() -> str:
    """What is left of a forgotten class, by steps of unlearning, between having learned it and never having done so."""
    words = {"before": "learned", "0": "forgotten", "never": "never learned"}
    report = json.loads((ROOT / "results" / "forgetting.json").read_text())
    return markdown_table([
        {"method": f"`{r['method']}`", "the class is": words.get(r["when"]) or f"forgotten, {r['when']} steps",
         "others, test": f"{r['others']:.1f} %", "AUC": f"{r['auc']:.2f}", "by chance": f"0.5 ± {r['chance']:.2f}",
         "sure": f"{r['sure']:.2f}"}
        for r in report["rows"]
    ])


def months() -> dict[str, list[dict[str, Any]]]:
    """The lives of learners by method."""
    lives: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for life in json.loads((ROOT / "results" / "months.json").read_text())["lives"]:
        lives[life["method"]].append(life)
    return lives


def months_cost_table() -> str:
    """What a class that comes later costs those that were there, over all that came one by one."""
    rows = []
    for method, lives in months().items():
        added = [one for life in lives for one in life["added"]]
        lost = [one["before"] - one["after"] for one in added]
        rows.append({
            "method": f"`{method}`", "classes added, one by one": f"{len(added)}, in {len(lives)} orders",
            "older classes, before": f"{statistics.fmean(one['before'] for one in added):.1f} %",
            "lost by one addition, points": f"{statistics.fmean(lost):.2f}", "the most": f"{max(lost):.1f}",
            "the added class": f"{statistics.fmean(one['new'] for one in added):.1f} %",
            "older means as they were": f"{sum(one['untouched'] for one in added)} of {len(added)}"})
    return markdown_table(rows)


def months_sure_table() -> str:
    """How far probabilities are off as classes come."""
    rows = []
    for method, lives in months().items():
        for at in zip(*(life["sure"] for life in lives), strict=True):
            rows.append({"method": f"`{method}`", "classes": str(at[0]["classes"]),
                         "right": f"{mean_std([one['accuracy'] for one in at])} %",
                         "sure, in the mean": f"{mean_std([one['sure'] for one in at])} %",
                         "calibration error, points": mean_std([one["error"] for one in at])})
    return markdown_table(rows)


def months_unknown_table() -> str:
    """Pictures of known classes that are refused, and of strangers that are caught, at rates that were promised."""
    rows = []
    for method, lives in months().items():
        for at in zip(*(life["unknown"] for life in lives), strict=True):
            for rate in dict.fromkeys(rate for one in at for rate in one["rates"]):
                met = [one["rates"][rate] for one in at if rate in one["rates"]]
                rows.append({"method": f"`{method}`", "classes": str(at[0]["classes"]),
                             "strangers": f"{at[0]['strangers']} classes", "`--unknown`": rate,
                             "known ones refused": f"{mean_std([one['refused'] for one in met])} %",
                             "strangers caught": f"{mean_std([one['caught'] for one in met])} %"})
    return markdown_table(rows)


def months_measures_table() -> str:
    """How often a picture of a known class looks more familiar than a stranger's, by what is looked at."""
    words = {"nearness": "cosine to the nearest mean", "score": "best score", "probability": "best probability"}
    rows = []
    for method, lives in months().items():
        for at in zip(*(life["unknown"] for life in lives), strict=True):
            rows.append({"method": f"`{method}`", "classes": str(at[0]["classes"])} | {
                said: f"{mean_std([one['sorted'][name] for one in at])} %" for name, said in words.items()})
    return markdown_table(rows)


def backbones_table() -> str:
    report = json.loads((ROOT / "results" / "backbones.json").read_text())
    return markdown_table([
        {"network": f"`{name}`", "ours, pictures/s": f"{case['our_images_per_second']:.0f}",
         "the package's own code": f"{case['package_images_per_second']:.0f}", "ratio": f"{case['ratio']:.2f}",
         "features differ by at most": f"{case['largest_difference']:.1e}"}
        for name, case in report.items() if isinstance(case, dict)
    ])


def overhead_table() -> str:
    report = json.loads((ROOT / "results" / "overhead.json").read_text())
    return markdown_table([
        {"network": name, "ratio": f"{case['ratio']:.3f}", "bare, images/s": str(case["bare_images_per_second"]),
         "ours, images/s": str(case["our_images_per_second"])}
        for name, case in report.items() if isinstance(case, dict)
    ])


def memory_table(table: str) -> str:
    """The process's memory after each task: flat, whatever the size of the data set."""
    rows = []
    for (result, *_) in stored(table).values():
        after = [format_bytes(size) for size in result.resident_after_each_task]
        rows.append({"command": f"`{command(result.command)}`"}
                    | {f"task {i + 1}": size for i, size in enumerate(after)}
                    | {"peak": format_bytes(result.peak_memory_bytes)})
    return markdown_table(rows)


def memories(table: str) -> dict[str, list[list[Result]]]:
    """The rooms of each memory with its codec gap closed by `mix`, by the name that the figure shows."""
    names = {"protocore-coded": "ProtoCore, coded", "protocore-synthetic": "ProtoCore, synthetic",
             "er-codes": "replay, codes", "er-webp": "replay, WebP", "er-pixels": "replay, pixels"}
    rows = stored(table)
    return {words: [results for row, results in rows.items()
                    if row.startswith(name) and (row.endswith("-mix") or name == "er-pixels")]
            for name, words in names.items()}


def reproduced() -> None:
    """docs/results/: the paper's tables and figures at scale `fast`, of which anything is stored."""
    shelf, scale = Shelf(ROOT / "results"), SCALES["fast"]
    for name, exhibit in EXHIBITS.items():
        made = plan(exhibit, scale, ROOT / "runs", shelf=shelf)
        if made.results:
            write(made, ROOT / "docs" / "results", f"protocore reproduce {name} --scale {scale.name}")


def main() -> None:
    reproduced()
    blocks = {p.name: runs_table(p.name) for p in sorted((ROOT / "results").iterdir())
              if p.is_dir() and p.name != REPRODUCED}
    blocks["overhead"] = overhead_table()
    special = {"cifar100-10-fast": fast_table, "cifar100-50-fast": fast_table,
               "cifar100-10-codecs": codec_runs_table,
               "cifar100-10-starts": starts_table,
               "cifar100-10-parts": choices_table, "cifar100-10-looks": spaces_table,
               "photos": room_table, "cifar100-5": room_table}
    blocks |= {name: make(name) for name, make in special.items() if name in blocks}
    reports = {"backbones": backbones_table, "codecs": codecs_table, "condensation": condensation_table,
               "costs": costs_table,
               "forgetting": forgetting_table, "health": health_table, "looks": looks_table,
               "recipe": recipe_table}
    blocks |= {name: make() for name, make in reports.items()
               if (ROOT / "results" / f"{name}.json").exists()}
    if (ROOT / "results" / "months.json").exists():
        blocks |= {"months-cost": months_cost_table(), "months-sure": months_sure_table(),
                   "months-unknown": months_unknown_table(), "months-measures": months_measures_table()}
    blocks["sweeps"] = sweeps_table()
    blocks["imagenet-memory"] = memory_table("imagenet1k-100")
    for page in PAGES:
        path = ROOT / page
        if not path.exists():
            continue
        before = text = path.read_text()
        for name, block in blocks.items():
            if f"<!-- table: {name} -->" in text:
                text = replace_block(text, name, block)
        if text != before:
            path.write_text(text)
    pictures = ROOT / "docs" / "img"
    pictures.mkdir(exist_ok=True)
    seeds_0 = [results[0] for results in stored("fashion-mnist").values()]
    figures.bytes_figure(seeds_0, pictures / "fashion-mnist-bytes.png")
    figures.accuracy_curves(seeds_0, pictures / "fashion-mnist-accuracy.png")
    figures.memories_figure(memories("cifar100-10-codecs"), pictures / "cifar100-bytes.png")
    if (folder := ROOT / "results" / "cifar100-10-fast").is_dir():
        (whole,) = protocols(gather([folder])[0])
        frontier_figure(whole, pictures / "cifar100-fast.png")


if __name__ == "__main__":
    main()
